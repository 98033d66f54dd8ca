"""HOW MUCH: the time, state, tape and workspace of one step, measured by running it a few times.

`measure_step` needs a framework's backend, a meter of its memory and a state. It returns a `StepCost`: a `Loop` for the
planners, and the workspace of a step, which they do not count. `loop_of` derives a `Loop` from the trace of a run.
"""

from remat.measuring.from_trace import loop_of
from remat.measuring.step_cost import DEFAULT_TIMES, MeasurementSetup, StepCost, measure_step

__all__ = ["DEFAULT_TIMES", "MeasurementSetup", "StepCost", "loop_of", "measure_step"]

"""HOW MUCH: the time, state, tape and workspace of one step, measured by running it a few times.

In: a framework's backend, a meter of its memory, a state. Out: `StepCost`: a `Loop` for the planners, and the workspace
of a step, which planners do not count. `loop_of` derives the `Loop` from the trace of a whole run instead.
"""

from remat.measuring.from_trace import loop_of
from remat.measuring.step_cost import DEFAULT_TIMES, MeasurementSetup, StepCost, measure_step

__all__ = ["DEFAULT_TIMES", "MeasurementSetup", "StepCost", "loop_of", "measure_step"]

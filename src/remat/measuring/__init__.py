"""HOW MUCH: the time, state, tape and workspace of one step, measured by running it a few times.

In: a framework's verbs, a meter of its memory, a state. Out: `StepCost`, which holds a `Loop` for the planners and the
bytes that every step allocates beside what the planners count. `loop_of` takes a step's costs from a whole run instead.
"""

from remat.measuring.from_trace import loop_of
from remat.measuring.step_cost import DEFAULT_TIMES, MeasurementSetup, StepCost, measure_step

__all__ = ["DEFAULT_TIMES", "MeasurementSetup", "StepCost", "loop_of", "measure_step"]

"""Binomial: states only, placed by the closed form of Revolve (Griewank & Walther 2000, `schedule.revolve`).

Costs are closed forms too, so a plan for n = 10⁹ takes microseconds; its ops are made one by one as they are run.
"""

from dataclasses import dataclass
from typing import ClassVar

from remat.planners.claim import Claim, Prediction
from remat.planners.plan import Plan
from remat.planners.planner import OneLevelPlanner, infeasible
from remat.problem import Level, Loop, Memory
from remat.schedule import Schedule
from remat.schedule.revolve import RevolveOps, advances

__all__ = ["Binomial", "fitting_states", "peak_states", "predict", "stack_depths", "states_text"]


@dataclass(frozen=True)
class Binomial(OneLevelPlanner):
    """As many kept states as fit, and the least advances they allow where no tape is stored for later."""

    name: ClassVar[str] = "binomial"
    summary: ClassVar[str] = "states only, optimal placement in closed form (Revolve); any n at once"

    def plan(self, problem: Loop, memory: Memory) -> Plan:
        """The plan with as many states as fit."""
        slots = fitting_states(problem, memory.device, 1)
        prediction = predict(problem, slots, 1)
        schedule = Schedule(RevolveOps(problem.units, slots, 1, memory.device.name))
        return Plan(problem, memory, self.name, Claim(1.0, states_text(memory.device, slots)), prediction, schedule)


def predict(loop: Loop, slots: int, chunk: int) -> Prediction:
    """What `RevolveOps` will cost, in closed form; equal to what `simulate` counts."""
    n = loop.units
    if n == 0:
        return Prediction(0, 0, loop.state, 0.0)
    count = advances(n, slots, chunk)
    ranges = -(-n // chunk)
    states = peak_states(ranges, *stack_depths(ranges, slots))
    seconds = count * loop.forward + n * (loop.record + loop.backward) + ranges * loop.per_range
    return Prediction(count, n, states * loop.state + min(n, chunk) * loop.tape, seconds)


def stack_depths(ranges: int, slots: int) -> tuple[int, int]:
    """The most kept states while a range is recorded: before the turn, and after it.

    All slots are in use after the turn if and only if some left segment has more ranges than slots, and `split` makes
    the first of them so exactly when there are more than 2·slots ranges.
    """
    return min(slots, ranges - 1), slots if ranges > 2 * slots else min(slots - 1, ranges - 2)


def peak_states(ranges: int, before: int, after: int) -> int:
    """States live at the peak: those kept `before` or `after` the turn, and the working set.

    Recording a range takes two more before the turn (input and output) and three after it (and a cotangent).
    """
    return max(before + 2, after + 3 if ranges > 1 else 0)


def states_text(level: Level, slots: int) -> str:
    """The class of the claim: in bytes, one state more might fit before the turn, so the number is part of it."""
    return "states only" if level.slots is not None else f"at most {slots} kept state{'s' * (slots != 1)}"


def fitting_states(loop: Loop, level: Level, chunk: int) -> int:
    """The most states that fit the level with ranges of `chunk` steps; too few raise an InfeasibleError."""
    ranges = -(-loop.units // chunk)
    least = 0 if ranges <= 1 else 1
    if level.slots is not None:
        if level.slots < least:
            raise infeasible(loop, level, least, "the initial state is kept")
        return level.slots
    every, tape = max(ranges - 1, 0), min(loop.units, chunk) * loop.tape
    if level.capacity is None or predict(loop, every, chunk).peak <= level.capacity:
        return every
    states = (level.capacity - tape) // loop.state - 2  # the inverse of peak_states
    states -= ranges > 2 * states
    if states < least:
        minimum = predict(loop, least, chunk).peak
        why = f"a working set of {(minimum - tape) // loop.state} states and the tape of a range"
        raise infeasible(loop, level, minimum, why)
    return states

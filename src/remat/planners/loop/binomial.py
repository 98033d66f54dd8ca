"""Binomial: states only, placed by the closed form of Revolve (Griewank & Walther 2000, `schedule.revolve`).

Costs are closed forms too, so a plan for n = 10⁹ takes microseconds; its ops are generated as they are run.
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
    """Keeps as many states as fit, with the least advances that are possible if no tape is stored for later."""

    name: ClassVar[str] = "binomial"
    summary: ClassVar[str] = "states only, optimal placement in closed form (Revolve); any n at once"

    def plan(self, problem: Loop, memory: Memory) -> Plan:
        """The plan with as many states as fit."""
        slots = fitting_states(problem, memory.device, 1)
        prediction = predict(problem, slots, 1)
        schedule = Schedule(RevolveOps(problem.units, slots, 1, memory.device.name))
        return Plan(problem, memory, self.name, Claim(1.0, states_text(memory.device, slots)), prediction, schedule)


def predict(loop: Loop, slots: int, chunk: int) -> Prediction:
    """The cost of `RevolveOps` in closed form; it equals what `simulate` counts."""
    n = loop.units
    if n == 0:
        return Prediction(0, 0, loop.state, 0.0)
    count = advances(n, slots, chunk)
    ranges = -(-n // chunk)
    states = peak_states(ranges, *stack_depths(ranges, slots))
    seconds = count * loop.forward + n * (loop.record + loop.backward) + ranges * loop.per_range
    return Prediction(count, n, states * loop.state + min(n, chunk) * loop.tape, seconds)


def stack_depths(ranges: int, slots: int) -> tuple[int, int]:
    """The most states kept while a range is recorded, before and after the turn.

    After the turn, all slots are in use if and only if some left segment has more ranges than slots. `split` makes the
    first left segment that long exactly if there are more than 2·slots ranges.
    """
    return min(slots, ranges - 1), slots if ranges > 2 * slots else min(slots - 1, ranges - 2)


def peak_states(ranges: int, before: int, after: int) -> int:
    """States live at the peak: those kept `before` or `after` the turn, plus the working set.

    Recording a range takes two states more before the turn (input and output), and three after it (also a cotangent).
    """
    return max(before + 2, after + 3 if ranges > 1 else 0)


def states_text(level: Level, slots: int) -> str:
    """The class of the claim; in bytes, one more state might fit before the turn, so it names the number of states."""
    return "states only" if level.slots is not None else f"at most {slots} kept state{'s' * (slots != 1)}"


def fitting_states(loop: Loop, level: Level, chunk: int) -> int:
    """The most states that fit the level with ranges of `chunk` steps; raise an InfeasibleError if they are too few."""
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

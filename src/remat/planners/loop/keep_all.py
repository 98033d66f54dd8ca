"""Keep-all: record every step once, as one range, and recompute nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from remat.planners.claim import Claim, Prediction
from remat.planners.plan import Plan
from remat.planners.planner import OneLevelPlanner, infeasible
from remat.problem import Graph, Level, Loop, Memory, Problem
from remat.schedule import Op, Pullback, Record, Schedule, Turn, simulate

__all__ = ["KeepAll", "keep_all_bytes", "least_for_all"]


@dataclass(frozen=True)
class _Ops:
    steps: int
    first: int  # the number of steps in a first range, recorded before the range that is pulled back at once

    def __iter__(self) -> Iterator[Op]:
        if self.first:
            yield Record(0, self.first)
        if self.steps:
            yield Record(self.first, self.steps)
        yield Turn()
        if self.steps:
            yield Pullback(self.steps, self.first)
        if self.first:
            yield Pullback(self.first, 0)


@dataclass(frozen=True)
class KeepAll(OneLevelPlanner):
    """Stores every tape until it is used: no recomputation, and memory that grows with n."""

    name: ClassVar[str] = "keep-all"
    summary: ClassVar[str] = "record every step once, recompute nothing"

    def plan(self, problem: Loop, memory: Memory) -> Plan:
        """The plan that records everything; it fits if all tapes do."""
        level, least = memory.device, least_for_all(problem, memory.device)
        have = level.slots if level.slots is not None else level.capacity
        if have is not None and have < least:
            raise infeasible(problem, level, least, f"the tapes of all {problem.units} steps are held at once")
        n = problem.units
        peak = n * problem.tape + 2 * problem.state if n else problem.state
        # In slots, a tape that is pulled back right after it was recorded does not count. The tapes of the other steps
        # must count, so all steps but the last are a separate range.
        first = max(n - 1, 0) if level.slots is not None else 0
        seconds = n * (problem.record + problem.backward) + (bool(n) + bool(first)) * problem.per_range
        prediction = Prediction(0, n, peak, seconds)
        return Plan(problem, memory, self.name, Claim(1.0), prediction, Schedule(_Ops(n, first)))


def keep_all_bytes(problem: Problem) -> int:
    """Bytes on the device that hold all tapes of any kind of problem at once, so that nothing runs twice.

    >>> keep_all_bytes(Loop(10, state=2, tape=5))
    54
    """
    if isinstance(problem, Graph):
        return problem.plain_peak
    return simulate(_Ops(problem.units, 0), problem).peak


def least_for_all(loop: Loop, level: Level) -> int:
    """The least capacity for all tapes, in the level's unit (slots or bytes); the last tape takes no slot."""
    n = loop.units
    if level.slots is not None:
        return -(-(n - 1) * loop.tape // loop.state) if n > 1 else 0
    return n * loop.tape + 2 * loop.state if n else loop.state

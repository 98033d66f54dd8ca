"""Save points: cut the loop into sections at chosen positions, and record and pull back each section as one.

This is what people do without a planner: they split a long layer into shorter ones and store the state between them.
Every section but the last runs twice. It serves as a comparison for the other planners.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from remat.errors import ProblemError
from remat.planners.claim import Claim, Prediction
from remat.planners.plan import Plan
from remat.planners.planner import OneLevelPlanner, infeasible
from remat.problem import Level, Loop, Memory
from remat.schedule import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Schedule, Turn, simulate
from remat.units import to_count

__all__ = ["SavePoints", "even_positions", "save_points"]

_MOST_COUNTS = 100_000  # the most numbers of save points to try


@dataclass(frozen=True)
class SavePoints(OneLevelPlanner):
    """Keeps states at `positions`; by default evenly spaced, as few as fit the bytes, or as many as there are slots.

    >>> from remat import Loop, plan
    >>> plan(Loop(2048), slots=7, planner=SavePoints((256, 512, 768, 1024, 1280, 1536, 1792))).forward_steps
    3840
    """

    positions: tuple[int, ...] | None = None

    name: ClassVar[str] = "save-points"
    summary: ClassVar[str] = "sections between given or evenly spaced positions, each recorded as one, as by hand"

    def __post_init__(self) -> None:
        if self.positions is not None:
            places = tuple(to_count(place, "a position", least=1) for place in self.positions)
            if list(places) != sorted(set(places)):
                raise ProblemError(f"save points must increase, and these are {str(places)[:80]}")
            object.__setattr__(self, "positions", places)

    def plan(self, problem: Loop, memory: Memory) -> Plan:
        """The plan with these save points; the memory must hold the states and the longest section's tape."""
        n, level = problem.units, memory.device
        if self.positions and self.positions[-1] >= n:
            raise ProblemError(f"a save point must lie inside the loop, in 1..{n - 1}: {self.positions[-1]} does not")
        positions = _fitting(problem, level) if self.positions is None else self.positions
        schedule = Schedule(_Ops(n, positions, level.name))
        cost = Prediction.of(simulate(schedule, problem, memory))
        have, least = (level.slots, len(positions)) if level.slots is not None else (level.capacity, cost.peak)
        if have is not None and have < least:
            why = f"{len(positions)} states are kept" if level.slots is not None else "at these save points"
            raise infeasible(problem, level, least, why)
        # A loop that is not cut runs once, which is optimal.
        claim = Claim(None, f"{len(positions)} save points") if positions else Claim(1.0)
        return Plan(problem, memory, self.name, claim, cost, schedule)


def even_positions(steps: int, count: int) -> list[int]:
    """`count` evenly spaced positions inside the loop, with the longer sections last.

    >>> even_positions(2048, 7)
    [256, 512, 768, 1024, 1280, 1536, 1792]
    """
    short, longer = divmod(steps, count + 1)
    return [k * short + max(0, k - (count + 1 - longer)) for k in range(1, count + 1)]


def save_points(steps: int, count: int) -> list[int]:
    """The `count` positions that cut `steps` into sections of (nearly) equal length, with the longer ones last.

    Args:
        steps: The number of steps of the loop.
        count: The number of save points, fewer than steps.

    Returns:
        The positions, increasing; none is 0 or `steps`.

    Raises:
        ProblemError: If a count is not a whole number, or there are more save points than places between steps.

    Example:
        >>> save_points(2048, 7)
        [256, 512, 768, 1024, 1280, 1536, 1792]
    """
    steps, count = to_count(steps, "steps"), to_count(count, "count")
    if count >= max(steps, 1):
        raise ProblemError(
            f"{steps} steps have {max(steps - 1, 0)} places between them, too few for {count} save points"
        )
    return even_positions(steps, count)


@dataclass(frozen=True)
class _Ops:
    """Advance over all sections but the last and keep their first states; then record and pull back, last to first."""

    steps: int
    positions: tuple[int, ...]
    level: str

    def __iter__(self) -> Iterator[Op]:
        if not self.steps:
            yield Turn()
            return
        starts = (0, *self.positions)
        ends = (*self.positions, self.steps)
        for start, end in zip(starts[:-1], ends[:-1], strict=True):
            yield Keep(start, self.level)
            yield Advance(start, end)
        yield Record(starts[-1], ends[-1])
        yield Turn()
        yield Pullback(ends[-1], starts[-1])
        for start, end in zip(reversed(starts[:-1]), reversed(ends[:-1]), strict=True):
            yield Fetch(start, self.level)
            yield Drop(start, self.level)
            yield Record(start, end)
            yield Pullback(end, start)


def _fitting(loop: Loop, level: Level) -> tuple[int, ...]:
    """Even positions: as many as there are slots, or as few as fit the bytes, so that fewer sections run twice."""
    n = loop.units
    if level.slots is not None:
        return tuple(even_positions(n, max(0, min(level.slots, n - 1))))
    if level.capacity is None or n < 2:
        return ()
    # The peak is at the turn: the kept states, the tape of the last, longest section, a step's input and output.
    least = None
    for count in range(0, n, n // _MOST_COUNTS + 1):
        peak = (count + 2) * loop.state + -(-n // (count + 1)) * loop.tape
        if peak <= level.capacity:
            return tuple(even_positions(n, count))
        least = peak if least is None else min(least, peak)
    assert least is not None
    raise infeasible(loop, level, least, "at the best number of evenly spaced save points")

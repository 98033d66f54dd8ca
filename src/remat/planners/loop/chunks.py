"""Chunks: the binomial schedule over ranges of k steps, each recorded and pulled back as one.

Frameworks record and pull back a range of k steps at far less cost than k single steps, and fewer, longer ranges need
fewer kept states. With a slot for every range this is the familiar √n scheme.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from remat.errors import InfeasibleError, ProblemError
from remat.planners.claim import Claim
from remat.planners.loop.binomial import fitting_states, predict, states_text
from remat.planners.plan import Plan
from remat.planners.planner import OneLevelPlanner
from remat.problem import Level, Loop, Memory
from remat.schedule import Schedule
from remat.schedule.revolve import RevolveOps
from remat.units import to_count

__all__ = ["Chunks"]

_MOST_LENGTHS = 10_000  # the most lengths to try


@dataclass(frozen=True)
class Chunks(OneLevelPlanner):
    """Ranges of `k` steps; without `k`, of the length with the least predicted time in the memory.

    With longer ranges there are fewer of them, which saves time (`Loop.per_range`) and kept states, but their tapes are
    larger. In slots, where a range's tape does not count, the default k is such that every range has a slot.
    """

    k: int | None = None

    name: ClassVar[str] = "chunks"
    summary: ClassVar[str] = "binomial over ranges of k steps, each recorded and pulled back at once"

    def __post_init__(self) -> None:
        if self.k is not None:
            object.__setattr__(self, "k", to_count(self.k, "k", least=1))

    def plan(self, problem: Loop, memory: Memory) -> Plan:
        """The plan with ranges of the configured `k` steps, or of the fastest length."""
        level = memory.device
        k = self.k or _best_length(problem, level)
        slots = fitting_states(problem, level, k)
        schedule = Schedule(RevolveOps(problem.units, slots, k, level.name))
        claim = Claim(1.0, f"{states_text(level, slots)} and ranges of {k} step{'s' * (k != 1)}")
        return Plan(problem, memory, self.name, claim, predict(problem, slots, k), schedule)


def _best_length(loop: Loop, level: Level) -> int:
    n = loop.units
    if level.slots is not None or level.capacity is None:
        return max(-(-n // ((level.slots or 0) + 1)), 1)
    best: tuple[float, int, int] | None = None
    error: InfeasibleError | None = None
    for k in _lengths(loop, level.capacity):
        try:
            cost = predict(loop, fitting_states(loop, level, k), k)
        except InfeasibleError as caught:
            if error is None or caught.minimum < error.minimum:
                error = caught.with_traceback(None)  # a traceback would keep the frames of all callers alive
            continue
        key = (cost.seconds, cost.peak, k)
        best = key if best is None else min(best, key)
    if best is None:
        raise error or ProblemError("no length of a range to try")
    return best[2]


def _lengths(loop: Loop, capacity: int) -> Iterable[int]:
    """The lengths worth trying: for each number of states, the longest range that leaves room for them.

    With longer ranges there are fewer, which need no more advances in the same slots. If there are fewer lengths than
    numbers of states, all lengths are returned. At most about ten thousand are, evenly spread.
    """
    n = max(loop.units, 1)
    if loop.tape == 0:
        return (n,)
    longest = min(capacity // loop.tape, n)
    states = min(capacity // loop.state, n + 2)
    if longest <= states:
        return range(1, longest + 1, longest // _MOST_LENGTHS + 1) if longest else (1,)
    rooms = range(2, states + 1, states // _MOST_LENGTHS + 1)
    return sorted({1, *(min((capacity - room * loop.state) // loop.tape, n) for room in rooms)} - {0})

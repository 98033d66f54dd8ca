"""All levels as one pool of slots, for long loops: the binomial schedule, with states assigned to levels by depth.

Kept states form a stack with the initial state at the bottom; those near the top are written and read most. So the top
of the stack goes to the fastest levels, and the bottom to as many slower slots as make the whole reversal fastest.
Costs are counted depth by depth, without a table over n. The levels planner takes the better of this and its groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from remat.planners.claim import Prediction
from remat.planners.loop.binomial import peak_states, stack_depths
from remat.problem import Level, Loop, Memory
from remat.schedule import Drop, Fetch, Keep, Op
from remat.schedule.revolve import RevolveOps, advances, repetition, split

__all__ = ["PooledOps", "best_pool"]


MOST_SLOTS = 100_000  # the most slots to use, since costs are counted slot by slot


@dataclass(frozen=True)
class PooledOps:
    """The binomial schedule, with the state at depth d of the stack kept in the level of the d-th slot."""

    steps: int
    shares: tuple[tuple[str, int], ...]  # (level name, number of slots), the bottom of the stack first

    def __iter__(self) -> Iterator[Op]:
        names = [name for name, slots in self.shares for _ in range(slots)]
        where: dict[int, str] = {}
        for op in RevolveOps(self.steps, len(names), 1, ""):
            match op:
                case Keep(state, _):
                    where[state] = names[len(where)]
                    yield Keep(state, where[state])
                case Fetch(state, _):
                    yield Fetch(state, where[state])
                case Drop(state, _):
                    yield Drop(state, where.pop(state))
                case _:
                    yield op


def best_pool(loop: Loop, memory: Memory, ranked: list[Level], slots: list[int]) -> tuple[PooledOps, Prediction] | None:
    """The fastest pool that uses all slots of faster levels before any slot of a slower one; None without a slot."""
    total = min(sum(slots), loop.units - 1, MOST_SLOTS)
    if total < 1:
        return None
    sizes = {total} | {2**i for i in range(total.bit_length())}
    sizes |= {min(sum(slots[: k + 1]), total) for k in range(len(slots))} - {0}
    pools = []
    for size in sorted(sizes):
        shares, left = [], size
        for level, count in zip(ranked, slots, strict=True):
            shares.append((level, min(count, left)))
            left -= shares[-1][1]
        pools.append((_predict(loop, memory, shares[::-1]), shares[::-1]))
    prediction, shares = min(pools, key=lambda pair: pair[0].seconds)
    return PooledOps(loop.units, tuple((level.name, count) for level, count in shares if count)), prediction


def _predict(loop: Loop, memory: Memory, shares: list[tuple[Level, int]]) -> Prediction:
    n, slots = loop.units, sum(count for _, count in shares)
    levels = [level for level, count in shares for _ in range(count)]
    keeps, fetches = _moves_by_depth(n, slots)
    moving = sum(
        (kept * level.write + fetched * level.read) * loop.state
        for level, kept, fetched in zip(levels, keeps, fetches, strict=True)
    )
    count = advances(n, slots)
    seconds = count * loop.forward + n * (loop.record + loop.backward + loop.per_range) + moving
    return Prediction(count, n, _peak(loop, [level is memory.device for level in levels]), seconds)


def _moves_by_depth(steps: int, slots: int) -> tuple[list[int], list[int]]:
    """How many states the binomial schedule keeps and fetches at each depth of its stack."""
    keeps, fetches = [0] * slots, [0] * slots
    # A segment with a slot for each unit has one keep and one fetch at each depth that it spans; `runs` has +1 where
    # such a segment starts and -1 where it ends, and `running` is their sum so far.
    runs = [0] * (slots + 1)
    running = 0
    segments = {steps: 1}  # length of segments that start at this depth → their number
    for depth in range(slots):
        left, deeper = slots - depth, dict[int, int]()
        for length, times in segments.items():
            if length <= left + 1:
                runs[depth] += times
                runs[depth + length - 1] -= times
                continue
            keeps[depth] += times
            if left == 1:
                fetches[depth] += (length - 1) * times
                continue
            while length > 1:
                middle = split(length, left, repetition(length, left))
                if length - middle > 1:
                    deeper[length - middle] = deeper.get(length - middle, 0) + times
                fetches[depth] += times
                length = middle
        running += runs[depth]
        keeps[depth] += running
        fetches[depth] += running
        segments = deeper
    return keeps, fetches


def _peak(loop: Loop, on_device: list[bool]) -> int:
    """Peak bytes on the device: its part of the stack, plus the working set before or after the turn."""
    before, after = (sum(on_device[:depth]) for depth in stack_depths(loop.units, len(on_device)))
    return peak_states(loop.units, before, after) * loop.state + loop.tape

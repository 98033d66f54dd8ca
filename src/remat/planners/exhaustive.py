"""Exhaustive: considers every legal schedule of a tiny problem, as the oracle for the other planners.

It is a shortest-path search (A*) whose nodes are what is live: the working state, the states kept in each level, the
stored tapes and the cotangent in flight. It shares no code with the recurrences or with the verifier's machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import ClassVar, NamedTuple

from remat.errors import InfeasibleError
from remat.ops import TAPE
from remat.planners.claim import Claim, Prediction
from remat.planners.plan import Plan
from remat.planners.planner import Planner
from remat.problem import Level, Loop, Memory
from remat.progress import report_progress
from remat.schedule import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Schedule, Turn, simulate

__all__ = ["Exhaustive"]

MOST_STEPS = 8


class _Now(NamedTuple):
    """What is live between two ops; sets are bit masks, and -1 means none."""

    working: int
    cotangent: int
    kept: tuple[int, ...]
    tapes: int
    just_recorded: int  # the unit that the last op recorded


@dataclass(frozen=True)
class Exhaustive(Planner[Loop]):
    """Finds the schedule of least time by trying them all; for up to eight steps."""

    name: ClassVar[str] = "exhaustive"
    summary: ClassVar[str] = f"try every schedule; the oracle for up to {MOST_STEPS} steps"
    problem_type: ClassVar[type[Loop]] = Loop

    def refuses(self, problem: Loop, memory: Memory) -> str | None:
        """The reason to refuse, unless the loop is short and has no cost per range."""
        if problem.steps is None or problem.steps > MOST_STEPS:
            return f"it tries every schedule, which takes too long for more than {MOST_STEPS} steps"
        if problem.per_range:
            return "it records steps one by one, so a cost per range has no meaning"
        return None

    def plan(self, problem: Loop, memory: Memory) -> Plan:
        """The plan of least time; of several, the one with the fewest forward steps."""
        ops = _search(problem, memory)
        if ops is None:
            least, unit = _least(problem, memory), "bytes" if memory.device.slots is None else "slots"
            message = f"no schedule at all fits {memory}: the smallest that works is {least} {unit}"
            raise InfeasibleError(message, least, unit)
        schedule = Schedule(tuple(_joined(ops)))
        prediction = Prediction.of(simulate(schedule, problem, memory))
        return Plan(problem, memory, self.name, Claim(1.0, "steps recorded one by one"), prediction, schedule)


def _search(loop: Loop, memory: Memory) -> list[Op] | None:
    """The ops of least time, or None if nothing fits."""
    n = loop.units
    start = _Now(0, -1, (0,) * len(memory.levels), 0, -1)
    best: dict[_Now, tuple[float, int]] = {start: (0.0, 0)}
    came: dict[_Now, tuple[_Now, Op]] = {}
    order = count()
    queue = [((0.0, 0), next(order), start)]
    done: set[_Now] = set()
    tried = 0
    while queue:
        tried += 1
        if tried % 10_000 == 0:
            report_progress(tried, None)
        _, _, now = heappop(queue)
        if now in done:
            continue
        done.add(now)
        cost = best[now]
        if now.cotangent == 0 and not any(now.kept) and not now.tapes:
            ops: list[Op] = []
            while now != start:
                now, op = came[now]
                ops.append(op)
            return ops[::-1]
        for op, seconds, after in _moves(now, loop, memory, n):
            total = (cost[0] + seconds, cost[1] + isinstance(op, Advance))
            if (after not in best or total < best[after]) and _fits(op, now, after, loop, memory.levels):
                best[after], came[after] = total, (now, op)
                heappush(queue, ((total[0] + _least_remaining(after, loop), total[1]), next(order), after))
    return None


def _least_remaining(now: _Now, loop: Loop) -> float:
    """A lower bound on the remaining time: each remaining unit is recorded once and pulled back once."""
    left = loop.units if now.cotangent < 0 else now.cotangent
    return left * loop.backward + (left - now.tapes.bit_count()) * loop.record


def _moves(now: _Now, loop: Loop, memory: Memory, n: int) -> Iterator[tuple[Op, float, _Now]]:
    """The ops that may come next, without those that no best schedule needs.

    If a tape can be pulled back, that is the only move: later it would cost the same, and now it frees memory. A kept
    state past the cotangent is dropped at once. After the turn, the unit just before the cotangent is never advanced
    over.
    """
    w, cot, kept, tapes, _ = now
    if cot > 0 and tapes >> (cot - 1) & 1:
        left = w if 0 <= w < cot - 1 else -1
        after = _Now(left, cot - 1, kept, tapes & ~(1 << (cot - 1)), -1)
        yield Pullback(cot, cot - 1), loop.backward, after
        return
    top = n if cot < 0 else cot
    for k, level in enumerate(memory.levels):
        for state in _members(kept[k]):
            drop = Drop(state, level.name), 0.0, now._replace(kept=_put(kept, k, kept[k] & ~(1 << state)))
            yield drop
            if state >= top:
                return
            if state != w:
                yield (
                    Fetch(state, level.name),
                    level.read * loop.state,
                    now._replace(working=state, just_recorded=-1),
                )
    if 0 <= w < top:
        if cot < 0 or w + 1 < cot:
            yield Advance(w, w + 1), loop.forward, now._replace(working=w + 1, just_recorded=-1)
        if not tapes >> w & 1:
            yield Record(w, w + 1), loop.record, now._replace(working=w + 1, tapes=tapes | 1 << w, just_recorded=w)
        for k, level in enumerate(memory.levels):
            if not kept[k] >> w & 1:
                more = _put(kept, k, kept[k] | 1 << w)
                yield Keep(w, level.name), level.write * loop.state, now._replace(kept=more, just_recorded=-1)
    if loop.restartable:
        for unit in _members(tapes):
            if unit + 1 < top and unit + 1 != w:
                yield Fetch(unit + 1, TAPE), 0.0, now._replace(working=unit + 1, just_recorded=-1)
    if cot < 0 and w == n:
        yield Turn(), 0.0, now._replace(working=-1, cotangent=n)


def _members(mask: int) -> Iterator[int]:
    return (i for i in reversed(range(mask.bit_length())) if mask >> i & 1)


def _put(kept: tuple[int, ...], level: int, mask: int) -> tuple[int, ...]:
    return (*kept[:level], mask, *kept[level + 1 :])


def _fits(op: Op, before: _Now, after: _Now, loop: Loop, levels: tuple[Level, ...]) -> bool:
    for k, level in enumerate(levels):
        states = after.kept[k].bit_count()
        if k:
            size = states * loop.state if level.slots is None else states
        elif level.slots is not None:
            tapes = after.tapes.bit_count() - (after.just_recorded >= 0)
            if states * loop.state + tapes * loop.tape > level.slots * loop.state:
                return False
            continue
        else:
            size = states * loop.state + _working_set(op, before, after, loop)
        most = level.slots if level.slots is not None else level.capacity
        if most is not None and size > most:
            return False
    return True


def _working_set(op: Op, before: _Now, after: _Now, loop: Loop) -> int:
    """Bytes on the device while `op` runs, without the kept states."""
    cotangent = loop.state if after.cotangent >= 0 else 0
    match op:
        case Advance() | Record():
            return after.tapes.bit_count() * loop.tape + 2 * loop.state + cotangent
        case Pullback():
            still = loop.state if after.working >= 0 else 0
            return before.tapes.bit_count() * loop.tape + 2 * loop.state + still
    return after.tapes.bit_count() * loop.tape + (loop.state if after.working >= 0 else 0) + cotangent


def _least(loop: Loop, memory: Memory) -> int:
    """The least capacity of the device in which some schedule fits, by bisection."""
    device = memory.device
    low = device.slots if device.slots is not None else device.capacity or 0
    high = loop.units * (loop.state + loop.tape) + 4 * loop.state
    while high - low > 1:
        middle = (low + high) // 2
        slots, capacity = (middle, None) if device.slots is not None else (None, middle)
        level = Level(device.name, capacity, slots=slots, read=device.read, write=device.write)
        if _search(loop, Memory(levels=[level, *memory.levels[1:]])) is None:
            low = middle
        else:
            high = middle
    return high


def _joined(ops: list[Op]) -> Iterator[Op]:
    """The ops, with consecutive advances joined into one."""
    last: Op | None = None
    for op in ops:
        if isinstance(last, Advance) and isinstance(op, Advance):
            last = Advance(last.start, op.stop)
            continue
        if last is not None:
            yield last
        last = op
    if last is not None:
        yield last

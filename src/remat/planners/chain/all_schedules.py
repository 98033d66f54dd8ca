"""Considers every schedule of a tiny chain, persistent or not, as the oracle for the other chain planners.

It is a shortest-path search whose nodes are what is live: the working state, kept states, tapes with their options, the
cotangent. It counts live bytes by the table in `schedule/chain_machine.py`, but shares no code with that module or with
the recurrences.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import ClassVar, NamedTuple

from remat.errors import InfeasibleError
from remat.planners.chain.chain_planner import ChainPlanner
from remat.planners.claim import Claim
from remat.planners.plan import Plan
from remat.problem import Chain, Memory
from remat.progress import report_progress
from remat.schedule import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Turn

__all__ = ["AllSchedules"]

MOST_STAGES = 6


class _Now(NamedTuple):
    """What is live between two ops; -1 means none, and tapes are (stage, option)."""

    working: int
    cotangent: int
    kept: frozenset[int]
    tapes: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class AllSchedules(ChainPlanner):
    """Finds the schedule of least time by trying all that record stages singly; for up to six stages."""

    name: ClassVar[str] = "chain-exhaustive"
    summary: ClassVar[str] = f"try every schedule of a chain; the oracle for up to {MOST_STAGES} stages"

    def refuses(self, problem: Chain, memory: Memory) -> str | None:
        """The reason to refuse, unless the chain is short and the memory is one level of bytes."""
        if problem.units > MOST_STAGES:
            return f"it tries every schedule, which takes too long for more than {MOST_STAGES} stages"
        return super().refuses(problem, memory)

    def plan(self, problem: Chain, memory: Memory) -> Plan:
        """The plan of least seconds."""
        level = memory.device
        found = _search(problem, level.capacity if level.capacity is not None else 2**62, level.name)
        if found is None:
            low, high = level.capacity or 0, 2 * sum(_most_bytes(problem))
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if _search(problem, middle, level.name) else (middle, high)
            raise InfeasibleError(
                f"no schedule at all fits {memory}: the smallest that works is {high} bytes", high, "bytes"
            )
        return self.plan_of(found, problem, memory, Claim(1.0, "stages recorded one by one"))


def _search(chain: Chain, capacity: int, level: str) -> list[Op] | None:
    """The ops of least seconds, or None if nothing fits."""
    start = _Now(0, -1, frozenset(), frozenset())
    best: dict[_Now, float] = {start: 0.0}
    came: dict[_Now, tuple[_Now, Op]] = {}
    order = count()
    queue = [(0.0, next(order), start)]
    done: set[_Now] = set()
    while queue:
        now = heappop(queue)[2]
        if now in done:
            continue
        done.add(now)
        if len(done) % 10_000 == 0:
            report_progress(len(done), None)
        if now.cotangent == 0 and not now.kept and not now.tapes:
            ops: list[Op] = []
            while now != start:
                now, op = came[now]
                ops.append(op)
            return ops[::-1]
        for op, more, live, after in _moves(chain, now, level):
            seconds = best[now] + more
            if live <= capacity and seconds < best.get(after, float("inf")):
                best[after], came[after] = seconds, (now, op)
                heappush(queue, (seconds + _least_remaining(chain, after), next(order), after))
    return None


def _least_remaining(chain: Chain, now: _Now) -> float:
    """A lower bound on the remaining seconds: each remaining stage is recorded and pulled back once."""
    recorded, left = dict(now.tapes), chain.units if now.cotangent < 0 else now.cotangent
    seconds = 0.0
    for i, stage in enumerate(chain.stages[:left]):
        if i in recorded:
            seconds += stage.options[recorded[i]].backward
        else:
            seconds += min(option.record + option.backward for option in stage.options)
    return seconds


def _moves(chain: Chain, now: _Now, level: str) -> Iterator[tuple[Op, float, int, _Now]]:
    """The ops that may come next, with their seconds and the bytes live while they run.

    Ops that no best schedule needs are left out: a kept state that is no longer useful is dropped at once, and only
    states before the cotangent are fetched.
    """
    n, (working, cotangent, kept, tapes) = chain.units, now
    held = _held(chain, kept, tapes)
    waiting = chain.state_size(cotangent) if cotangent >= 0 else 0
    base = _bytes(chain, held, tapes) + waiting
    top = n if cotangent < 0 else cotangent
    for state in kept:
        if state >= top:
            size = _bytes(chain, _held(chain, kept - {state}, tapes), tapes) + waiting
            yield Drop(state, level), 0.0, size, now._replace(kept=kept - {state})
            return
    there = 0 if working < 0 or working in held else chain.state_size(working)
    if 0 <= working < top:
        stage = chain.stages[working]
        if stage.repeatable and (cotangent < 0 or working + 1 < cotangent):
            live = base + there + stage.running_peak
            yield Advance(working, working + 1), stage.forward, live, now._replace(working=working + 1)
        if not any(recorded == working for recorded, _ in tapes):
            for k, option in enumerate(stage.options):
                after = now._replace(working=working + 1, tapes=tapes | {(working, k)})
                live = base + there + stage.record_peak(k)
                yield Record(working, working + 1, k), option.record, live, after
    if 0 <= working < top and working not in kept:
        yield Keep(working, level), 0.0, base + there, now._replace(kept=kept | {working})
    for state in kept:
        if state != working and state < top:
            yield Fetch(state, level), 0.0, base, now._replace(working=state)
        left = kept - {state}
        size = _bytes(chain, _held(chain, left, tapes), tapes) + waiting
        yield Drop(state, level), 0.0, size, now._replace(kept=left)
    if cotangent < 0 and working == n:
        yield Turn(), 0.0, base, now._replace(working=-1, cotangent=n)
    yield from _pullbacks(chain, now)


def _pullbacks(chain: Chain, now: _Now) -> Iterator[tuple[Op, float, int, _Now]]:
    for stage, k in now.tapes:
        if stage + 1 != now.cotangent:
            continue
        left, option = now.tapes - {(stage, k)}, chain.stages[stage].options[k]
        held = _held(chain, now.kept, left) | ({stage} if option.holds_input else set())
        if option.holds_output:
            held.discard(stage + 1)
        working = now.working if now.working < stage else -1
        size = _bytes(chain, held, left) + chain.stages[stage].pullback_peak(k, chain.state_size(stage))
        size += 0 if working < 0 or working in held else chain.state_size(working)
        yield Pullback(stage + 1, stage), option.backward, size, _Now(working, stage, now.kept, left)


def _held(chain: Chain, kept: frozenset[int], tapes: frozenset[tuple[int, int]]) -> set[int]:
    held = set(kept)
    for stage, k in tapes:
        option = chain.stages[stage].options[k]
        held.update([stage] * option.holds_input + [stage + 1] * option.holds_output)
    return held


def _bytes(chain: Chain, states: set[int], tapes: frozenset[tuple[int, int]]) -> int:
    return sum(map(chain.state_size, states)) + sum(chain.stages[stage].options[k].tape for stage, k in tapes)


def _most_bytes(chain: Chain) -> Iterator[int]:
    """Bytes whose sum is more than any schedule needs."""
    for stage, size in zip(chain.stages, map(chain.state_size, range(chain.units)), strict=True):
        options = range(len(stage.options))
        yield size + stage.running_peak + max(stage.record_peak(k) + stage.pullback_peak(k, size) for k in options)
    yield 2 * chain.state_size(chain.units) + 1

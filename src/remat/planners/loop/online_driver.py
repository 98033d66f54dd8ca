"""The driver of a loop of unknown length: ops for one unit at a time while it runs, the whole schedule at the end.

The driver is told after each unit whether another one follows. Its ops keep a good set of states while the loop runs,
and then reverse the loop optimally from those states. Afterwards `driver.plan()` is an ordinary plan.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

from remat.errors import PlannerError
from remat.planners.bounds import states_only
from remat.planners.claim import Claim, Prediction
from remat.planners.dp.online_placement import Sweep, reversal_advances, states_to_use
from remat.planners.plan import Plan
from remat.problem import Level, Loop, Memory
from remat.schedule import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Schedule, Turn
from remat.schedule.revolve import reverse

__all__ = ["Driver"]


class Driver:
    """Makes the schedule of one run of a loop of unknown length.

    `advance()` returns the ops for the next unit if it is not the last. `last()` returns the rest of the schedule if
    the next unit is the last, `ended()` if there is no next unit. A loop that finds its end only by running its last
    unit can delay each unit until it knows that another one follows; if it cannot, it calls `ended()`, and the units
    since the last kept state run a second time.

    >>> from remat import Loop, plan
    >>> driver = plan(Loop(None), slots=2).start()
    >>> [str(op) for op in driver.advance()]
    ["Keep(state=0, level='ram')", 'Advance(start=0, stop=1)']
    >>> driver.last()
    Schedule('record 1 2; turn; pullback 2 1; fetch 0 ram; drop 0 ram; record 0 1; pullback 1 0')
    >>> driver.plan().forward_steps
    3
    """

    def __init__(self, loop: Loop, memory: Memory, slots: int, planner: str) -> None:
        self.problem, self.memory, self.slots, self.planner = loop, memory, slots, planner
        self.level = memory.device.name
        self.at = 0
        self._sweep = Sweep(slots)
        self._finished: Plan | None = None

    def __repr__(self) -> str:
        return f"Driver({self.at} units run, {len(self._sweep.kept)} of {self.slots} slots in use)"

    def advance(self) -> tuple[Op, ...]:
        """The ops that run the next unit, which is not the last: drop and keep a state if useful, then advance."""
        self._check_running()
        dropped, keep = self._sweep.pass_over(self.at)
        ops: list[Op] = [] if dropped is None else [Drop(dropped, self.level)]
        if keep:
            ops.append(Keep(self.at, self.level))
        ops.append(Advance(self.at, self.at + 1))
        self.at += 1
        return tuple(ops)

    def withdrawn(self) -> Iterable[Op]:
        """The rest of the schedule, if the unit of the last `advance()` ended the loop and does not count."""
        self._check_running()
        self.at -= 1
        kept = self._sweep.kept
        extra: tuple[Op, ...] = (Drop(kept.pop(), self.level),) if kept and kept[-1] == self.at else ()
        return chain(extra, self._finish(self.at, pending=False, withdrawn=True))

    def last(self) -> Schedule:
        """The rest of the schedule, if the next unit is the last."""
        self._check_running()
        return self._finish(self.at + 1, pending=True)

    def ended(self) -> Schedule:
        """The rest of the schedule, if the unit that has just run was the last."""
        self._check_running()
        return self._finish(self.at, pending=False)

    def plan(self) -> Plan:
        """The whole plan, once the loop has ended."""
        if self._finished is None:
            raise PlannerError(f"the loop has not ended: {self.at} units have run; call last() or ended() first")
        return self._finished

    def _check_running(self) -> None:
        if self._finished is not None:
            raise PlannerError("the loop has ended: take a fresh driver from plan.start() for the next one")

    def _finish(self, steps: int, *, pending: bool, withdrawn: bool = False) -> Schedule:
        end = steps - 1 if pending else steps
        kept = self._sweep.kept
        loop = self.problem.with_steps(steps)
        bound = states_only(steps, self.slots)
        used, prediction = kept, _predict(loop, self.slots, len(kept), kept, pending)
        if prediction.advances + prediction.records > bound:  # not proved optimal: dropping some states may help
            used = states_to_use(kept, end, self.slots)
            prediction = _predict(loop, self.slots, len(kept), used, pending)
        total = prediction.advances + prediction.records
        claim = Claim(1.0, "states only") if total == bound else Claim(total / bound, "states only")
        whole = Schedule(_OnlineOps(steps, self.slots, self.level, pending, withdrawn))
        self._finished = Plan(loop, self.memory, self.planner, claim, prediction, whole)
        return Schedule(_Rest(tuple(kept), tuple(used), steps, self.slots, self.level, pending))


@dataclass(frozen=True)
class _Rest:
    """The ops after the sweep: turn, then reverse the segments between the used states."""

    kept: tuple[int, ...]
    used: tuple[int, ...]
    steps: int
    slots: int
    level: str
    pending: bool

    def __iter__(self) -> Iterator[Op]:
        for state in sorted(set(self.kept) - set(self.used)):
            yield Drop(state, self.level)
        stop = self.steps
        if self.pending:
            yield Record(stop - 1, stop)
        yield Turn()
        if self.pending:
            yield Pullback(stop, stop - 1)
            stop -= 1
        for j in reversed(range(len(self.used))):
            start = self.used[j]
            yield Fetch(start, self.level)
            yield from reverse(start, stop, self.slots - j, 1, self.level, kept=True)
            stop = start


@dataclass(frozen=True)
class _OnlineOps:
    """All ops of a finished run, generated by driving it again."""

    steps: int
    slots: int
    level: str
    pending: bool
    withdrawn: bool = False

    def __iter__(self) -> Iterator[Op]:
        driver = Driver(Loop(None), Memory(levels=[Level(self.level, slots=self.slots)]), self.slots, "")
        for _ in range(self.steps - self.pending):
            yield from driver.advance()
        if self.withdrawn:
            yield from driver.advance()[:-1]  # the drop and keep before the unit that does not count
            yield from driver.withdrawn()
        else:
            yield from driver.last() if self.pending else driver.ended()


def _predict(loop: Loop, slots: int, kept: int, used: list[int], pending: bool) -> Prediction:
    """The cost of a run that keeps `kept` states in the sweep and reverses from the `used` ones."""
    n = loop.units
    end = n - 1 if pending else n
    count = end + reversal_advances(used, end, slots)
    # During the sweep: the kept states, and a step's input and output.
    sizes = [loop.state, (kept + 2) * loop.state if end else 0]
    if pending:
        sizes.append((len(used) + 2) * loop.state + loop.tape)
    for j, (start, stop) in enumerate(pairwise([*used, end])):
        # After the turn: the states kept before and inside the segment, a step's input and output, and a cotangent.
        sizes.append((j + min(slots - j, stop - start - 1) + 3) * loop.state + loop.tape)
    seconds = count * loop.forward + n * (loop.record + loop.backward + loop.per_range)
    return Prediction(count, n, max(sizes), seconds)

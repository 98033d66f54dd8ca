"""Online: a loop whose length is not known. A driver is told after each unit whether another follows.

In: slots. Out: a `Driver`: its ops keep a good set of states while the loop runs, and reverse the loop from those held
when it ends, optimally for them. Afterwards `driver.plan()` is an ordinary plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

from remat.errors import PlannerError
from remat.planners.bounds import states_only
from remat.planners.dp.online_placement import Sweep, best_of_held, reversal_advances
from remat.planners.plan import Claim, Plan, Prediction
from remat.planners.planner import Planner, infeasible
from remat.problem import Level, Loop, Memory
from remat.schedule import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Schedule, Turn
from remat.schedule.revolve import reverse

__all__ = ["Driver", "Online"]


MOST_KNOWN = 1_000_000  # steps of a known length that are driven through at the most


@dataclass(frozen=True)
class Online(Planner[Loop]):
    """Keeps states as an unknown end may come at any time. A known length is planned as if it were not."""

    name: ClassVar[str] = "online"
    summary: ClassVar[str] = "length not known: states kept as the loop runs, then an optimal reversal of those held"
    problem_type: ClassVar[type[Loop]] = Loop

    def refuses(self, problem: Loop, memory: Memory) -> str | None:
        """The reason, unless the memory is one level without costs, and a known length is short."""
        if len(memory.levels) > 1 or not memory.device.free:
            return "it plans one level without read and write costs"
        if problem.steps is not None and problem.steps > MOST_KNOWN:
            return f"it goes step by step, and {problem.steps} steps are known: the binomial planner takes them at once"
        return None

    def plan(self, problem: Loop, memory: Memory) -> Plan:
        """A plan to be driven; if the length is known after all, the plan that the driver ends with."""
        slots = _slots(problem, memory.device)
        start = partial(Driver, problem, memory, slots)
        if problem.steps is None:
            return Plan(problem, memory, self.name, Claim(None), None, starter=start)
        driver = start()
        for _ in range(problem.steps - 1):
            driver.advance()
        if problem.steps:
            driver.last()
        else:
            driver.ended()
        return driver.plan()


class Driver:
    """Drives one run of a loop of unknown length.

    `advance()` gives the ops for the next unit, when it is not the last. `last()` gives the rest of the schedule when
    the next unit is the last one, `ended()` when there is no next unit. A loop that finds its end only by running the
    last unit can hold back each unit until the next is known to follow; if it cannot, it calls `ended()` and pays for
    a second run of the units since the last kept state.

    >>> from remat import Loop, plan
    >>> driver = plan(Loop(None), slots=2).start()
    >>> [str(op) for op in driver.advance()]
    ["Keep(state=0, level='ram')", 'Advance(start=0, stop=1)']
    >>> driver.last()
    Schedule('record 1 2; turn; pullback 2 1; fetch 0 ram; drop 0 ram; record 0 1; pullback 1 0')
    >>> driver.plan().forward_steps
    3
    """

    def __init__(self, loop: Loop, memory: Memory, slots: int) -> None:
        self.problem, self.memory, self.slots = loop, memory, slots
        self.level = memory.device.name
        self.at = 0
        self._sweep = Sweep(slots)
        self._finished: Plan | None = None

    def __repr__(self) -> str:
        return f"Driver({self.at} units run, {len(self._sweep.held)} of {self.slots} slots in use)"

    def advance(self) -> tuple[Op, ...]:
        """The ops that run the next unit, which is not the last: drop and keep if need be, then advance."""
        self._check_running()
        dropped, keep = self._sweep.pass_over(self.at)
        ops: list[Op] = [] if dropped is None else [Drop(dropped, self.level)]
        if keep:
            ops.append(Keep(self.at, self.level))
        ops.append(Advance(self.at, self.at + 1))
        self.at += 1
        return tuple(ops)

    def last(self) -> Schedule:
        """The rest of the schedule, when the next unit is the last one."""
        self._check_running()
        return self._finish(self.at + 1, pending=True)

    def ended(self) -> Schedule:
        """The rest of the schedule, when the loop has ended with the unit that ran last."""
        self._check_running()
        return self._finish(self.at, pending=False)

    def plan(self) -> Plan:
        """The whole plan, once the loop ended."""
        if self._finished is None:
            raise PlannerError(f"the loop has not ended: {self.at} units have run; call last() or ended() first")
        return self._finished

    def _check_running(self) -> None:
        if self._finished is not None:
            raise PlannerError("the loop has ended: take a fresh driver from plan.start() for the next one")

    def _finish(self, steps: int, *, pending: bool) -> Schedule:
        end = steps - 1 if pending else steps
        held = self._sweep.held
        loop = self.problem.with_steps(steps)
        bound = states_only(steps, self.slots)
        used, prediction = held, _predict(loop, self.slots, len(held), held, pending)
        if prediction.advances + prediction.records > bound:  # not proved optimal: some may be better dropped
            used = best_of_held(held, end, self.slots)
            prediction = _predict(loop, self.slots, len(held), used, pending)
        total = prediction.advances + prediction.records
        claim = Claim(1.0, "states only") if total == bound else Claim(total / bound, "states only")
        whole = Schedule(_OnlineOps(steps, self.slots, self.level, pending))
        self._finished = Plan(loop, self.memory, Online.name, claim, prediction, whole)
        return Schedule(_Rest(tuple(held), tuple(used), steps, self.slots, self.level, pending))


@dataclass(frozen=True)
class _Rest:
    """The ops after the sweep: turn, and reverse the segments between the states used."""

    held: tuple[int, ...]
    used: tuple[int, ...]
    steps: int
    slots: int
    level: str
    pending: bool

    def __iter__(self) -> Iterator[Op]:
        for state in sorted(set(self.held) - set(self.used)):
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
    """All ops of a finished run, by driving it again."""

    steps: int
    slots: int
    level: str
    pending: bool

    def __iter__(self) -> Iterator[Op]:
        driver = Driver(Loop(None), Memory(levels=[Level(self.level, slots=self.slots)]), self.slots)
        for _ in range(self.steps - self.pending):
            yield from driver.advance()
        yield from driver.last() if self.pending else driver.ended()


def _predict(loop: Loop, slots: int, held: int, used: list[int], pending: bool) -> Prediction:
    n = loop.units
    end = n - 1 if pending else n
    count = end + reversal_advances(used, end, slots)
    sizes = [
        loop.state,
        (held + 2) * loop.state if end else 0,
    ]  # the sweep: a step's input and output beside the held
    if pending:
        sizes.append((len(used) + 2) * loop.state + loop.tape)
    for j, (start, stop) in enumerate(pairwise([*used, end])):
        # After the turn: the kept states left of and inside the segment, a step's input and output, and a cotangent.
        sizes.append((j + min(slots - j, stop - start - 1) + 3) * loop.state + loop.tape)
    seconds = count * loop.forward + n * (loop.record + loop.backward + loop.per_range)
    return Prediction(count, n, max(sizes), seconds)


def _slots(loop: Loop, level: Level) -> int:
    """States that fit beside the working set; a loop of unknown length needs one at the least."""
    if level.slots is not None:
        if level.slots < 1 and (loop.steps is None or loop.steps > 1):
            raise infeasible(loop, level, 1, "the initial state is kept")
        return level.slots
    if level.capacity is None:
        raise PlannerError("the online planner needs a limit: give the level a capacity or slots")
    slots = (level.capacity - loop.tape) // loop.state - 3
    if slots < 1:
        raise infeasible(loop, level, 4 * loop.state + loop.tape, "a working set of 4 states and a tape")
    return slots

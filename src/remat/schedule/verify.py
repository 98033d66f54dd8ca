"""Is a schedule legal? If not: the first broken rule, where, what was live, and what to do.

`verify` takes ops (a schedule or any iterable), a problem and a memory, and returns a `Verdict`. It streams: checking a
million-step schedule takes memory only for what is live at once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from remat.errors import IllegalError, ScheduleError
from remat.ops import OPS_BY_TYPE, Op
from remat.problem import Memory, Problem
from remat.problem.problem_kinds import is_problem
from remat.schedule.chain_machine import machine_for
from remat.schedule.graph_machine import GraphMachine
from remat.schedule.graph_rules import GRAPH_BEFORE, GRAPH_END, OTHER_KIND
from remat.schedule.machine import Machine
from remat.schedule.notation import format_op
from remat.schedule.rules import BEFORE, RULES, Rule, over_capacity, unfinished

__all__ = ["Verdict", "check_order", "run_legally", "verify"]

_CAPACITY = next(rule for rule in RULES if rule.check is over_capacity)
_END = next(rule for rule in RULES if rule.check is unfinished)


@dataclass(frozen=True)
class Verdict:
    """Legal, or the first broken rule; as a bool, whether the schedule is legal.

    >>> from remat import Loop, Memory, Schedule
    >>> print(verify(Schedule.parse("record 0 1"), Loop(1), Memory(slots=1)))
    illegal at the end, rule R10 (at the end all is pulled back and nothing is held): the schedule ends before turn.
    Live: working state 1, kept none, tapes 0..0. Hint: go on until unit 0 is pulled back, and drop what is kept.
    """

    legal: bool
    rule: int | None = None
    title: str = ""
    index: int | None = None
    op: Op | None = None
    fact: str = ""
    live: str = ""
    hint: str = ""

    def __bool__(self) -> bool:
        return self.legal

    def __str__(self) -> str:
        if self.legal:
            return "legal"
        where = "at the end" if self.op is None else f"at op {self.index} ({format_op(self.op)})"
        return f"illegal {where}, rule R{self.rule} ({self.title}): {self.fact}.\nLive: {self.live}. Hint: {self.hint}."


class _Broken(Exception):
    def __init__(self, verdict: Verdict) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


def verify(schedule: Iterable[Op], problem: Problem, memory: Memory | int | str) -> Verdict:
    """Check that `schedule` reverses `problem` legally inside `memory`.

    Args:
        schedule: The ops.
        problem: What they reverse.
        memory: What they may hold: bytes, text, or a `Memory`.

    Returns:
        A verdict, true if the schedule is legal; printed, it says what is wrong, where, what was live, and what to do.

    Example:
        >>> from remat import Loop, Memory, Schedule
        >>> bool(verify(Schedule.parse("record 0 1; turn; pullback 1 0"), Loop(1), Memory(slots=0)))
        True
    """
    check_order(schedule, "verify(schedule, problem, memory)")
    try:
        for _ in _steps(machine_for(problem, Memory.of(memory)), schedule, capacities=True):
            pass
    except _Broken as broken:
        return broken.verdict
    return Verdict(True)


def check_order(schedule: object, call: str) -> None:
    """Raise a ScheduleError with the call that was meant for a problem in the place of the schedule."""
    if is_problem(schedule):
        raise ScheduleError(f"the schedule comes before its problem: write remat.{call}")


def run_legally(machine: Machine, schedule: Iterable[Op]) -> Iterator[tuple[int, Op]]:
    """Apply each op to the machine and yield it; a broken rule raises an IllegalError."""
    try:
        yield from _steps(machine, schedule, capacities=False)
    except _Broken as broken:
        raise IllegalError(str(broken)) from None


def _steps(machine: Machine, schedule: Iterable[Op], *, capacities: bool) -> Iterator[tuple[int, Op]]:
    index, apply = -1, machine.apply
    before, end = (GRAPH_BEFORE, GRAPH_END) if isinstance(machine, GraphMachine) else (BEFORE, _END)
    for index, op in enumerate(schedule):
        rules = before.get(type(op))
        if rules is None:
            if type(op) in OPS_BY_TYPE:
                raise _broken(OTHER_KIND, OTHER_KIND.check(machine, op) or "", machine, index, op)
            raise ScheduleError(f"item {index} of the schedule is {str(op)[:60]!r}, which is not an op")
        for rule in rules:
            fact = rule.check(machine, op)
            if fact is not None:
                raise _broken(rule, fact, machine, index, op)
        apply(op)
        if capacities:
            fact = over_capacity(machine)
            if fact is not None:
                raise _broken(_CAPACITY, fact, machine, index, op)
        yield index, op
    fact = end.check(machine, None)
    if fact is not None:
        raise _broken(end, fact, machine, index + 1, None)


def _broken(rule: Rule, fact: str, machine: Machine, index: int, op: Op | None) -> _Broken:
    live = machine.describe()
    return _Broken(Verdict(False, rule.number, rule.title, index, op, fact, live, rule.hint))

"""The plans of the loops in a segment, which its recomputations reuse.

The rule: what a loop saves depends on its plan, and a plan for a budget in bytes depends on measured times and on free
memory. A recomputation must save what the first run saved, so each loop gets the plan that it had in the first run, by
its number among the loops of the segment. Loops that run while a step is measured do not count, since a recomputation
does not measure. The cost: one context variable per segment.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import NamedTuple

from remat.execute.recomputation import variable_set
from remat.planners.plan import Plan

__all__ = ["LoggedPlan", "PlanLog", "next_plan", "plans_not_logged"]


class PlanLog:
    """The plans of one segment, by the number of the loop; None until a plan is known."""

    __slots__ = ("_plans", "_taken")

    def __init__(self, plans: list[Plan | None] | None = None) -> None:
        self._plans: list[Plan | None] = [] if plans is None else plans
        self._taken = 0

    def first_run(self) -> AbstractContextManager[None]:
        """A context in which plans are logged."""
        return variable_set(_log, self)

    def again(self) -> AbstractContextManager[None]:
        """A context in which the loops get the logged plans, in the same order."""
        return variable_set(_log, PlanLog(self._plans))

    def take(self) -> "LoggedPlan":
        """The entry of the next loop."""
        self._taken += 1
        if len(self._plans) < self._taken:
            self._plans.append(None)
        return LoggedPlan(self._plans, self._taken - 1)


class LoggedPlan(NamedTuple):
    """The entry of one loop in a log."""

    plans: list[Plan | None]
    number: int

    def get(self) -> Plan | None:
        """The plan that the loop had; None in its first run."""
        return self.plans[self.number]

    def put(self, plan: Plan) -> None:
        """Log the plan."""
        self.plans[self.number] = plan


_log: ContextVar[PlanLog | None] = ContextVar("plan_log", default=None)


def next_plan() -> LoggedPlan:
    """The log entry of a loop that begins; outside segments, an entry of its own."""
    log = _log.get()
    return LoggedPlan([None], 0) if log is None else log.take()


def plans_not_logged() -> AbstractContextManager[None]:
    """A context whose loops are not part of a segment: for steps that run only to be measured."""
    return variable_set(_log, None)

"""The plans of the loops in a segment: those of its first run are those of its recomputations.

The rule: what a loop saves depends on its plan, and a plan for a budget in bytes depends on measured times and on the
memory that is free. A recomputation must save what the first run saved, so each loop gets the plan again that it had,
by its number among the loops of the segment. Those that run while a step is measured do not count, since a
recomputation does not measure. The cost: a context variable for a segment.
"""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import NamedTuple

from remat.execute.recomputation import variable_set
from remat.planners.plan import Plan

__all__ = ["LoggedPlan", "PlanLog", "next_plan", "plans_not_logged"]


class PlanLog:
    """The plans of one segment, by the number of the loop; None as long as it is not known."""

    __slots__ = ("_plans", "_taken")

    def __init__(self, plans: list[Plan | None] | None = None) -> None:
        self._plans: list[Plan | None] = [] if plans is None else plans
        self._taken = 0

    def first_run(self) -> AbstractContextManager[None]:
        """A block in which plans are written down."""
        return variable_set(_log, self)

    def again(self) -> AbstractContextManager[None]:
        """A block in which the loops get the plans that were written down, in the same order."""
        return variable_set(_log, PlanLog(self._plans))

    def take(self) -> "LoggedPlan":
        """The place of the next loop."""
        self._taken += 1
        if len(self._plans) < self._taken:
            self._plans.append(None)
        return LoggedPlan(self._plans, self._taken - 1)


class LoggedPlan(NamedTuple):
    """The place of one plan in a log."""

    plans: list[Plan | None]
    number: int

    def get(self) -> Plan | None:
        """The plan that the loop had; None in its first run."""
        return self.plans[self.number]

    def put(self, plan: Plan) -> None:
        """Write the plan down."""
        self.plans[self.number] = plan


_log: ContextVar[PlanLog | None] = ContextVar("plan_log", default=None)


def next_plan() -> LoggedPlan:
    """The place of the plan of a loop that begins; one of its own outside of segments."""
    log = _log.get()
    return LoggedPlan([None], 0) if log is None else log.take()


def plans_not_logged() -> AbstractContextManager[None]:
    """A block whose loops are no part of a segment: steps are measured in it."""
    return variable_set(_log, None)

"""What the caller of a loop asks for, the same for all frameworks: a budget, when to compare, who hears of progress.

In: the keyword arguments of `remat.scan` and `remat.while_loop`. Out: a plan, once the loop's length is known and,
for a budget in bytes, its step is measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from remat.errors import InfeasibleError, PlannerError, ProblemError
from remat.execute import Progress
from remat.execute.guard import check_word
from remat.measure import Measured
from remat.planners import Auto, Plan, plan
from remat.problem import Loop, Memory
from remat.units import bytes_text

__all__ = ["Asked"]

# Bytes of bookkeeping: summaries, marks of random generators, Python's own; or an eighth of a smaller budget.
OWN = 256 * 1024


@dataclass(frozen=True)
class Asked:
    """A budget as memory, slots or a plan of one's own, and how to run."""

    memory: Memory | None = None
    plan: Plan | None = None
    check: str = "first"
    progress: Progress | None = None

    @classmethod
    def of(cls, memory: Any, slots: Any, plan: Any, check: Any, progress: Any) -> "Asked":
        """What the arguments mean; contradictions raise an error before anything is run."""
        if progress is not None and not callable(getattr(progress, "update", None)):
            raise ProblemError(f"progress must have a method update(done, total), and {progress!r:.60} has none")
        if plan is not None:
            if memory is not None or slots is not None:
                raise ProblemError("give a plan, or memory= or slots= to make one, not both")
            if not isinstance(plan, Plan):
                raise ProblemError(f"plan must be a Plan, such as remat.plan makes, not {plan!r:.60}")
            if len(plan.memory.levels) > 1:
                raise PlannerError(
                    f"the plan keeps states in several levels ({plan.memory}); loops run in one level yet"
                )
            return cls(None, plan, check_word(check), progress)
        if isinstance(memory, float):
            memory = _fraction_of_free(memory)
        chosen = Memory.of(memory, slots)
        if len(chosen.levels) > 1 or not chosen.device.free:
            raise PlannerError(f"loops run in one level without read and write costs yet, and memory is {chosen}")
        return cls(chosen, None, check_word(check), progress)

    def check_slots(self, steps: int) -> None:
        """Raise now what a plan would raise, where no step must be measured for it."""
        if self.memory is None or self.memory.device.capacity is None:
            self.plan_for(steps, _no_measure)

    def plan_for(self, steps: int | None, measure: Callable[[], Measured]) -> Plan:
        """The plan for a loop of so many steps; `measure` is called if the budget is in bytes."""
        if self.plan is not None:
            if self.plan.problem.steps is None:
                raise ProblemError("the plan is for a loop of unknown length; make one for this length with remat.plan")
            if self.plan.problem.steps != steps:
                raise ProblemError(
                    f"the plan is for {self.plan.problem.steps} steps and the loop has {steps}; "
                    "make one with remat.plan(remat.Loop(steps), ...) for this length"
                )
            return self.plan
        assert self.memory is not None
        if self.memory.device.capacity is None:
            return _planned(Loop(steps), self.memory)
        return _within(measure(), steps, self.memory)


_planned = lru_cache(maxsize=64)(plan)


def _no_measure() -> Measured:
    raise AssertionError("a budget in slots needs no measuring")


def _within(measured: Measured, steps: int | None, memory: Memory) -> Plan:
    """The plan in what the memory leaves beside what every step allocates while it runs."""
    have = memory.device.capacity
    assert have is not None
    aside = measured.aside + min(OWN, have // 8)
    loop = measured.loop.with_steps(steps)
    # Planning takes some 40 bytes for each step and budget in an exact table, and some 200 for each budget in the
    # search for long loops: it must not dwarf the memory that it plans.
    planner = Auto(most=(steps or 0) * have / 100, fine=max(1000, min(Auto.fine, have // 1000)))
    try:
        found = _planned(loop, Memory(max(0, have - aside)), planner=planner)
    except InfeasibleError as error:
        need = error.minimum + measured.aside
        least = min(-(-need * 8 // 7) + 1, need + OWN)
        raise InfeasibleError(
            f"no plan fits {bytes_text(have)}: the smallest that works is {bytes_text(least, up=True)}. A state takes "
            f"{bytes_text(loop.state, up=True)}, a step's tape {bytes_text(loop.tape, up=True)}; "
            f"{bytes_text(aside, up=True)} are set aside for what a step allocates while it runs and for bookkeeping",
            least,
            "bytes",
        ) from None
    return found.because(
        f"{found.reason}; {bytes_text(aside, up=True)} of {bytes_text(have)} are set aside for what a step allocates "
        "while it runs and for bookkeeping"
    )


def _fraction_of_free(fraction: float) -> int:
    """So much of the memory that is free on this machine."""
    if not 0.0 < fraction <= 1.0:
        raise ProblemError(f"memory={fraction!r}: a fraction of what is free lies between 0 and 1")
    import os

    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        raise ProblemError("this system does not say how much memory is free: give memory= in bytes") from None
    return int(free * fraction)

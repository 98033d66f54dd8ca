"""Auto: picks the planner for a problem and a memory, and says why.

For a budget in slots it takes the planner of the literature: binomial (or levels, or online). For a budget in bytes it
takes the fitting plan with the least predicted time; keep-all is tried first, since it recomputes nothing.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from remat.errors import InfeasibleError
from remat.planners.dp.budget_grid import MOST_EXACT
from remat.planners.loop.binomial import Binomial
from remat.planners.loop.chunks import Chunks
from remat.planners.loop.keep_all import KeepAll
from remat.planners.loop.levels import Levels
from remat.planners.loop.mixed import Mixed
from remat.planners.loop.online import Online
from remat.planners.plan import Plan
from remat.planners.planner import Planner
from remat.problem import Loop, Memory

__all__ = ["Auto"]


@dataclass(frozen=True)
class Auto(Planner[Loop]):
    """Chooses among the other planners; the plan's `reason` says which and why.

    `most` and `fine` are those of `Mixed`: `most` bounds the additions for an exact plan of states and tapes, about a
    second's worth by default.
    """

    most: float = 1.2e9
    fine: int = MOST_EXACT

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "pick the best of the others for the problem and memory, and say why"
    problem_type: ClassVar[type[Loop]] = Loop

    def plan(self, problem: Loop, memory: Memory) -> Plan:
        """The best plan of the other planners, with the reason for the choice."""
        several = len(memory.levels) > 1 or not memory.device.free
        if problem.steps is None:
            Online().check(problem, memory)
            return (
                Online().plan(problem, memory).because("the length is not known; the finished plan says how good it is")
            )
        if several:
            return _fastest(problem, memory, [Levels()], Mixed(self.most, self.fine))
        if memory.device.slots is not None:
            plan = Binomial().plan(problem, memory)
            return plan.because("slots count states, and this is their best placement (mixed may hold tapes there too)")
        return _fastest(problem, memory, [], Mixed(self.most, self.fine))


def _fastest(loop: Loop, memory: Memory, planners: list[Planner[Loop]], mixed: Mixed) -> Plan:
    """The fastest plan: `planners` use all levels, the others the device alone."""
    device = Memory(levels=[memory.device])
    if memory.device.free:
        try:
            return KeepAll().plan(loop, device).because("all tapes fit, so nothing is recomputed", memory)
        except InfeasibleError:
            planners = [*planners, mixed, *([Chunks()] if loop.per_range else [])]
    plans: list[Plan] = []
    errors: list[InfeasibleError] = []
    for planner in planners:
        try:
            plans.append(planner.plan(loop, memory if isinstance(planner, Levels) else device))
        except InfeasibleError as error:
            errors.append(error.with_traceback(None))  # a traceback would keep the frames of all callers alive
    if not plans:
        raise min(errors, key=lambda error: error.minimum)
    best, *others = sorted(plans, key=lambda plan: plan.seconds)
    if len(memory.levels) > 1 and best.planner != Levels.name:
        best = replace(best, claim=replace(best.claim, within=f"{best.claim.within} in {memory.device.name} alone"))
    return best.because(_reason(best, others), memory)


def _reason(best: Plan, others: list[Plan]) -> str:
    if not others:
        return {
            Mixed.name: "states and tapes share the memory for the least recomputation",
            Levels.name: "states go to the level that makes the reversal fastest",
        }.get(best.planner, "it fits")
    compared = ", ".join(f"{plan.planner} would take {_ratio(plan.seconds, best.seconds)}" for plan in others)
    return f"the fastest that fits; {compared}"


def _ratio(seconds: float, least: float) -> str:
    return f"{seconds / least:.2f}x as long" if least and seconds > least else "as long"

"""The plan of a loop whose step has loops with budgets of their own.

In: a step, and how the loop around it is planned. Out: the step with its VJP, and the plan.

Rule: what an inner loop keeps is a residual of the step, and takes the budget of the outer loop about twice while it is
pulled back. If the outer loop does not fit its budget then, the inner loops are planned again within a third, a sixth,
... of it, or within the least that they need, until it fits. Cost: nothing if it fits at once, else one trace of the
step, and compiling its pullback, for each try.
"""

from collections.abc import Callable
from typing import TypeVar

from remat.errors import InfeasibleError
from remat.frameworks.jax.loops.residuals import Activity, StepVJP
from remat.frameworks.jax.loops.step_jaxpr import StepJaxpr
from remat.frameworks.jax.transforms.loop_budgets import limit_loops

__all__ = ["fit_step", "within_share"]

T = TypeVar("T")

PARTS = 3, 6, 12, 24, 48, 96


def fit_step(
    step: StepJaxpr, activity: Activity, planned: Callable[[StepVJP], T], capacity: int | None
) -> tuple[StepVJP, T]:
    """The step with its VJP, with smaller budgets for its inner loops if need be, and the plan for it."""
    step_vjp = StepVJP(step, activity)
    try:
        return step_vjp, planned(step_vjp)
    except InfeasibleError as error:
        if capacity is None or limit_loops(step.program, capacity) is step.program:
            raise
        infeasible = error
    for part in PARTS:
        program = limit_loops(step.program, capacity // part)
        try:
            step_vjp = StepVJP(StepJaxpr(program, step.n_consts, step.n_carry), activity)
            return step_vjp, planned(step_vjp)
        except InfeasibleError as error:
            infeasible = error
    raise infeasible


def within_share(planned: Callable[[int], T], capacity: int, share: int | None) -> T:
    """The plan within the share of a budget, or within the least of the budget that works."""
    if share is not None and share < capacity:
        try:
            return planned(share)
        except InfeasibleError as error:
            capacity = min(capacity, error.minimum)
    return planned(capacity)

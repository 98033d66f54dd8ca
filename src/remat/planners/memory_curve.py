"""The memory curve of a plan: what less memory would cost and what more would save, at some budgets around its own.

A `MemoryCurve` is computed from a plan (for a measured run also from its `StepCost` and the requested bytes) and
cached. Long loops get fewer points, and near-optimal instead of optimal plans, so that a curve takes at most seconds.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from remat.errors import InfeasibleError
from remat.measuring import StepCost
from remat.planners import Auto, Binomial, Mixed, Plan, Planner, Point
from remat.planners.chain.optimal_chain import OptimalChain
from remat.planners.chain.record_all import RecordAll
from remat.planners.loop.keep_all import keep_all_bytes
from remat.planners.measured_budget import plan_within
from remat.planners.sweeping import spread
from remat.problem import Chain, Level, Loop, Memory
from remat.progress import report_progress
from remat.units import LARGEST, bytes_text, count_text

__all__ = ["MemoryCurve", "has_memory_curve", "memory_curve_of", "memory_curve_without_planning"]

MOST_STAGES = 120  # planning more stages takes seconds if they differ
POINTS_OF_A_CHAIN = 16
MOST_STEPS_IN_LEVELS = 1000  # planning in several levels is slow
# For loops of up to this many steps: additions for an exact plan, budgets in the search, points of the curve.
EFFORT = ((5_000, 1.5e8, 2000, 16), (50_000, 0, 500, 10), (inf, 0, 200, 6))
POINTS_OF_A_RUN = 12
MOST_CACHED = 64

PlanIn = Callable[[int], Plan]  # plans the same problem in another budget


@dataclass(frozen=True)
class MemoryCurve:
    """Points from the least memory to the most, including the plan's own; `unit` is "bytes" or "slots"."""

    unit: str
    units: int
    points: tuple[Point, ...]
    chosen: Point  # the plan that the curve was computed for
    largest_factor: float  # the forward steps of the other plans are at most this factor over their lower bounds
    best_in_same_memory: Point | None = None  # "auto" in the same memory, if nothing is proved about the chosen plan

    def to_dict(self) -> dict[str, Any]:
        """The points as plain data."""
        return {"unit": self.unit, "points": [{**vars(point), "chosen": point is self.chosen} for point in self.points]}

    def text(self, budget: int) -> str:
        """A budget as text."""
        if self.unit == "bytes":
            return _rounded_bytes_text(budget)
        return f"{count_text(budget)} slot{'s' * (budget != 1)}"


_cache: dict[tuple[Any, ...], MemoryCurve] = {}


def has_memory_curve(plan: Plan, requested_bytes: int | None = None, step_cost: StepCost | None = None) -> bool:
    """Whether there are other budgets to compare a plan with, and planning for them takes at most seconds."""
    loop = plan.problem
    if isinstance(loop, Chain):
        return 2 <= loop.units <= MOST_STAGES
    if not isinstance(loop, Loop) or loop.steps is None or loop.units < 2:
        return False
    if requested_bytes is not None and step_cost is not None:
        return True
    if _in_several_levels(plan) and plan.problem.units > MOST_STEPS_IN_LEVELS:
        return False
    # If sizes are unknown, plans that store tapes cannot be compared by slots.
    sizes_unknown = (loop.state, loop.tape) == (1, 1)
    return plan.memory.device.slots is None or _budget_is_slots(plan) or not sizes_unknown


def memory_curve_of(
    plan: Plan, requested_bytes: int | None = None, step_cost: StepCost | None = None
) -> MemoryCurve | None:
    """The curve around a plan, from the cache if possible; None if `has_memory_curve` is False.

    For a measured run, `requested_bytes` is the budget that its caller requested and `step_cost` is what it was planned
    with. The budgets of the curve are then also requested budgets, which include a step's workspace and bookkeeping.
    """
    if not has_memory_curve(plan, requested_bytes, step_cost):
        return None
    key = _cache_key(plan, requested_bytes, step_cost)
    if key not in _cache:
        curve = _computed(plan, requested_bytes, step_cost)
        if len(_cache) >= MOST_CACHED:
            _cache.pop(next(iter(_cache)), None)
        _cache[key] = curve
    return _cache[key]


def memory_curve_without_planning(
    plan: Plan, requested_bytes: int | None = None, step_cost: StepCost | None = None
) -> MemoryCurve | None:
    """The curve if a formula gives the forward steps in each budget; None otherwise, even if a curve is cached.

    So a report does not depend on reports made before it. The formula is that of binomial checkpointing (Griewank &
    Walther 2000), for budgets in slots of one level.
    """
    closed_form = plan.planner == Binomial.name and _budget_is_slots(plan) and not _in_several_levels(plan)
    if closed_form and (requested_bytes is None or step_cost is None):
        return memory_curve_of(plan, requested_bytes, step_cost)
    return None


def _cache_key(plan: Plan, requested_bytes: int | None, step_cost: StepCost | None) -> tuple[Any, ...]:
    return plan.problem, plan.memory, plan.planner, plan.claim, plan.prediction, requested_bytes, step_cost


def _computed(plan: Plan, requested_bytes: int | None, step_cost: StepCost | None) -> MemoryCurve:
    loop, device = plan.problem, plan.memory.device
    if requested_bytes is not None and step_cost is not None:
        plan_in = _plan_in_request(step_cost, loop.units)
        ends = _requestable_budgets(plan, requested_bytes, plan_in)
        return _curve_around(plan, requested_bytes, plan_in, ends, POINTS_OF_A_RUN)
    if isinstance(loop, Chain):
        most = RecordAll().plan(loop, Memory(LARGEST)).peak
        budget = min(plan.peak, most) if device.capacity is None else device.capacity
        plan_in = _plan_in(OptimalChain(), plan, "capacity")
        return _curve_around(plan, budget, plan_in, (_least_budget(plan_in), max(most, 1)), POINTS_OF_A_CHAIN)
    planner, points = _planner_and_points(plan)
    if _budget_is_slots(plan):
        assert device.slots is not None
        curve = _curve_around(plan, device.slots, _plan_in(planner, plan, "slots"), (1, loop.units), points)
        return replace(curve, unit="slots")
    plan_in = _plan_in(planner, plan, "capacity")
    most = max(keep_all_bytes(loop), 1)
    budget = min(plan.peak, most) if device.capacity is None else device.capacity
    return _curve_around(plan, budget, plan_in, (_least_budget(plan_in), most), points)


def _budget_is_slots(plan: Plan) -> bool:
    return plan.memory.device.slots is not None and plan.planner in (Binomial.name, Mixed.name)


def _in_several_levels(plan: Plan) -> bool:
    return len(plan.memory.levels) > 1 or not plan.memory.device.free


def _curve_around(plan: Plan, own: int, plan_in: PlanIn, ends: tuple[int, int], points: int) -> MemoryCurve:
    """The curve through plans at budgets between the ends, and the plan itself at its own budget."""
    by_budget = {own: Point.of(own, plan)}
    factors: list[float] = []
    budgets = [budget for budget in _budgets(*ends, points, own) if budget != own]
    for done, budget in enumerate(budgets):
        report_progress(done, len(budgets))
        try:
            other = plan_in(budget)
        except InfeasibleError:
            continue
        factors.append(other.claim.factor or inf)
        by_budget[budget] = Point.of(budget, other)
    best = None
    if plan.claim.factor is None:
        with suppress(InfeasibleError):
            best = Point.of(own, plan_in(own))
    ordered = tuple(by_budget[budget] for budget in sorted(by_budget))
    return MemoryCurve("bytes", plan.problem.units, ordered, by_budget[own], max(factors, default=1.0), best)


def _requestable_budgets(plan: Plan, requested_bytes: int, plan_in: PlanIn) -> tuple[int, int]:
    """The least budget that a caller can request, and a budget in which nothing is recomputed."""
    least = _least_budget(plan_in)
    most = max(requested_bytes, keep_all_bytes(plan.problem))
    while plan_in(most).recomputed:
        most += most // 8 + 1
    return least, most


def _least_budget(plan_in: PlanIn) -> int:
    try:
        plan_in(0)
    except InfeasibleError as error:
        return max(1, error.minimum)
    return 1


def _plan_in(planner: Planner[Any], plan: Plan, unit: str) -> PlanIn:
    """A function that plans the same problem with another budget for the device and the same other levels."""

    def plan_in(budget: int) -> Plan:
        device = plan.memory.device
        sizes = {"slots": None, "capacity": None, unit: budget}
        first = Level(device.name, **sizes, read=device.read, write=device.write)
        return planner.plan(plan.problem, Memory(levels=[first, *plan.memory.levels[1:]]))

    return plan_in


def _plan_in_request(step_cost: StepCost, steps: int) -> PlanIn:
    return lambda budget: plan_within(step_cost, steps, Memory(budget))


def _rounded_bytes_text(size: int) -> str:
    """A size rounded up to three digits, which is enough to choose a budget."""
    number, unit = bytes_text(size, up=True).split()
    value = float(number)
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{ceil(round(value * 10**digits, 6)) / 10**digits:g} {unit}"


def _planner_and_points(plan: Plan) -> tuple[Planner[Any], int]:
    """A planner that is fast enough for the length of the loop, and the number of points to plan."""
    if _in_several_levels(plan):
        return Auto(most=0, fine=500), 6
    if _budget_is_slots(plan) and plan.planner == Binomial.name:
        return Binomial(), 24
    for steps, most, fine, points in EFFORT:
        if plan.problem.units <= steps:
            return Mixed(most, fine) if _budget_is_slots(plan) else Auto(most, fine), points
    raise AssertionError("the last row of EFFORT is for every length")


def _budgets(least: int, most: int, points: int, own: int) -> list[int]:
    """Budgets from the least to the most, and some close to the plan's own."""
    near = {int(own * factor) for factor in (0.5, 0.75, 1.25, 1.5, 2)} if points >= 10 else {2 * own}
    return sorted({*spread(least, most, points), *(budget for budget in near if least <= budget <= most)})

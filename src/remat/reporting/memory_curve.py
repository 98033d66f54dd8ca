"""The trade-off of a plan: what less and more memory would cost and buy, at a few budgets around the chosen one.

In: a plan. Out: points from the least memory to the most, the plan's own among them. Long loops get fewer points, and
plans that are close to the optimum instead of optimal ones, so that a report takes seconds.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from remat.errors import InfeasibleError
from remat.planners import Auto, Binomial, Mixed, Plan, Planner, Point
from remat.planners.loop.keep_all import keep_all_bytes
from remat.planners.sweeping import spread
from remat.problem import Level, Loop, Memory
from remat.progress import report_progress
from remat.units import bytes_text, count_text

__all__ = ["MemoryCurve", "PlanIn", "memory_curve_of"]

MOST_STEPS_IN_LEVELS = 1000  # planning in several levels takes long
# Up to so many steps: additions for an exact plan, budgets that are told apart, points.
QUICK = ((5_000, 1.5e8, 2000, 16), (50_000, 0, 500, 10), (inf, 0, 200, 6))

PlanIn = Callable[[int], Plan]


@dataclass(frozen=True)
class MemoryCurve:
    """Points from little memory to much, the plan's own among them; `unit` is "bytes" or "slots"."""

    unit: str
    units: int
    points: tuple[Point, ...]
    chosen: Point  # the plan that was made
    factor: float  # how far the other plans may be above the least forward steps of their class
    same: Point | None = None  # the best in the memory of a plan that was made by a rule, without a claim

    def to_dict(self) -> dict[str, Any]:
        """The points as plain data."""
        return {"unit": self.unit, "points": [{**vars(point), "chosen": point is self.chosen} for point in self.points]}

    def text(self, budget: int) -> str:
        """A budget in words."""
        if self.unit == "bytes":
            return _rough(budget)
        return f"{count_text(budget)} slot{'s' * (budget != 1)}"


def memory_curve_of(plan: Plan, asked: int | None = None, plan_in: PlanIn | None = None) -> MemoryCurve | None:
    """The trade-off around a plan for a loop; None where there is nothing to choose.

    Of a run that `asked` for so many bytes, `plan_in` makes the plan that another budget would get, with all that is
    set aside; budgets are then those that one asks for.
    """
    if not isinstance(plan.problem, Loop) or plan.problem.steps is None or plan.problem.units < 2:
        return None
    if asked is not None and plan_in is not None:
        return _around(plan, asked, plan_in, _asked_for(plan, asked, plan_in), 12)
    loop, device = plan.problem, plan.memory.device
    in_slots = device.slots is not None and plan.planner in (Binomial.name, Mixed.name)
    several = len(plan.memory.levels) > 1 or not device.free
    if (several and loop.units > MOST_STEPS_IN_LEVELS) or (
        device.slots is not None and not in_slots and (loop.state, loop.tape) == (1, 1)
    ):
        return None  # it would take long; or there are no sizes, and only bytes tell such plans apart
    planner, points = _planner(plan, in_slots, several)
    if in_slots:
        assert device.slots is not None
        found = _around(plan, device.slots, _with(planner, plan, in_slots=True), (1, loop.units), points)
        return replace(found, unit="slots")
    make = _with(planner, plan, in_slots=False)
    most = max(keep_all_bytes(loop), 1)
    budget = min(plan.peak, most) if device.capacity is None else device.capacity
    return _around(plan, budget, make, (_least(make), most), points)


def _around(plan: Plan, own: int, make: PlanIn, ends: tuple[int, int], points: int) -> MemoryCurve:
    """The plans at budgets between the ends, and the plan itself at its own."""
    found = {own: Point.of(own, plan)}
    factors: list[float] = []
    budgets = [budget for budget in _budgets(*ends, points, own) if budget != own]
    for done, budget in enumerate(budgets):
        report_progress(done, len(budgets))
        try:
            made = make(budget)
        except InfeasibleError:
            continue
        factors.append(made.claim.factor or inf)
        found[budget] = Point.of(budget, made)
    same = None
    if plan.claim.factor is None:
        with suppress(InfeasibleError):
            same = Point.of(own, make(own))
    curve = tuple(found[budget] for budget in sorted(found))
    return MemoryCurve("bytes", plan.problem.units, curve, found[own], max(factors, default=1.0), same)


def _asked_for(plan: Plan, asked: int, make: PlanIn) -> tuple[int, int]:
    """The least budget that one can ask for, and one in which nothing is recomputed."""
    least = _least(make)
    most = max(asked, keep_all_bytes(plan.problem))
    while make(most).recomputed:
        most += most // 8 + 1
    return least, most


def _least(make: PlanIn) -> int:
    try:
        make(0)
    except InfeasibleError as error:
        return max(1, error.minimum)
    return 1


def _with(planner: Planner[Any], plan: Plan, *, in_slots: bool) -> PlanIn:
    """How to plan the same loop in another budget of the device."""

    def make(budget: int) -> Plan:
        device = plan.memory.device
        size = {"slots": budget} if in_slots else {"capacity": budget}
        first = Level(device.name, **size, read=device.read, write=device.write)
        return planner.plan(plan.problem, Memory(levels=[first, *plan.memory.levels[1:]]))

    return make


def _rough(size: int) -> str:
    """A size rounded up to three digits in its unit: nobody needs more to choose a budget."""
    number, unit = bytes_text(size, up=True).split()
    value = float(number)
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{ceil(round(value * 10**digits, 6)) / 10**digits:g} {unit}"


def _planner(plan: Plan, in_slots: bool, several: bool) -> tuple[Planner[Any], int]:
    """A planner that is quick enough, and how many points it is asked for."""
    if several:
        return Auto(most=0, fine=500), 6
    if in_slots and plan.planner == Binomial.name:
        return Binomial(), 24
    for steps, most, fine, points in QUICK:
        if plan.problem.units <= steps:
            return Mixed(most, fine) if in_slots else Auto(most, fine), points
    raise AssertionError("some length is long enough")


def _budgets(least: int, most: int, points: int, own: int) -> list[int]:
    """Budgets from the least to the most, and some close to one's own."""
    near = {int(own * factor) for factor in (0.5, 0.75, 1.25, 1.5, 2)} if points >= 10 else {2 * own}
    return sorted({*spread(least, most, points), *(budget for budget in near if least <= budget <= most)})

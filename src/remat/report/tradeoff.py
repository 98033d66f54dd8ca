"""The trade-off of a plan: what less and more memory would cost and buy, at a few budgets around the chosen one.

In: a plan. Out: points from the least memory to the most, the plan's own among them. Long loops get fewer points, and
plans that are close to the optimum instead of optimal ones, so that a report takes seconds.
"""

from dataclasses import dataclass
from math import ceil, inf

from remat.errors import InfeasibleError
from remat.planners import Auto, Binomial, Mixed, Plan, Planner
from remat.planners.loop.keep_all import least_for_all
from remat.problem import Level, Memory
from remat.progress import tell
from remat.units import bytes_text, count_text

__all__ = ["Tradeoff", "TradeoffPoint", "tradeoff_of"]

MOST_STEPS_IN_LEVELS = 1000  # planning in several levels takes long


@dataclass(frozen=True)
class TradeoffPoint:
    """A budget in bytes or slots, and what the plan for it costs."""

    budget: int
    forward_steps: int
    seconds: float
    peak: int
    chosen: bool = False


@dataclass(frozen=True)
class Tradeoff:
    """Points from little memory to much; `unit` is "bytes" or "slots"."""

    unit: str
    units: int
    points: tuple[TradeoffPoint, ...]
    exact: bool  # whether every point is optimal in its class
    same: TradeoffPoint | None = None  # the best in the memory of a plan that was made by a rule, without a claim

    @property
    def chosen(self) -> TradeoffPoint:
        """The plan that was made."""
        return next(point for point in self.points if point.chosen)

    def text(self, budget: int) -> str:
        """A budget in words."""
        if self.unit == "bytes":
            return _rough(budget)
        return f"{count_text(budget)} slot{'s' * (budget != 1)}"


def tradeoff_of(plan: Plan) -> Tradeoff | None:
    """The trade-off around a plan for a loop; None where there is nothing to choose."""
    loop, device = plan.problem, plan.memory.device
    in_slots = device.slots is not None and plan.planner in (Binomial.name, Mixed.name)
    if device.slots is not None and not in_slots:  # ranges are free in slots: only bytes tell plans apart
        device = Level(device.name, plan.peak, read=device.read, write=device.write)
    budget = device.slots if in_slots else device.capacity
    several = len(plan.memory.levels) > 1 or not device.free
    if loop.steps is None or loop.units < 2 or (several and loop.units > MOST_STEPS_IN_LEVELS):
        return None
    planner, wanted = _planner(plan, in_slots, several)
    most = loop.units if in_slots else least_for_all(loop, Level("ram", 0))
    budget = min(most, plan.peak) if budget is None else budget
    least = 1 if in_slots else _least(planner, plan)
    own = TradeoffPoint(budget, plan.forward_steps, plan.seconds, plan.peak, chosen=True)
    found = {budget: own}
    budgets = [b for b in _spread(least, max(most, least), wanted, budget) if b != budget]
    for done, other in enumerate(budgets):
        tell(done, len(budgets))
        try:
            made = planner.plan(loop, _memory(plan.memory, other, in_slots))
        except InfeasibleError:
            continue
        found[other] = TradeoffPoint(other, made.forward_steps, made.seconds, made.peak)
    same = None
    if plan.claim.factor is None:
        made = planner.plan(loop, _memory(plan.memory, budget, in_slots))
        same = TradeoffPoint(budget, made.forward_steps, made.seconds, made.peak)
    exact = plan.planner == Binomial.name and in_slots
    points = tuple(found[b] for b in sorted(found))
    return Tradeoff("slots" if in_slots else "bytes", loop.units, points, exact, same)


def _rough(size: int) -> str:
    """A size rounded up to three digits in its unit: nobody needs more to choose a budget."""
    number, unit = bytes_text(size, up=True).split()
    value = float(number)
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{ceil(round(value * 10**digits, 6)) / 10**digits:g} {unit}"


def _planner(plan: Plan, in_slots: bool, several: bool) -> tuple[Planner, int]:
    """A quick planner, and how many points it is asked for."""
    if several:
        return Auto(most=0, fine=500), 6
    if in_slots and plan.planner == Binomial.name:
        return Binomial(), 24
    for steps, fine, points in ((5_000, 2000, 16), (50_000, 500, 10), (inf, 200, 6)):
        if plan.problem.units <= steps:
            return Mixed(0, fine) if in_slots else Auto(most=0, fine=fine), points
    raise AssertionError("some length is long enough")


def _least(planner: Planner, plan: Plan) -> int:
    try:
        planner.plan(plan.problem, _memory(plan.memory, 0, False))
    except InfeasibleError as error:
        return max(1, error.minimum)
    return 1


def _memory(memory: Memory, budget: int, in_slots: bool) -> Memory:
    device = memory.device
    size = {"slots": budget} if in_slots else {"capacity": budget}
    return Memory(levels=[Level(device.name, **size, read=device.read, write=device.write), *memory.levels[1:]])


def _spread(least: int, most: int, points: int, own: int) -> list[int]:
    """Budgets evenly spread in ratio from the least to the most, and some close to one's own."""
    ratio = (most / least) ** (1 / max(1, points - 1))
    spread = {least, most, *(int(least * ratio**i) for i in range(points))}
    near = {int(own * factor) for factor in (0.5, 0.75, 1.25, 1.5, 2)} if points >= 10 else {2 * own}
    return sorted(b for b in spread | near if least <= b <= most)

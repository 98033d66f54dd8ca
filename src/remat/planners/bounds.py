"""Lower bounds that no schedule can beat. A plan that is not proved optimal claims a factor over one of them."""

from math import comb

from remat.planners.dp.budget_grid import MOST_EXACT, on_grid
from remat.planners.dp.layer_bound import LayerBound
from remat.planners.dp.states_or_tapes import SubproblemSizes
from remat.planners.working_set import HeldBudget
from remat.problem import Level, Loop, Memory
from remat.schedule.revolve import advances

__all__ = ["anything_restarts", "level_seconds", "states_only", "states_or_tapes"]

MANY_LAYERS = 100  # forward steps per step beyond which the layer bound says no more than the simple bound


def states_only(steps: int, slots: int) -> int:
    """The least forward steps of any schedule that keeps at most `slots` states and stores no tape: n + p(n, s).

    >>> states_only(1000, 31)
    3439
    """
    return steps + advances(steps, slots)


def anything_restarts(steps: int, units: int) -> int:
    """A lower bound on the forward steps of any schedule that stores at most `units` states and tapes.

    It counts each of them as a tape that can be pulled back *and* restarted from; a real state or tape is at most that
    useful. The first is the initial state or the first tape, so `steps - 1` steps remain, with a free start and
    `units - 1` others. By the argument of `schedule.revolve`, E(r) = C(units+r, r) - 1 of these steps can be run at
    most r times each, and filling these layers in order gives r·n + r - C(units+r, r-1).

    >>> anything_restarts(1000, 31), anything_restarts(10, 9), anything_restarts(10, 1)
    (2440, 10, 46)
    """
    if steps <= 1 or units < 1:
        return steps
    remaining = steps - 1
    low, high = 0, 1
    while comb(units + high, high) - 1 < remaining:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if comb(units + middle, middle) - 1 < remaining else (low, middle)
    return 1 + high * remaining + high - comb(units + high, high - 1)


def states_or_tapes(loop: Loop, level: Level, fine: int = MOST_EXACT) -> int:
    """A lower bound on the forward steps of any schedule that keeps states and stores tapes in this level.

    It is the larger of the layer bound (see `dp.layer_bound`), on a grid of about `fine` budgets, and
    `anything_restarts`.

    >>> states_or_tapes(Loop(1000, tape=3), Level("ram", slots=31))
    2802
    """
    budget = HeldBudget.of(loop, level)
    sizes = SubproblemSizes(loop.state, loop.tape, loop.restartable, budget.early)
    smallest = min(loop.state, loop.tape)
    if loop.units <= 1 or smallest == 0:
        return loop.units
    simple = anything_restarts(loop.units, (budget.size + budget.early) // smallest)
    if simple > MANY_LAYERS * loop.units:
        return simple
    grid = on_grid(sizes, budget.size, up=False, fine=fine)
    if grid is None:
        return simple
    layers = LayerBound(*grid, loop.units)
    return max(simple, layers.bound(layers.whole)) if layers.feasible else simple


def level_seconds(loop: Loop, memory: Memory) -> float:
    """A lower bound on the seconds with states in several levels: all slots count as one level without costs."""
    n, slots = loop.units, 0
    for level in memory.levels:
        most = level.slots if level.slots is not None else None
        if level.capacity is not None:
            most = level.capacity // loop.state
        slots += n if most is None else most
    least = advances(n, min(slots, n)) if n > 1 else 0
    return least * loop.forward + n * (loop.record + loop.backward + loop.per_range)

"""Lower bounds: what no schedule can beat. Claims of plans that are not proved optimal are factors over these."""

from math import comb

from remat.planners.dp.budget_grid import MOST_EXACT, on_grid
from remat.planners.dp.layer_bound import LayerBound
from remat.planners.dp.states_or_tapes import SubproblemSizes
from remat.planners.working_set import HeldBudget
from remat.problem import Level, Loop, Memory
from remat.schedule.revolve import advances

__all__ = ["anything_restarts", "level_seconds", "states_only", "states_or_tapes"]

MANY_LAYERS = 100  # forward steps a step, from which on layers say no more than the simple bound


def states_only(steps: int, slots: int) -> int:
    """Forward steps of any schedule that keeps at most `slots` states and holds no tape: n + p(n, s).

    >>> states_only(1000, 31)
    3439
    """
    return steps + advances(steps, slots)


def anything_restarts(steps: int, units: int) -> int:
    """Forward steps of any schedule that stores `units` things, if each were a tape to pull back *and* to restart from.

    Things that are either state or tape can only be worse. The first of them is the initial state or the first tape, so
    `steps - 1` steps remain, with a free start and `units - 1` things: there E(r) = C(units+r, r) - 1 steps can be run
    at most r times each, by the argument of `schedule.revolve`, and filling these layers in order gives
    r·n + r - C(units+r, r-1).

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
    """Forward steps of any schedule that keeps states and stores tapes in one level of that size.

    By layers (see `dp.layer_bound`) on a grid of about `fine` budgets, or by `anything_restarts` if that says more.

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
    """Seconds of any schedule that keeps states in several levels: as if all slots were one level without costs."""
    n, slots = loop.units, 0
    for level in memory.levels:
        most = level.slots if level.slots is not None else None
        if level.capacity is not None:
            most = level.capacity // loop.state
        slots += n if most is None else most
    least = advances(n, min(slots, n)) if n > 1 else 0
    return least * loop.forward + n * (loop.record + loop.backward + loop.per_range)

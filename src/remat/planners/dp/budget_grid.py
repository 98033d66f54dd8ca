"""The budgets that can remain after storing some states and tapes: exact if they are few, otherwise on a grid."""

from remat.planners.dp.states_or_tapes import SubproblemSizes

__all__ = ["MOST_EXACT", "on_grid", "reachable_budgets"]

MOST_EXACT = 20_000
MOST_ON_GRID = 100_000


def reachable_budgets(sizes: SubproblemSizes, top: int, limit: int = MOST_EXACT) -> list[int] | None:
    """Every budget that can remain of `top` after storing states and tapes, or None if there are more than `limit`.

    >>> reachable_budgets(SubproblemSizes(state=2, tape=5, restartable=False, early=0), 9)
    [0, 1, 2, 3, 4, 5, 7, 9]
    """
    least = sizes.floor(False)
    small, large = sorted((sizes.state, sizes.tape))
    budgets: set[int] = set()
    for start in range(top, least - 1, -large):
        if start in budgets:
            break
        line = range(start, least - 1, -small) if small else (start,)
        if len(line) + len(budgets) > limit:
            return None
        budgets.update(line)
    return sorted(budgets)


def on_grid(
    sizes: SubproblemSizes, top: int, *, up: bool, fine: int = MOST_EXACT
) -> tuple[SubproblemSizes, int, list[int]] | None:
    """Sizes and budget in grid cells, and the budgets that can remain; exact if there are at most `fine` of them.

    With `up`, sizes are rounded up and the budget down, so that a schedule for the grid fits the true sizes. Without
    it, sizes are rounded down and the budget up, so that a bound for the grid is a bound for the true problem (None if
    that takes too many budgets).
    """
    exact = reachable_budgets(sizes, top, fine)
    if exact is not None:
        return sizes, top, exact
    # The smaller of state and tape should be a whole number of cells, as many as `fine` allows.
    total, smallest = top + sizes.early, min(sizes.state, sizes.tape)
    cell = -(-smallest // max(fine * smallest // total, 1))
    if total // cell > MOST_ON_GRID:
        if not up:
            return None
        cell = total // MOST_ON_GRID + 1

    def away(size: int) -> int:
        return -(-size // cell) if up else size // cell

    def towards(size: int) -> int:
        return size // cell if up else -(-size // cell)

    rounded = SubproblemSizes(away(sizes.state), away(sizes.tape), sizes.restartable, towards(sizes.early))
    budgets = reachable_budgets(rounded, towards(top), 2 * MOST_ON_GRID)
    return None if budgets is None else (rounded, towards(top), budgets)

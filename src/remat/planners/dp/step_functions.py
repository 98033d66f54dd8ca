"""Step functions of a budget: the least extra seconds of a part, for every budget at once and without rounding.

A function is three arrays: increasing budgets, the decreasing extra seconds from each budget on, and the moves that
reach them. Below the first budget nothing fits.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["StepFunction", "added", "lowest", "moved"]


class StepFunction(NamedTuple):
    """Budgets, extra seconds and moves, point by point."""

    budgets: "NDArray[np.int64]"
    extras: "NDArray[np.float64]"
    moves: "NDArray[np.int32]"

    def place(self, budget: int) -> int:
        """The index of the point that applies at `budget`; -1 if nothing fits."""
        return int(self.budgets.searchsorted(budget, "right")) - 1


def moved(function: StepFunction, bytes_more: int, least: int, extra: float, move: int) -> StepFunction | None:
    """`function` with each budget larger by `bytes_more` and at least `least`, and each extra larger by `extra`."""
    import numpy as np

    if not len(function.budgets):
        return None
    budgets = np.maximum(function.budgets + bytes_more, least)
    return StepFunction(budgets, function.extras + extra, np.full(len(budgets), move, np.int32))


def added(
    right: StepFunction, bytes_more: int, left: StepFunction, least: int, most: int, extra: float, move: int
) -> StepFunction | None:
    """right(m - bytes_more) + left(m) + extra, for budgets m from `least` to below `most`."""
    import numpy as np

    if not len(right.budgets) or not len(left.budgets):
        return None
    of_right = right.budgets + bytes_more
    start = max(int(of_right[0]), int(left.budgets[0]), least)
    if start >= most:
        return None
    between = [
        points[points.searchsorted(start, "right") : points.searchsorted(most)] for points in (of_right, left.budgets)
    ]
    budgets = np.concatenate([*between, np.array([start])])
    extras = right.extras[of_right.searchsorted(budgets, "right") - 1]
    extras = extras + left.extras[left.budgets.searchsorted(budgets, "right") - 1] + extra
    return StepFunction(budgets, extras, np.full(len(budgets), move, np.int32))


def lowest(candidates: Sequence[StepFunction]) -> StepFunction:
    """The minimum of several functions at every budget; without any, nothing fits in any budget."""
    import numpy as np

    if not candidates:
        return StepFunction(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int32))
    budgets, extras, moves = (np.concatenate(column) for column in zip(*candidates, strict=True))
    order = np.lexsort((extras, budgets))
    budgets, extras, moves = budgets[order], extras[order], moves[order]
    best = np.minimum.accumulate(extras)
    falls = np.empty(len(best), bool)
    falls[0] = True
    # A rounding error in a sum of seconds is not an improvement; no clock resolves a relative step of 1e-12.
    falls[1:] = best[1:] < best[:-1] - 1e-12 * (1.0 + best[:-1])
    return StepFunction(budgets[falls], extras[falls], moves[falls])

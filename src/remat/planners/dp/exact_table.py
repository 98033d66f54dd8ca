"""States or tapes, exactly: the two-table recurrence for A and B, over all step counts and reachable budgets.

With m the budget, σ and τ the bytes of a state and a tape, and X = B if tapes contain their step's output, else X = A:

    B(t, m) = min( min_{1≤y<t}  y + A(t-y, m) + B(y, m),                                      split
                   min_{1≤y<t}  y + X(t-y, m-τ) + B(y-1, m) )                                 tape
    A(t, m) = min( 1 + X(t-1, m-τ),                                                           hold
                   B(t, m-σ),                                                                 keep
                   min_{1≤y<t}  y + A(t-y, m-σ) + A(y, m),                                    split
                   min_{2≤y<t}  y + X(t-y, m-σ-τ) + A(y-1, m) )                               tape

with A(0, ·) = B(0, ·) = 0, A(1, m) = B(1, m) = 1, and infinite where m is below the least budget. Each term is the cost
of a schedule (`states_or_tapes` says which), so the value is reached. Sketch of why nothing is better: in a
*persistent* schedule, what is stored stays until its own part is reversed. The first thing stored after the start
divides the steps into those to its right, which are reversed first, and those to its left, where nothing is stored yet;
storing something on the left any earlier would only take memory from the right part. So the schedule matches one of the
terms, and its two parts are smaller problems of the same class. There is no full proof for all n: the values equal
exhaustive search wherever that was tried (tests/figures), and the plan's claim names the class.

A single table, as usually published (Gruslys et al. 2016), is not optimal if a tape is larger than a state, because it
does not distinguish whether the start of a part is already stored.

It takes O(n²·budgets) additions; for each step count, NumPy handles all budgets and split points at once.
"""

from typing import TYPE_CHECKING, Any

from remat.planners.dp.states_or_tapes import Move, Subproblem, SubproblemSizes
from remat.progress import report_progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.int32]

__all__ = ["ExactTable"]

_INFINITE = 2**29  # the sum of two fits in int32


class ExactTable:
    """The least forward steps for every subproblem up to `steps` and `budgets`, and the moves that reach them."""

    def __init__(self, sizes: SubproblemSizes, steps: int, budgets: list[int]) -> None:
        self.sizes = sizes
        self.place = {budget: i for i, budget in enumerate(budgets)}
        self._shift = {size: self._places(budgets, size) for size in _shifts(sizes)}
        after = _Half(self, budgets, steps, None)
        # If no extra bytes are free before the turn, one table serves both sides of the turn.
        before = after if sizes.early == 0 else _Half(self, budgets, steps, after)
        self._halves = (before, after)

    def choose(self, sub: Subproblem) -> Move:
        """A move of least forward steps."""
        return self._halves[sub.turned].choose(sub, self.place[sub.budget])

    def shifted(self, row: "Rows", size: int) -> "Rows":
        """`row` at budgets smaller by `size`; infinite where there is no such budget."""
        import numpy as np  # imported here to keep `import remat` fast

        places = self._shift[size]
        return np.where(places < 0, _INFINITE, row[places]).astype(np.int32)

    def _places(self, budgets: list[int], size: int) -> "NDArray[np.int64]":
        import numpy as np

        return np.array([self.place.get(budget - size, -1) for budget in budgets])


class _Half:
    """A and B before or after the turn. The part reversed first is on the same side; the left part is `after` it."""

    def __init__(self, table: ExactTable, budgets: list[int], steps: int, after: "_Half | None") -> None:
        import numpy as np

        sizes = self.sizes = table.sizes
        shape = (steps + 1, len(budgets))
        # right_*: the part reversed first, at budgets smaller by what is stored meanwhile.
        self.a, self.b, self.right_state, self.right_tape, self.right_both = (
            np.zeros(shape, np.int32) for _ in range(5)
        )
        # left_*[y] = y + A or B of y steps: the part reversed later, plus the y steps that first advance over it.
        self.left_a, self.left_b = (np.zeros(shape, np.int32) for _ in range(2))
        if after is not None:
            self.left_a, self.left_b = after.left_a, after.left_b
        closed = np.array(budgets) < sizes.floor(after is None)
        scratch = np.empty(shape, np.int32)
        for t in range(1, steps + 1):
            if t % 50 == 0:
                report_progress(t, steps)
            if t == 1:
                self.a[t] = self.b[t] = 1
            else:
                self._fill(table, t, scratch)
            self.a[t, closed] = self.b[t, closed] = _INFINITE
            rest = self.b[t] if sizes.restartable else self.a[t]
            self.right_state[t] = table.shifted(self.a[t], sizes.state)
            self.right_tape[t] = table.shifted(rest, sizes.tape)
            self.right_both[t] = table.shifted(rest, sizes.state + sizes.tape)
            if after is None:
                np.minimum(self.a[t] + t, _INFINITE, out=self.left_a[t])
                np.minimum(self.b[t] + t, _INFINITE, out=self.left_b[t])

    def _fill(self, table: ExactTable, t: int, scratch: "Rows") -> None:
        """Compute row t of A and B from the rows before it."""
        import numpy as np

        def best(right: "Rows", left: "Rows") -> "Rows":
            total = scratch[: len(right)]
            np.add(right[::-1], left, out=total)
            return np.asarray(total.min(axis=0))

        b = best(self.a[1:t], self.left_b[1:t])
        b = np.minimum(b, best(self.right_tape[1:t], self.left_b[: t - 1]) + 1)
        a = np.minimum(self.right_tape[t - 1] + 1, table.shifted(b, self.sizes.state))
        a = np.minimum(a, best(self.right_state[1:t], self.left_a[1:t]))
        if t > 2:
            a = np.minimum(a, best(self.right_both[1 : t - 1], self.left_a[1 : t - 1]) + 1)
        self.a[t], self.b[t] = np.minimum(a, _INFINITE), np.minimum(b, _INFINITE)

    def choose(self, sub: Subproblem, place: int) -> Move:
        """The move of least forward steps for one subproblem, found by searching its column again."""
        t = sub.steps

        def column(rows: "Rows", low: int, high: int) -> Any:
            return rows[low:high, place]

        def split(kind: str, right: "Rows", left: "Rows", y0: int, extra: int) -> tuple[int, Move]:
            totals = column(right, 1, t - y0 + 1)[::-1] + column(left, y0 - extra, t - extra) + extra
            at = int(totals.argmin())
            return int(totals[at]), Move(kind, y0 + at)

        if sub.kept:
            moves = [
                split("split", self.a, self.left_b, 1, 0),
                split("tape", self.right_tape, self.left_b, 1, 1),
            ]
            return min(moves)[1]
        moves = [(int(self.right_tape[t - 1, place]) + 1, Move("hold", 1))]
        moves.append(split("split", self.right_state, self.left_a, 1, 0))
        if t > 2:
            moves.append(split("tape", self.right_both, self.left_a, 2, 1))
        least = int(self.a[t, place])
        cost, move = min(moves)
        return move if cost <= least else Move("keep", 0)


def _shifts(sizes: SubproblemSizes) -> set[int]:
    return {sizes.state, sizes.tape, sizes.state + sizes.tape}

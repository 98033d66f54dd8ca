"""States or tapes for loops of any length: a lower bound on the forward steps, and the search that it guides.

Let N(r) be the most steps that can be reversed in a budget if none is run forward more than r times. It obeys the
recurrence of `exact_table` with (max, +) in place of (min, +): the steps left of y run once more than in their own
subproblem, so there they may run r-1 times. N(r) does not depend on n. If only states are stored, it is Revolve's
β(s, r-1), since here the recorded run counts too.

Lower bound: from any legal schedule, remove every step that is run more than r times. The others still form a legal
schedule (a removed step becomes the identity between two states, and its tape is not needed), for fewer steps in no
more memory, so there are at most N(r) of them. Hence at most N(1) steps run once, at most N(2) steps run at most twice,
and so on: no schedule costs less than filling these layers in order, N(1) steps run once, N(2)-N(1) steps twice, ….

Search: this bound is convex in the number of steps, so the sum of the bounds of two parts is least at a layer edge of
one of them. Splitting every subproblem at such an edge gives schedules close to the bound (the planner says how close),
for any n, without a table over n.
"""

from bisect import bisect_left
from collections.abc import Iterator
from math import inf

from remat.planners.dp.states_or_tapes import Move, Subproblem, SubproblemSizes
from remat.progress import report_progress

__all__ = ["LayerBound"]

INFINITE = 2**62


class LayerBound:
    """Layer edges for every reachable budget, for as many layers as the whole problem (`steps` in `top`) needs."""

    def __init__(self, sizes: SubproblemSizes, top: int, budgets: list[int], steps: int) -> None:
        self.sizes = sizes
        self.budgets = budgets
        self.place = {budget: i for i, budget in enumerate(budgets)}
        self._less = [
            tuple(self.place.get(budget - size, -1) for size in (sizes.state, sizes.tape, sizes.state + sizes.tape))
            for budget in budgets
        ]
        # rows[r][2 * kept + turned][place]: the most steps run at most r times; negative where a budget is too small.
        self.rows: list[list[list[int]]] = [[[0] * len(budgets) for _ in range(4)]]
        self._edges: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        # No subproblem runs a step more often than the whole schedule does, so none needs more layers.
        self.most: float = inf
        self.whole = Subproblem(False, False, steps, top)
        self.most = len(self.edges(self.whole)[0])

    @property
    def feasible(self) -> bool:
        """Whether the whole problem fits its budget."""
        return self.bound(self.whole) < INFINITE

    def bound(self, sub: Subproblem) -> int:
        """A lower bound on the forward steps of the subproblem; INFINITE if the budget is too small."""
        if sub.budget < self.sizes.floor(sub.turned) or sub.budget not in self.place:
            return INFINITE
        if sub.steps <= 1:
            return sub.steps
        edges, sums = self.edges(sub)
        r = bisect_left(edges, sub.steps)
        if r == len(edges):
            return INFINITE
        return sums[r - 1] + r * (sub.steps - edges[r - 1])

    def edges(self, sub: Subproblem) -> tuple[list[int], list[int]]:
        """Layer edges N(0), N(1), … up to the subproblem's steps, and the bound at each."""
        place = self.place.get(sub.budget)
        if place is None:
            return [0], [0]
        table = 2 * sub.kept + sub.turned
        edges, sums = self._edges.setdefault((table, place), ([0], [0]))
        while edges[-1] < sub.steps and len(edges) <= self.most:
            r = len(edges)
            while len(self.rows) <= r:
                self._next_row()
            edge = self.rows[r][table][place]
            if r > 3 and edge <= edges[-1] and not self._grows(sub):
                break
            sums.append(sums[-1] + r * (edge - edges[-1]))
            edges.append(edge)
        return edges, sums

    def choose(self, sub: Subproblem) -> Move:
        """The move with the least sum of bounds; of equals, the one that advances furthest (best in experiments)."""
        return min(self._moves(sub), key=lambda move: (self._promise(sub, move), -move.y, move.kind))

    def _promise(self, sub: Subproblem, move: Move) -> int:
        right, left = self.sizes.parts(sub, move)
        return move.y + self.bound(right) + (self.bound(left) if left else 0)

    def _moves(self, sub: Subproblem) -> Iterator[Move]:
        if not sub.kept:
            yield Move("hold", 1)
            yield Move("keep", 0)
        for kind in ("split", "tape"):
            first = 2 if kind == "tape" and not sub.kept else 1
            if sub.steps <= first:
                continue
            right, left = self.sizes.parts(sub, Move(kind, 2))
            right, left = right._replace(steps=sub.steps), (left or right)._replace(steps=sub.steps)
            recorded = 1 if kind == "tape" else 0  # the recorded step is one of the y, but not in the left part
            points = {first, sub.steps - 1}
            points.update(edge + recorded for edge in self.edges(left)[0])
            points.update(sub.steps - edge for edge in self.edges(right)[0])
            yield from (Move(kind, y) for y in points if first <= y < sub.steps)

    def _grows(self, sub: Subproblem) -> bool:
        """Whether N(r) keeps growing with r: it does if the start is stored or can be."""
        return sub.budget >= (0 if sub.kept else self.sizes.state)

    def _next_row(self) -> None:
        """Add the row for one more run, by the recurrence of `exact_table` with (max, +).

        Budgets ascend, so the values of this row for smaller budgets are already there. The left part comes from the
        previous row, since its steps were advanced over once.
        """
        report_progress(len(self.rows), None)
        sizes, previous = self.sizes, self.rows[-1]
        row: list[list[int]] = [[-INFINITE] * len(self.budgets) for _ in range(4)]
        for turned in (0, 1):
            a, b = row[turned], row[2 + turned]
            after_tape = b if sizes.restartable else a
            for i, budget in enumerate(self.budgets):
                if budget < sizes.floor(bool(turned)):
                    continue
                left_a, left_b = max(previous[1][i], 0), max(previous[3][i], 0)
                less_state, less_tape, less_both = self._less[i]
                most = 1
                if less_tape >= 0:  # hold
                    most = max(most, 1 + after_tape[less_tape])
                if less_state >= 0:  # keep, split
                    most = max(most, b[less_state], a[less_state] + left_a)
                if less_both >= 0:  # tape
                    most = max(most, after_tape[less_both] + 1 + left_a)
                a[i] = most
                most += left_b  # split, with the start stored
                if less_tape >= 0:  # tape
                    most = max(most, after_tape[less_tape] + 1 + left_b)
                b[i] = most
        self.rows.append(row)

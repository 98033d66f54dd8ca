"""Chains on a grid of budgets, for chains whose exact step functions would have too many points.

The recurrence U of `chain_steps` for tapes that hold their stage's input, over budgets in whole units. Sizes are
rounded up to units for a plan, which then fits; rounded down they give a lower bound: if sizes add up to no more than M
bytes, the sum of their whole units is no more than the whole units of M. A chain with tapes that do not hold their
input is planned as if they did, which is legal and takes no less memory; its bound is of schedules that do the same.

Seconds are single precision and beyond the fastest options, so that they are small. O(n³·budgets) additions by NumPy:
about 0.3 s for 100 stages and 500 budgets, 5 s for 339.
"""

from typing import TYPE_CHECKING

from remat.planners.dp.chain_parts import ChainCosts, Move, Part, TableInBudget
from remat.progress import report_progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ChainGrid"]

_INFINITE = 1e30  # two of them add up inside single precision
_BLOCK = 24  # split points at a time: enough for NumPy, few enough for the processor's cache


class ChainGrid:
    """The least extra seconds of every part at budgets of 0 to `most` units of `unit` bytes beside its first state."""

    def __init__(self, costs: ChainCosts, budget: int, units: int, *, down: bool = False) -> None:
        import numpy as np

        beside = max(0, budget - costs.states[0])
        self.costs, self.unit = costs, max(1, -(-beside // units))
        self.most = beside // self.unit
        self._down = down
        self._states = [self._rounded(size) for size in costs.states]
        self._forward = np.array(costs.forward, np.float32)
        n = costs.units
        # [s, t] is the extra of stages s..t-1 and the seconds of all stages before t: then a split is one addition.
        # Only s < t is ever touched, so half of the pages are never there.
        self._extra: NDArray[np.float32] = np.empty((n + 1, n + 1, self.most + 1), np.float32)
        self._solve()

    def seconds(self, budget: int | None = None) -> float:
        """The least seconds of the whole chain in `budget` units (default: all); inf where nothing fits."""
        n = self.costs.units
        budget = self.most if budget is None else budget
        extra = float(self._extra[0, n, budget]) - float(self._forward[n])
        return float("inf") if extra > _INFINITE / 2 else self.costs.least + extra

    def in_budget(self, budget: int) -> TableInBudget:
        """The table as one that plans in `budget` units beside the chain's input."""
        return TableInBudget(self, budget, owned=False)

    def choose(self, part: Part) -> Move:
        """The move of least seconds; the values are computed again, which is cheaper than to store all choices."""
        import numpy as np

        s, t, budget, owned = part
        if owned:
            budget -= self._states[s]
        best, move, forward = _INFINITE, None, self._forward
        for k, option in enumerate(self.costs.options[s]):
            rest = budget - self._rounded(option.tape + self.costs.states[s + 1])
            if budget >= self._option_least(s, t, k) and rest >= 0:
                value = option.extra + (0.0 if t == s + 1 else float(self._extra[s + 1, t, rest] - forward[t]))
                if value < best:
                    best, move = value, Move(k, Part(s + 1, t, rest, False) if t > s + 1 else None, None)
        end = min(t, self.costs.furthest[s] + 1)
        if end > s + 1:
            splits = np.arange(s + 1, end)
            rests = budget - np.array(self._states[s + 1 : end])
            right = np.where(rests >= 0, self._extra[splits, t, np.maximum(rests, 0)] - forward[t], _INFINITE)
            values = right + (self._extra[s, s + 1 : end, budget] - forward[s])
            j = int(values.argmin())
            if values[j] < best:
                at = s + 1 + j
                return Move(None, Part(at, t, budget, True), Part(s, at, budget, False))
        assert move is not None
        return move

    def _rounded(self, size: int) -> int:
        return size // self.unit if self._down else -(-size // self.unit)

    def _option_least(self, s: int, t: int, k: int) -> int:
        option = self.costs.options[s][k]
        return self._rounded(max(option.record_peak + self.costs.waiting(t), option.pullback_peak))

    def _solve(self) -> None:
        import numpy as np

        costs, forward, top = self.costs, self._forward, self.most + 1
        right = np.empty((costs.units + 1, top), np.float32)  # [j]: the extra of j..t-1 where state j is paid for
        sums = np.empty((_BLOCK, top), np.float32)
        for t in range(1, costs.units + 1):
            report_progress(t, costs.units)
            right[:t] = _INFINITE
            needed = 0
            for s in range(t - 1, -1, -1):
                extra = self._extra[s, t]
                extra[:] = _INFINITE
                least = self._rounded(costs.waiting(t) + max(costs.running[s], needed))
                needed = max(needed, costs.states[s] + costs.running[s])
                if least < top:
                    self._record(s, t, least, extra)
                    self._split(s, t, least, extra, right, sums)
                paid = self._states[s]
                if s and paid < top:
                    right[s, paid:] = extra[: top - paid]
                extra += forward[t]

    def _record(self, s: int, t: int, least: int, extra: "NDArray[np.float32]") -> None:
        import numpy as np

        for k, option in enumerate(self.costs.options[s]):
            used = self._rounded(option.tape + self.costs.states[s + 1])
            start = max(self._option_least(s, t, k), least, used)
            if start >= len(extra):
                continue
            if t == s + 1:
                np.minimum(extra[start:], np.float32(option.extra), out=extra[start:])
            else:
                rest = self._extra[s + 1, t, start - used : len(extra) - used]
                np.minimum(extra[start:], rest + np.float32(option.extra - self._forward[t]), out=extra[start:])

    def _split(
        self,
        s: int,
        t: int,
        least: int,
        extra: "NDArray[np.float32]",
        right: "NDArray[np.float32]",
        sums: "NDArray[np.float32]",
    ) -> None:
        """The splits of s..t-1. A split at j costs the seconds up to j at least: larger budgets are left out."""
        import numpy as np

        forward, j, stop, last = self._forward, s + 1, len(extra), min(t, self.costs.furthest[s] + 1)
        while j < last:
            stop = least + int(np.searchsorted(-extra[least:stop], -(forward[j] - forward[s])))
            if stop <= least:
                return
            end = min(j + _BLOCK, last)
            block = sums[: end - j, : stop - least]
            np.add(right[j:end, least:stop], self._extra[s, j:end, least:stop], out=block)
            np.minimum(extra[least:stop], block.min(axis=0) - forward[s], out=extra[least:stop])
            j = end

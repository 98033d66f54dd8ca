"""Chains on a grid of budgets, for chains whose exact step functions would have too many points.

This is the recurrence U of `chain_steps`, for tapes that hold their stage's input, over budgets in whole units. Sizes
rounded up to units give a plan that fits. Sizes rounded down give a lower bound: if sizes sum to at most M bytes, the
sum of their whole units is at most the whole units of M. A chain with tapes that do not hold their input is planned as
if they did, which is legal and never takes less memory; its bound then covers only schedules that do the same.

Seconds are in single precision and relative to the fastest options, which keeps them small. NumPy does O(n³·budgets)
additions: about 0.2 s for 100 stages and 500 budgets, 3 s for 339 stages.
"""

from typing import TYPE_CHECKING, TypeVar

from remat.planners.dp.chain_parts import ChainCosts, Move, Part, TableInBudget
from remat.progress import report_progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ChainGrid"]

_Bytes = TypeVar("_Bytes", int, "NDArray[np.int64]")

_INFINITE = 1e30  # the sum of two fits in single precision
# How many neighbouring stops, and how many splits, are computed at a time: enough to keep NumPy efficient, few enough
# for the processor's cache.
_STOPS = 8
_SPLITS = 24


class ChainGrid:
    """The least extra seconds of every part, at budgets of 0 to `most` units of `unit` bytes beside its first state."""

    def __init__(self, costs: ChainCosts, budget: int, units: int, *, down: bool = False) -> None:
        import numpy as np

        beside = max(0, budget - costs.states[0])
        self.costs, self.unit = costs, max(1, -(-beside // units))
        self.most = beside // self.unit
        self._down = down
        self._states = [self._rounded(size) for size in costs.states]
        self._forward = np.array(costs.forward, np.float32)
        n = costs.units
        # [s, t] is the extra of stages s..t-1 plus the forward seconds of all stages before t: a split is then one
        # addition. Only s ≤ t is ever touched, so half of the memory pages are never allocated.
        self._extra: NDArray[np.float32] = np.empty((n + 1, n + 1, self.most + 1), np.float32)
        self._solve()

    def seconds(self, budget: int | None = None) -> float:
        """The least seconds of the whole chain in `budget` units (default: all); inf if nothing fits."""
        n = self.costs.units
        budget = self.most if budget is None else budget
        extra = float(self._extra[0, n, budget]) - float(self._forward[n])
        return float("inf") if extra > _INFINITE / 2 else self.costs.least + extra

    def in_budget(self, budget: int) -> TableInBudget:
        """This table for a budget of `budget` units, without the chain's input."""
        return TableInBudget(self, budget, owned=False)

    def choose(self, part: Part) -> Move:
        """The move of least seconds, recomputed from the table, which is cheaper than storing every choice."""
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

    def _rounded(self, size: _Bytes) -> _Bytes:
        return size // self.unit if self._down else -(-size // self.unit)

    def _option_least(self, s: int, t: int, k: int) -> int:
        option = self.costs.options[s][k]
        return self._rounded(max(option.record_peak + self.costs.waiting(t), option.pullback_peak))

    def _solve(self) -> None:
        import numpy as np

        n, top = self.costs.units, self.most + 1
        paid = np.empty((_STOPS, n + 1, top), np.float32)  # [t, j]: the extra of j..t-1 if the budget includes state j
        sums = np.empty((_STOPS, _SPLITS, top), np.float32)
        for t in range(n + 1):
            self._extra[t, t] = self._forward[t]  # an empty part
        for first in range(1, n + 1, _STOPS):
            stops = range(first, min(first + _STOPS, n + 1))
            report_progress(stops[-1], n)
            self._solve_stops(stops, paid[: len(stops)], sums)

    def _solve_stops(self, stops: range, paid: "NDArray[np.float32]", sums: "NDArray[np.float32]") -> None:
        """Solve all parts that end at one of the stops; splits before the first are tried for all stops at once."""
        import numpy as np

        forward, top = self._forward, self.most + 1
        paid[:, : stops[-1]] = _INFINITE
        waiting = np.array([self.costs.waiting(t) for t in stops])
        leasts = self._leasts(stops, waiting)
        for s in range(stops[-1] - 1, -1, -1):
            skipped = max(0, s + 1 - stops[0])  # stops that do not come after s
            ends, rights, least = stops[skipped:], paid[skipped:], leasts[skipped:, s]
            extras = self._extra[s, ends[0] : ends[-1] + 1]
            extras[:] = _INFINITE
            self._record(s, ends, waiting[skipped:], least, extras)
            last = self.costs.furthest[s]
            self._split(s, range(s + 1, min(ends[0], last + 1)), int(least.min()), extras, rights, sums)
            own = self._states[s]
            for k, (t, start) in enumerate(zip(ends, least.tolist(), strict=True)):
                extra = extras[k]
                extra[:start] = _INFINITE
                if own < top:
                    rights[k, s, own:] = extra[: top - own]
                extra += forward[t]
                if k + 1 < len(ends) and t <= last:  # now that the part up to t is solved, try splits at t
                    found = np.add(rights[k + 1 :, t], extra, out=sums[k + 1 : len(ends), 0])
                    found -= forward[s]
                    np.minimum(extras[k + 1 :], found, out=extras[k + 1 :])

    def _leasts(self, stops: range, waiting: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """[t, s]: the least budget in which the stages s..t-1 can run one after another."""
        import numpy as np

        needed = np.zeros((len(stops), stops[-1]), np.int64)
        for row, t in zip(needed, stops, strict=True):
            most = 0
            for s in range(t - 1, -1, -1):
                row[s] = max(self.costs.running[s], most)
                most = max(most, self.costs.states[s] + self.costs.running[s])
        return self._rounded(needed + waiting[:, None])

    def _record(
        self,
        s: int,
        stops: range,
        waiting: "NDArray[np.int64]",
        least: "NDArray[np.int64]",
        extras: "NDArray[np.float32]",
    ) -> None:
        """Try to record stage s and then reverse the rest, for all stops."""
        import numpy as np

        top, offsets = self.most + 1, self._forward[stops.start : stops.stop, None]
        for option in self.costs.options[s]:
            used = self._rounded(option.tape + self.costs.states[s + 1])
            starts = np.maximum(self._rounded(np.maximum(option.record_peak + waiting, option.pullback_peak)), least)
            starts = np.maximum(starts, used)
            first = int(starts.min())
            if first >= top:
                continue
            rest = self._extra[s + 1, stops.start : stops.stop, first - used : top - used] - offsets
            rest += np.float32(option.extra)
            for k, start in enumerate(starts.tolist()):
                rest[k, : start - first] = _INFINITE
            np.minimum(extras[:, first:], rest, out=extras[:, first:])

    def _split(
        self,
        s: int,
        splits: range,
        least: int,
        extras: "NDArray[np.float32]",
        paid: "NDArray[np.float32]",
        sums: "NDArray[np.float32]",
    ) -> None:
        """Try to split the parts from s to several stops, at points before all stops.

        A split at j costs at least the forward seconds from s to j, so budgets at which all parts already take less are
        skipped.
        """
        import numpy as np

        forward, j, stop = self._forward, splits.start, extras.shape[1]
        while j < splits.stop:
            most = extras[:, least:stop].max(axis=0)
            stop = least + int(np.searchsorted(-most, -(forward[j] - forward[s])))
            if stop <= least:
                return
            end = min(j + _SPLITS, splits.stop)
            block = sums[: len(extras), : end - j, : stop - least]
            np.add(paid[:, j:end, least:stop], self._extra[s, j:end, least:stop], out=block)
            found = block.min(axis=1)
            found -= forward[s]
            np.minimum(extras[:, least:stop], found, out=extras[:, least:stop])
            j = end

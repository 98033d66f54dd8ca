"""The exact least memory in which a chain can be reversed, for tapes that hold their stage's input.

The recurrence is that of U in `chain_steps`, with max in place of + and bytes in place of seconds:

    L(s, t) = max( c_t + F_s, c_t + x_k + F_k for s < k < t,
                   min( min_o max(R_o + c_t, P_o, a_o + x_{s+1} + L(s+1, t)),
                        min_j max(x_j + L(j, t), L(s, j)) ) )

NumPy does O(n³) comparisons: half a second for 339 stages.
"""

from remat.planners.dp.chain_parts import ChainCosts, Move, Part

__all__ = ["ChainLeast"]


class ChainLeast:
    """The least bytes of every part, without its first state, and the moves that reach them."""

    def __init__(self, costs: ChainCosts) -> None:
        import numpy as np

        self.costs, n = costs, costs.units
        self._states = np.array(costs.states, np.int64)
        self._least = np.zeros((n + 1, n + 1), np.int64)
        for t in range(1, n + 1):
            needed = 0
            for s in range(t - 1, -1, -1):
                record, split, _ = self._choices(s, t)
                running = costs.waiting(t) + max(costs.running[s], needed)
                self._least[s, t] = max(running, min(record[0], split))
                needed = max(needed, costs.states[s] + costs.running[s])

    @property
    def least(self) -> int:
        """The least bytes for the whole chain, including its input."""
        return int(self._least[0, self.costs.units]) + self.costs.states[0]

    def whole(self) -> Part:
        """The whole chain as a part."""
        return Part(0, self.costs.units, self.least, True)

    def choose(self, part: Part) -> Move:
        """A move that needs no more than the least memory."""
        s, t = part.start, part.stop
        (record, option), split, at = self._choices(s, t)
        if split < record:
            return Move(None, Part(at, t, 0, False), Part(s, at, 0, False))
        return Move(option, Part(s + 1, t, 0, False) if t > s + 1 else None, None)

    def _choices(self, s: int, t: int) -> tuple[tuple[int, int], int, int]:
        """The bytes and number of the best option, the bytes of the best split, and its position."""
        import numpy as np

        waiting, after = self.costs.waiting(t), self.costs.states[s + 1] + int(self._least[s + 1, t])
        record = min(
            (max(option.record_peak + waiting, option.pullback_peak, option.tape + after), k)
            for k, option in enumerate(self.costs.options[s])
        )
        end = min(t, self.costs.furthest[s] + 1)
        if end <= s + 1:
            return record, record[0] + 1, s
        sizes = np.maximum(self._states[s + 1 : end] + self._least[s + 1 : end, t], self._least[s, s + 1 : end])
        j = int(sizes.argmin())
        return record, int(sizes[j]), s + 1 + j

"""States of a loop whose end is not known: which to keep while it runs, and how to reverse the ones held at the end.

`Sweep` decides step by step. In phase r, β(s, r-1) ≤ i < β(s, r), the offline optimum for the end of the phase keeps
the states T_r = {0, β(s,r-1), β(s,r-1)+β(s-1,r-1), …}, all but the first still ahead: they are kept when reached and
never dropped in the phase. Every other state is kept, in place of one that is no target, if the reversal from the next
state on would then be cheaper. For s slots this is optimal at every length up to β(s,2)+1, as the algorithm of Stumm
and Walther is, and beyond that it was never seen more than a few percent (s=10: 0.8 %) over the offline optimum.

`best_of_held` picks, of the states held at the end, those to use; the others are dropped at once. Between two of them
the reversal is binomial, with all slots that are free by then.
"""

from bisect import bisect_left
from functools import lru_cache
from itertools import pairwise

from remat.schedule.revolve import advances, advances_of, beta

__all__ = ["Sweep", "best_of_held", "reversal_advances"]

_MOST_HELD = 128  # beyond, all held states are used: the search takes their square in memory

_advances = lru_cache(maxsize=2**16)(advances)


class Sweep:
    """The states held as the loop runs: call `pass_over(i)` for each state i in order, once unit i is not the last."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.held: list[int] = []
        self._phase = 0
        self._edge = 0
        self._targets: frozenset[int] = frozenset()
        # (extra advances, state) of states to drop, the cheapest last. One is looked for at a time; with hundreds of
        # slots a few that do not touch, so that the search stays a small part of a step.
        self._cheapest: list[tuple[int, int]] = []
        self._batch = max(1, slots // 64)

    def pass_over(self, state: int) -> tuple[int | None, bool]:
        """Which held state to drop (or None), and whether to keep `state`."""
        if len(self.held) < self.slots:
            self.held.append(state)
            return None, True
        while self._edge <= state:
            self._next_phase()
        dropped = self._to_drop(state)
        if dropped is None:
            return None, False
        self.held.pop(bisect_left(self.held, dropped))
        self.held.append(state)
        if self._cheapest and self._cheapest[-1][1] == dropped:
            self._cheapest.pop()
        if self._batch == 1 or (self._cheapest and self._cheapest[-1][1] == self.held[-2]):
            self._cheapest = []  # this drop changed what the next would cost
        return dropped, True

    def _next_phase(self) -> None:
        self._phase += 1
        self._edge = beta(self.slots, self._phase)
        position, targets = 0, [0]
        for j in range(self.slots - 1):
            position += beta(self.slots - j, self._phase - 1)
            targets.append(position)
        self._targets = frozenset(targets)
        self._cheapest = []

    def _to_drop(self, state: int) -> int | None:
        """The held state that gives way to `state`, or None if it is better not kept."""
        if self.slots == 1:
            return None
        if not self._cheapest:
            self._cheapest = self._cheapest_drops()
        length = state - self.held[-1]
        best: tuple[int, int | None] | None = None
        if state not in self._targets:
            best = (_advances(length + 1, 1), None)
        if self._cheapest:
            cost = self._cheapest[-1][0] + _advances(length, 2)
            best = (cost, self._cheapest[-1][1]) if best is None or cost < best[0] else best
        if self.held[-1] not in self._targets:
            cost = _advances(state - self.held[-2], 2) - _advances(self.held[-1] - self.held[-2], 2)
            best = (cost, self.held[-1]) if best is None or cost < best[0] else best
        return best[1] if best is not None else None

    def _cheapest_drops(self) -> list[tuple[int, int]]:
        """Extra advances of the reversal if a held state (not a target, not the last) gave its slot to a later one."""
        held, slots = self.held, self.slots
        found: list[tuple[int, int]] = []
        gain = 0  # what the segments right of it save by having one slot more
        for j in range(len(held) - 2, 0, -1):
            before, after = held[j] - held[j - 1], held[j + 1] - held[j]
            if held[j] not in self._targets:
                joined = _advances(before + after, slots - j + 1) - _advances(before, slots - j + 1)
                found.append((joined - _advances(after, slots - j) + gain, j))
            gain += _advances(after, slots - j + 1) - _advances(after, slots - j)
        if self._batch == 1:
            extra, j = min(found, key=lambda pair: (pair[0], -pair[1]), default=(0, 0))
            return [(extra, held[j])] if j else []
        chosen: dict[int, int] = {}
        for extra, j in sorted(found, key=lambda pair: (pair[0], -pair[1])):
            if j - 1 not in chosen and j + 1 not in chosen:
                chosen[j] = extra
                if len(chosen) == self._batch:
                    break
        return [(extra, held[j]) for j, extra in chosen.items()][::-1]


def reversal_advances(held: list[int], end: int, slots: int) -> int:
    """Advances to reverse all units before `end` from the held states, each segment with the slots free by then."""
    segments = enumerate(pairwise([*held, end]))
    return sum(advances(stop - start, slots - j) for j, (start, stop) in segments)


def best_of_held(held: list[int], end: int, slots: int) -> list[int]:
    """Of the held states, those whose use makes the reversal cheapest; dropping one frees its slot for the rest.

    >>> best_of_held([0, 1, 50], 100, 3)
    [0, 50]
    """
    if len(held) <= 2 or len(held) > _MOST_HELD:
        return held
    import numpy as np  # here, so that importing remat stays quick

    x = np.array(held)
    # cost[c][j]: the c-th state used is held[j]; advances for all segments before it. came[c][j]: the one before.
    cost = np.full(len(held), 2**61)
    cost[0] = 0
    came: list[np.ndarray] = []
    options: list[tuple[int, int, int]] = []
    for c in range(len(held)):
        last = cost + advances_of(end - x, slots - c)
        j = int(last.argmin())
        options.append((int(last[j]), c, j))
        gaps = x[None, :] - x[:, None]
        via = np.where(gaps > 0, cost[:, None] + advances_of(np.maximum(gaps, 1), slots - c), 2**61)
        came.append(via.argmin(axis=0))
        cost = via.min(axis=0)
    _, c, j = min(options)
    used = [j]
    for before in reversed(came[:c]):
        used.append(int(before[used[-1]]))
    return [held[i] for i in reversed(used)]

"""Online checkpointing: which states to keep while the length of a loop is unknown, and which to use once it is known.

`Sweep` decides step by step, after Stumm & Walther 2010 ("New algorithms for optimal online checkpointing", SIAM J.
Sci. Comput. 32). Let phase r be the states i with β(s, r-1) ≤ i < β(s, r): the lengths at which Revolve advances over
no step more than r times. For a loop that stops at the *end* of the phase, Revolve keeps the states (the targets)

    T_r = { 0, β(s, r-1), β(s, r-1) + β(s-1, r-1), … },

where each segment between two targets is as long as its slots can reverse in r-1 repetitions (their lengths sum to
β(s, r)). All targets but the first lie in the phase, so an online sweep can still keep them when it reaches them, and
it never drops them during the phase: at the end of the phase its reversal is Revolve's. Any other state replaces a kept
state that is not a target if this makes the reversal from the next state cheaper.

Up to β(s, 2) + 1 steps the sweep is optimal at *every* length. In phase 1 every state is kept. In phase 2 the optimum
is p(n, s) = 2n - (s+2), so one more step may cost two advances: one in the sweep, one in the reversal. Stumm & Walther
show that at every step some state can be exchanged for another at no more than this cost; the sweep searches for the
cheapest exchange (tests/figures/test_online.py compares every length for up to 20 slots). From phase 3 on, their
algorithm is only quasi-optimal, and this one was never seen more than a few percent over the offline optimum (0.8 % for
10 slots).

Once the loop has ended, `states_to_use` picks the kept states whose use makes the reversal cheapest; the others are
dropped at once. Between two of them the reversal is binomial, with all slots that are free by then.
"""

from bisect import bisect_left
from functools import lru_cache
from itertools import pairwise

from remat.schedule.revolve import advances, advances_of, beta

__all__ = ["Sweep", "reversal_advances", "states_to_use"]

_MOST_SEARCHED = 128  # with more kept states all are used: the memory of the search grows with their square

_advances = lru_cache(maxsize=2**16)(advances)


class Sweep:
    """The states kept as the loop runs: call `pass_over(i)` for each state i in order, unless unit i is the last."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.kept: list[int] = []
        self._phase = 0
        self._edge = 0
        self._targets: frozenset[int] = frozenset()
        # (extra advances, state) of states to drop, the cheapest last. A search finds one; with hundreds of slots, it
        # finds several that are not neighbours, so that searching takes only a small part of a step's time.
        self._cheapest: list[tuple[int, int]] = []
        self._batch = max(1, slots // 64)

    def pass_over(self, state: int) -> tuple[int | None, bool]:
        """The kept state to drop (or None), and whether to keep `state`."""
        if len(self.kept) < self.slots:
            self.kept.append(state)
            return None, True
        while self._edge <= state:
            self._next_phase()
        dropped = self._to_drop(state)
        if dropped is None:
            return None, False
        self.kept.pop(bisect_left(self.kept, dropped))
        self.kept.append(state)
        if self._cheapest and self._cheapest[-1][1] == dropped:
            self._cheapest.pop()
        if self._batch == 1 or (self._cheapest and self._cheapest[-1][1] == self.kept[-2]):
            self._cheapest = []  # this drop changed the costs of the next ones
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
        """The kept state to drop in favour of `state`, or None if it is better not to keep `state`."""
        if self.slots == 1:
            return None
        if not self._cheapest:
            self._cheapest = self._cheapest_drops()
        length = state - self.kept[-1]
        best: tuple[int, int | None] | None = None
        if state not in self._targets:
            best = (_advances(length + 1, 1), None)
        if self._cheapest:
            cost = self._cheapest[-1][0] + _advances(length, 2)
            best = (cost, self._cheapest[-1][1]) if best is None or cost < best[0] else best
        if self.kept[-1] not in self._targets:
            cost = _advances(state - self.kept[-2], 2) - _advances(self.kept[-1] - self.kept[-2], 2)
            best = (cost, self.kept[-1]) if best is None or cost < best[0] else best
        return best[1] if best is not None else None

    def _cheapest_drops(self) -> list[tuple[int, int]]:
        """Extra advances of the reversal if a kept state (not a target, not the last) gives its slot to a later one."""
        kept, slots = self.kept, self.slots
        drops: list[tuple[int, int]] = []
        gain = 0  # what the segments to its right save with one more slot
        for j in range(len(kept) - 2, 0, -1):
            before, after = kept[j] - kept[j - 1], kept[j + 1] - kept[j]
            if kept[j] not in self._targets:
                joined = _advances(before + after, slots - j + 1) - _advances(before, slots - j + 1)
                drops.append((joined - _advances(after, slots - j) + gain, j))
            gain += _advances(after, slots - j + 1) - _advances(after, slots - j)
        if self._batch == 1:
            extra, j = min(drops, key=lambda pair: (pair[0], -pair[1]), default=(0, 0))
            return [(extra, kept[j])] if j else []
        chosen: dict[int, int] = {}
        for extra, j in sorted(drops, key=lambda pair: (pair[0], -pair[1])):
            if j - 1 not in chosen and j + 1 not in chosen:
                chosen[j] = extra
                if len(chosen) == self._batch:
                    break
        return [(extra, kept[j]) for j, extra in chosen.items()][::-1]


def reversal_advances(kept: list[int], end: int, slots: int) -> int:
    """Advances to reverse all units before `end` from the kept states; each segment uses the slots free by then."""
    segments = enumerate(pairwise([*kept, end]))
    return sum(advances(stop - start, slots - j) for j, (start, stop) in segments)


def states_to_use(kept: list[int], end: int, slots: int) -> list[int]:
    """The kept states whose use makes the reversal cheapest; dropping a state frees its slot for the others.

    This is a shortest path: the c-th used state costs the advances of the segment before it, which is reversed with
    slots - c + 1 slots.

    >>> states_to_use([0, 1, 50], 100, 3)
    [0, 50]
    """
    if len(kept) <= 2 or len(kept) > _MOST_SEARCHED:
        return kept
    import numpy as np  # imported here to keep `import remat` fast

    x = np.array(kept)
    # In round c, cost[j] is the least advances for all segments before kept[j] if that is the c-th used state;
    # came[c][j] is the used state before it.
    cost = np.full(len(kept), 2**61)
    cost[0] = 0
    came: list[np.ndarray] = []
    options: list[tuple[int, int, int]] = []
    for c in range(len(kept)):
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
    return [kept[i] for i in reversed(used)]

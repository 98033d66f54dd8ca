"""The binomial schedule in compact form: a few numbers define all ops of a reversal that keeps states only.

This is Revolve (Griewank & Walther 2000, "Algorithm 799: Revolve", ACM TOMS 26), generalised to recorded ranges of up
to k steps. Planners produce a `RevolveOps`; the interpreter iterates it, and the JAX backend, which cannot run ops one
by one inside a compiled program, rebuilds the same schedule from its numbers.

A reversal with s kept states is a tree: advance from the start of a segment to a middle state and keep it, reverse the
right part with s-1 states, then the left part with all s. A leaf is one recorded range of up to k steps. Each time a
leaf is in a left part, it is advanced over once and s stays the same; each time it is in a right part, it is not
advanced over and s drops by one. So at most β(s, r) = C(s+r, s) leaves are advanced over at most r times each. Filling
the cheapest leaves first gives the least number of advances in this class,

    p_k(n, s) = r·n - k·C(s+r, s+1),   r the least integer with k·β(s, r) ≥ n,

since Σ_{j<r} β(s, j) = C(s+r, s+1). For k = 1 it is Revolve's p(n, s).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Any

from remat.ops import Advance, Drop, Fetch, Keep, Op, Pullback, Record, Turn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["RevolveOps", "advances", "advances_of", "beta", "repetition", "reverse", "split"]


@dataclass(frozen=True)
class RevolveOps:
    """All ops that reverse `steps` steps with `slots` states and recorded ranges of up to `chunk` steps."""

    steps: int
    slots: int
    chunk: int
    level: str

    def __iter__(self) -> Iterator[Op]:
        if self.steps == 0:
            return iter((Turn(),))
        return reverse(0, self.steps, self.slots, self.chunk, self.level, turn=True)


def reverse(
    first: int, last: int, slots: int, chunk: int, level: str, *, turn: bool = False, kept: bool = False
) -> Iterator[Op]:
    """Ops that pull back units first..last-1 with `slots` kept states, state `first` included.

    `first` is the working state; `kept` says whether it is already kept. It is dropped in the end. With `turn`, the
    schedule turns after the last unit has run.
    """
    # A pending segment starts at a kept state and waits until all units after it are pulled back: (start, stop, slots,
    # repetition).
    pending: list[tuple[int, int, int, int]] = []
    start, stop = first, last
    times = repetition(-(-(last - first) // chunk), slots) if last - first > chunk else 0
    while True:
        while stop - start > chunk:
            ranges = -(-(stop - start) // chunk)
            while beta(slots, times - 1) >= ranges:
                times -= 1
            middle = stop - (ranges - split(ranges, slots, times)) * chunk
            if not kept:
                yield Keep(start, level)
            yield Advance(start, middle)
            pending.append((start, middle, slots, times))
            start, slots, kept = middle, slots - 1, False
        if kept:
            yield Drop(start, level)
        yield Record(start, stop)
        if turn:
            yield Turn()
            turn = False
        yield Pullback(stop, start)
        if not pending:
            return
        start, stop, slots, times = pending.pop()
        kept = True
        yield Fetch(start, level)


def beta(slots: int, times: int) -> int:
    """The most ranges that can be reversed with `slots` states if none is advanced over more than `times` times."""
    return comb(slots + times, slots) if times >= 0 else 0


def repetition(ranges: int, slots: int) -> int:
    """The least r with β(slots, r) ≥ ranges, by bisection: microseconds even for n = 10⁹."""
    if ranges <= 1:
        return 0
    if slots < 1:
        raise ValueError("no finite repetition without a slot")
    high = 1
    while beta(slots, high) < ranges:
        high *= 2
    low = high // 2  # β(slots, low) < ranges ≤ β(slots, high), or low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if beta(slots, middle) < ranges else (low, middle)
    return high


def advances(steps: int, slots: int, chunk: int = 1) -> int:
    """The least number of advances to reverse `steps` steps with `slots` states and ranges of up to `chunk` steps.

    >>> advances(1000, 31), advances(1000, 10), advances(10**9, 100)
    (2439, 3636, 5898659124)
    """
    if steps <= chunk:
        return 0
    r = repetition(-(-steps // chunk), slots)
    return r * steps - chunk * comb(slots + r, slots + 1)


def split(ranges: int, slots: int, times: int) -> int:
    """How many ranges to advance over before the next state is kept; `times` is `repetition(ranges, slots)`.

    Every i with β(s,r-2) ≤ i ≤ β(s,r-1) and β(s-1,r-1) ≤ n-i ≤ β(s-1,r) is optimal. This is the largest of them: the
    first range is then advanced over exactly r times, so if one range is shorter, it should be the first.
    """
    return min(beta(slots, times - 1), ranges - beta(slots - 1, times - 1))


def advances_of(steps: Any, slots: int) -> "NDArray[np.int64]":
    """`advances` for an array of step counts and one number of slots; a huge number where infeasible."""
    import numpy as np  # imported here to keep `import remat` fast

    counts = np.asarray(steps, dtype=np.int64)
    if slots < 1:
        return np.where(counts <= 1, 0, 2**61)
    if slots == 1:
        return np.asarray(np.where(counts > 0, counts * (counts - 1) // 2, 0))
    top = repetition(int(counts.max(initial=1)), slots)
    edges = np.array([beta(slots, r) for r in range(top)], dtype=np.int64)
    cuts = np.array([comb(slots + r, slots + 1) for r in range(top + 1)], dtype=np.int64)
    r = np.searchsorted(edges, counts, side="left")
    return np.asarray(np.where(counts <= 1, 0, r * counts - cuts[r]))

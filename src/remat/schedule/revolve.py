"""States only, one level: the closed form of Griewank and Walther (Revolve), for ranges of up to k steps.

β(s, r) = C(s+r, s) leaves of a reversal tree with s slots are advanced over at most r times; each leaf is one recorded
range of at most k steps. Filling the cheapest leaves first gives the least number of advances,

    p_k(n, s) = r·n - k·C(s+r, s+1),   r the least integer with k·β(s, r) ≥ n,

which for k = 1 is Revolve's p(n, s). No schedule of this class does better: at most β(s, r) - β(s, r-1) leaves are
advanced over exactly r times, and a leaf has at most k steps.
"""

from math import comb
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["advances", "advances_of", "beta", "repetition", "split"]


def beta(slots: int, times: int) -> int:
    """How many ranges can be reversed with `slots` if none is advanced over more than `times` times."""
    return comb(slots + times, slots) if times >= 0 else 0


def repetition(ranges: int, slots: int) -> int:
    """The least r with β(slots, r) ≥ ranges, by bisection: n = 10⁹ takes microseconds."""
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
    """The least number of advances that reverse `steps` with `slots` kept states and ranges of up to `chunk` steps.

    >>> advances(1000, 31), advances(1000, 10), advances(10**9, 100)
    (2439, 3636, 5898659124)
    """
    if steps <= chunk:
        return 0
    r = repetition(-(-steps // chunk), slots)
    return r * steps - chunk * comb(slots + r, slots + 1)


def split(ranges: int, slots: int, times: int) -> int:
    """How many ranges to advance over before the next state is kept, `times` being `repetition(ranges, slots)`.

    Every i with β(s,r-2) ≤ i ≤ β(s,r-1) and β(s-1,r-1) ≤ n-i ≤ β(s-1,r) is optimal. This is the largest of them: the
    first range is then advanced over exactly r times, so that if one range is short, it is best the first.
    """
    return min(beta(slots, times - 1), ranges - beta(slots - 1, times - 1))


def advances_of(steps: Any, slots: int) -> "NDArray[np.int64]":
    """`advances` of an array of step counts, for one number of slots; infeasible ones are huge."""
    import numpy as np  # here, so that importing remat stays quick

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

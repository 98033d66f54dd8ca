"""States in several levels with read and write costs, exactly: the recurrence of H-Revolve (Herrmann & Pallez 2020).

P_k(l, m) is the least time to reverse l+1 units from a state stored in level k, with m slots of that level available,
the slot of that state included; O_k(l, m) is the same from a state that is only in working memory. uf is the time of a
forward, ub that of a record and pullback, w and r those of writing and reading a state, and c_k the slots of level k:

    O_k(0, m) = P_k(0, m) = ub,    O_{-1}(l, ·) = ∞ for l > 0,    O_k(l, 0) = O_{k-1}(l, c_{k-1})
    P_k(l, m) = min( O_{k-1}(l, c_{k-1}),  min_{1≤j≤l}  j·uf + O_k(l-j, m-1) + r_k + P_k(j-1, m) )
    O_k(l, m) = min( O_{k-1}(l, c_{k-1}),  w_k + P_k(l, m) )

The published recurrence makes an exception for l = 1, as if the state were always in the fastest level already: if
w_0 > 0, no schedule reaches its value. Without the exception (j may be l), every value is reached by a schedule; the
values equal the published ones if the fastest level is free, and equal exhaustive search if levels are ordered by cost.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat.progress import report_progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["HRevolveTable", "StoreCost"]


@dataclass(frozen=True)
class StoreCost:
    """One level: its slots, and the time to write and to read one state."""

    slots: int
    write: float
    read: float


class HRevolveTable:
    """O and P for every level, slot count and length, and the choices that reach them.

    Useless slots are left out: if O_k(·, m) equals O_k(·, m-1) at every length, the recurrence repeats itself and
    further slots change nothing. So an unlimited level costs no more than the slots it can use.
    """

    def __init__(self, units: int, stores: list[StoreCost], forward: float, reverse: float) -> None:
        import numpy as np  # imported here to keep `import remat` fast

        self.units = max(units, 1)
        below = np.full(self.units, np.inf)  # O_{-1}, then O_k with all slots of level k
        below[0] = reverse
        self.bottom = below
        self.offset: list[int] = []  # the column of (level, m) is offset[level] + m - 1
        self.slots: list[int] = []
        blocks: list[tuple[Floats, ...]] = []
        for store in stores:
            self.offset.append(sum(block[0].shape[1] for block in blocks))
            used, last = 0, below
            while used < store.slots:
                block = _block(store, below, last, min(_WIDTH, store.slots - used), forward)
                blocks.append(block)
                used += block[0].shape[1]
                before, last = (last if block[0].shape[1] == 1 else block[0][:, -2]), block[0][:, -1]
                if np.array_equal(before, last):
                    break
            self.slots.append(used)
            below = last
        columns = [np.concatenate(block, axis=1) for block in zip(*blocks, strict=True)] if blocks else []
        self.o, self.p, self.right, self.left = columns or [np.empty((self.units, 0))] * 4

    def time(self, stored: bool, column: int, length: int) -> float:
        """P or O of a column; column -1 is O_{-1}."""
        if column < 0:
            return float(self.bottom[length])
        return float((self.p if stored else self.o)[length, column])

    def column(self, level: int, slots: int) -> int:
        """The column of O_level(·, slots); a level without free slots passes on to the one below."""
        while level >= 0 and slots == 0:
            level -= 1
            slots = self.slots[level] if level >= 0 else 0
        return self.offset[level] + slots - 1 if level >= 0 else -1

    def place(self, column: int) -> tuple[int, int]:
        """The level and slot count of a column."""
        level = max(k for k, at in enumerate(self.offset) if at <= column and self.slots[k])
        return level, column - self.offset[level] + 1

    def split(self, column: int, length: int) -> int:
        """The number of units j that P_k(length, m) advances before the next stored state."""
        totals = self.right[:length, column][::-1] + self.left[1 : length + 1, column]
        return 1 + int(totals.argmin())


_WIDTH = 32  # columns to compute at a time: few enough for the processor's cache


def _block(store: StoreCost, below: "Floats", last: "Floats", width: int, forward: float) -> tuple["Floats", ...]:
    """O, P, the part reversed first (O with one slot less) and the part reversed later, for `width` slot counts."""
    import numpy as np

    units = len(below)
    o, p, right = (np.empty((units, width)) for _ in range(3))
    left = np.empty((units + 1, width))  # left[j] = j·uf + r + P(j-1)
    scratch = np.empty((units, width))
    o[0] = p[0] = right[0] = below[0]
    left[0] = np.inf
    left[1] = forward + store.read + below[0]
    for length in range(1, units):
        if length % 100 == 0:
            report_progress(length, units)
        np.add(right[:length][::-1], left[1 : length + 1], out=scratch[:length])
        np.minimum(scratch[:length].min(axis=0), below[length], out=p[length])
        np.minimum(p[length] + store.write, below[length], out=o[length])
        right[length, 0] = last[length]
        right[length, 1:] = o[length, :-1]
        left[length + 1] = p[length] + ((length + 1) * forward + store.read)
    return o, p, right, left[:units]

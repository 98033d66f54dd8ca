"""Checkpoint positions as small int32 tables, so that one compiled program serves loops of any length.

Kept states form a stack: the state of level l is in slot l. Three tables say what to keep:

- `initial_positions`: what Revolve (Griewank & Walther 2000, "Algorithm 799: Revolve") keeps in its first sweep over a
  loop of known length, one state for each level;
- `binomial_table`: β(s, r) = C(s+r, s), from which the reverse sweep computes its splits (`reverse_sweep.py`);
- `online_positions`: what to keep while a loop of unknown length runs, whatever its length turns out to be.

The online table works in phases, like the algorithms of Wang, Moin & Iaccarino (2009, "Minimal repetition dynamic
checkpointing") and Stumm & Walther (2010, "New algorithms for optimal online checkpointing"). With s slots above a base
state, phase r covers the lengths n with β(s, r-1) < n ≤ β(s, r), for which Revolve advances over each step at most r
times. For the *end* of the phase, Revolve keeps states at distances

    β(s, r-1),  β(s, r-1) + β(s-1, r-1),  β(s, r-1) + β(s-1, r-1) + β(s-2, r-1),  …

from the base, by repeatedly applying β(s, r) = β(s, r-1) + β(s-1, r) to the right part. When the phase begins, all of
these positions are still ahead. So the states can be kept as they are reached, and wherever in the phase the loop ends,
each range between two of them has a length that its slots reverse with at most r-1 advances over a step. The part above
the last kept state is again a loop of unknown length, with one slot less for each state below it; the same rule applies
to it recursively, up to the next position. Since the positions depend only on s, they are one table. The price of not
knowing the end is at most one more advance over each step than Revolve needs; for 3 slots or more this also holds for
the thinned table below (counted for all lengths up to 6000).
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from remat.schedule.revolve import beta, repetition, split

__all__ = ["binomial_table", "initial_positions", "online_positions", "round_up"]

MOST = 2**30  # the most steps of a loop; larger binomials are clipped to it, so that they fit an int32
# The exact online table has a position for nearly every step. A state closer to the one below it than 1/(FINE·slots) of
# the steps so far saves next to nothing; without such states the table has a few hundred positions.
FINE = 4

Ints = NDArray[np.int32]


def round_up(count: int) -> int:
    """The count rounded up to three significant bits, so that one compiled program serves all counts that round to it.

    >>> [round_up(count) for count in (5, 9, 100)]
    [5, 10, 112]
    """
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step


def initial_positions(chunks: int, slots: int) -> list[int]:
    """The chunks before which Revolve keeps a state in its first sweep, by level; none for a single chunk.

    >>> initial_positions(10, 3)
    [0, 4, 7]
    """
    positions, start, free = [0] if chunks > 1 else [], 0, slots
    while chunks - start > 1 and free:
        length = chunks - start
        start += split(length, free, repetition(length, free))
        free -= 1
        if chunks - start > 1 and free:
            positions.append(start)
    return positions


@lru_cache(maxsize=64)
def _binomial_table(slots: int, width: int) -> Ints:
    table = [[min(MOST, beta(s, r)) for r in range(width)] for s in range(slots + 1)]
    return np.array(table, dtype=np.int32)


def binomial_table(chunks: int | None, slots: int) -> Ints:
    """β(s, r) for all s up to `slots` and all r needed to reverse `chunks`; with None, wide enough for long loops."""
    if chunks is None:
        width = 64 if slots >= 8 else 512 if slots >= 4 else 2048
    else:
        # With one slot nothing is split and no row is read; a wide one would only make the program longer.
        most = repetition(chunks, slots) if slots > 1 and chunks > 1 else 1
        # Use few widths, since each needs a program of its own.
        width = next(width for width in (8, 64, 512, 4096, 1 << most.bit_length()) if width > most)
    return _binomial_table(slots, width)


@lru_cache(maxsize=16)
def online_positions(slots: int) -> tuple[Ints, Ints]:
    """The steps before which a loop of unknown length keeps a state, and its level; higher states are dropped.

    The positions ascend. The last one is never reached, so that a program need not bound its index.

    >>> positions, levels = online_positions(3)
    >>> positions[:8].tolist(), levels[:8].tolist()
    ([1, 2, 4, 5, 7, 10, 11, 13], [1, 2, 1, 2, 2, 1, 2, 2])
    """
    table = list(takewhile(lambda entry: entry[0] < MOST, _online_positions(0, slots, 0, MOST, slots)))
    table.append((MOST, slots))
    positions, levels = zip(*table, strict=True)
    return np.array(positions, dtype=np.int32), np.array(levels, dtype=np.int32)


def _online_positions(base: int, slots: int, level: int, end: int, all_slots: int) -> Iterator[tuple[int, int]]:
    """Positions and levels between base and end, with `slots` of the `all_slots` slots; the base is on `level`."""
    if slots < 2:  # the base takes the only slot
        return
    phase = 1
    least = -(-base // (FINE * all_slots))  # closer states are not kept, so skip the phases that would keep them
    if beta(slots, 0) < least:
        phase = max(1, repetition(least, slots))
    while base + beta(slots, phase - 1) < end:
        position, free, above = base + beta(slots, phase - 1), slots - 1, level + 1
        while free and position < end and beta(free + 1, phase - 1) * FINE * all_slots >= position:
            yield position, above
            after = position + beta(free, phase - 1)
            yield from _online_positions(position, free, above, min(after, end), all_slots)
            position, free, above = after, free - 1, above + 1
        length = beta(slots, phase - 1)
        phase += 1
        # With few slots a phase is hardly longer than the previous one: skip such phases too.
        while (beta(slots, phase - 1) - length) * 4 * FINE * all_slots < length:
            phase += 1

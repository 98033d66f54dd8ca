"""Where states are kept, as small tables that a device can follow; they do not grow with the number of steps.

A kept state lies on a stack: the state of level l in slot l. In the first sweep of a loop of known length, states are
kept where the binomial plan keeps them, one for each level. In a loop of unknown length the places depend on how far it
came: at each place of `online_positions` all states above a level are dropped, and one is kept there. The reverse sweep
splits what lies above the last kept state as the binomial plan does, by the numbers β(s, r) of `binomial_table`.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat.schedule.revolve import beta, repetition, split

__all__ = ["binomial_table", "initial_positions", "online_positions", "positions_after", "round_up"]

MOST = 2**30  # steps of a loop, and what larger numbers are cut to
FINE = 4  # a state is kept if it is no closer to the one before than 1/(FINE·slots) of all steps

Ints = NDArray[np.int32]


def round_up(count: int) -> int:
    """A number not much larger, of few: what is compiled for one number then serves others."""
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step


def initial_positions(units: int, slots: int) -> list[int]:
    """Where the binomial plan keeps states in its first sweep: the place of each level; none for a single unit."""
    places, start, left = [0] if units > 1 else [], 0, slots
    while units - start > 1 and left:
        length = units - start
        start += split(length, left, repetition(length, left))
        left -= 1
        if units - start > 1 and left:
            places.append(start)
    return places


@lru_cache(maxsize=64)
def _binomial_table(slots: int, width: int) -> Ints:
    table = [[min(MOST, beta(s, r)) for r in range(width)] for s in range(slots + 1)]
    return np.array(table, dtype=np.int32)


def binomial_table(units: int | None, slots: int) -> Ints:
    """β(s, r) for all s up to the slots, and all r that so many units take; wide enough for many if it is not known."""
    if units is None:
        width = 64 if slots >= 8 else 512 if slots >= 4 else 2048
    else:
        most = repetition(units, slots) if slots and units > 1 else 1
        width = next(width for width in (8, 64, 512, 4096, 1 << most.bit_length()) if width > most)
    return _binomial_table(slots, width)


@lru_cache(maxsize=16)
def online_positions(slots: int) -> tuple[Ints, Ints]:
    """Where a loop of unknown length keeps states, in order, and on which level; the last place is never reached.

    A level of s slots above its base goes through phases: in phase r it keeps states at distances β(s, r-1),
    β(s-1, r-1), … on the levels above, as the binomial plan for β(s, r) steps does. Each of these is the base of a
    level of its own until the next one comes. When a phase is over, all of them are dropped, and the next one begins.
    """
    found = list(takewhile(lambda event: event[0] < MOST, _online_positions(0, slots, 0, MOST, slots)))
    found.append((MOST, slots))
    places, levels = zip(*found, strict=True)
    return np.array(places, dtype=np.int32), np.array(levels, dtype=np.int32)


def _online_positions(base: int, slots: int, level: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Places between base and end for `slots` of the `most` slots there are, the lowest on level + 1."""
    if slots < 2:
        return
    times = 1
    least = -(-base // (FINE * most))  # closer ones are not kept
    if beta(slots, 0) < least:
        times = max(1, repetition(least, slots))
    while base + beta(slots, times - 1) < end:
        place, left, above = base + beta(slots, times - 1), slots - 1, level + 1
        while left and place < end and beta(left + 1, times - 1) * FINE * most >= place:
            yield place, above
            after = place + beta(left, times - 1)
            yield from _online_positions(place, left, above, min(after, end), most)
            place, left, above = after, left - 1, above + 1
        over = beta(slots, times - 1)
        times += 1
        while (beta(slots, times - 1) - over) * 4 * FINE * most < over:  # with few slots, phases are short
            times += 1


def positions_after(steps: int, slots: int) -> list[int]:
    """The states that a loop of unknown length holds after so many steps."""
    held: list[Any] = [0]
    for place, level in zip(*map(np.ndarray.tolist, online_positions(slots)), strict=True):
        if place >= steps:
            break
        held[level:] = [place]
    return held

"""The contents of small NumPy arrays as replayable states (rng_state.py): ring buffers, histograms, running means.

The rule: of all arrays that the code reaches, the writeable ones are replayed, smallest first, up to SMALL bytes in
total. What it can miss: larger arrays. The cost: a checksum and a copy, 20 us for all of SMALL. NumPy itself is not
imported here.
"""

from collections.abc import Iterable
from typing import Any
from zlib import crc32

__all__ = ["ArrayContents", "small_arrays"]

SMALL = 2**16  # bytes in total of the arrays that are replayed; the smallest ones first


class ArrayContents:
    """The elements of an array as a replayable state (rng_state.py)."""

    def __init__(self, array: Any) -> None:
        self.array = array  # the user's own array: `set` writes into it

    def version(self, snapshot: Any = None) -> int:
        """A checksum of the array, or of a snapshot: unequal checksums mean that the elements have changed."""
        return crc32((self.array if snapshot is None else snapshot).tobytes())

    def get(self) -> Any:
        """A copy of the array."""
        return self.array.copy()

    def set(self, snapshot: Any) -> None:
        """Write a snapshot back into the array."""
        self.array[...] = snapshot


def small_arrays(arrays: Iterable[Any]) -> list[ArrayContents]:
    """The contents of the writeable arrays, smallest first, up to SMALL bytes in total."""
    room, found = SMALL, []
    for array in sorted(arrays, key=lambda array: array.nbytes):
        room -= array.nbytes
        if room < 0:
            break
        # The bytes of an object array are addresses, so neither a checksum nor a copy would cover the objects.
        if array.flags.writeable and not array.dtype.hasobject:
            found.append(ArrayContents(array))
    return found

"""Numbers in small NumPy arrays as replayable states (rng_state.py): ring buffers, histograms, running means.

The rule: of all arrays that code reaches, those that can be written into, the smallest ones first, as far as they have
no more than SMALL bytes together. What it misses are larger ones. The cost is a checksum and a copy, 20 us for all of
SMALL. NumPy itself is not imported here.
"""

from collections.abc import Iterable
from typing import Any
from zlib import crc32

__all__ = ["ArrayContents", "small_arrays"]

SMALL = 2**16  # bytes of all arrays whose numbers are put back; the smallest ones first


class ArrayContents:
    """The numbers in an array as a replayable state (rng_state.py)."""

    def __init__(self, array: Any) -> None:
        self.array = array  # the user's own, which is written into when it is put back

    def version(self, snapshot: Any = None) -> int:
        """A checksum of the numbers, or of a snapshot: unequal ones mean that the numbers have changed."""
        return crc32((self.array if snapshot is None else snapshot).tobytes())

    def get(self) -> Any:
        """A copy of the numbers."""
        return self.array.copy()

    def set(self, snapshot: Any) -> None:
        """Write them back."""
        self.array[...] = snapshot


def small_arrays(arrays: Iterable[Any]) -> list[ArrayContents]:
    """The contents of the arrays that can be written into, as far as they have no more than SMALL bytes together."""
    room, found = SMALL, []
    for array in sorted(arrays, key=lambda array: array.nbytes):
        room -= array.nbytes
        if room < 0:
            break
        # Bytes of objects are addresses, and a copy of them would not be one of the objects.
        if array.flags.writeable and not array.dtype.hasobject:
            found.append(ArrayContents(array))
    return found

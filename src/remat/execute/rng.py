"""Global random numbers, replayed: a step that draws from `random` or `np.random` draws the same when it runs again.

One mark is taken for each kept state. As long as nothing has drawn, all marks are one object and cost microseconds.
"""

import ctypes
import random
from array import array
from typing import Any

__all__ = ["Replay", "read_generators", "set_generators"]

_MT19937_BYTES = 2500  # 624 words of the generator and its position


class Replay:
    """The global generators of `random` and `np.random`: marked, and set back to a mark."""

    def __init__(self) -> None:
        self.drew = False
        self.first = read_generators()
        # A draw that only takes the cached second half of a Gaussian pair moves nothing that a glance sees.
        self._glance = _whole if self.first[3]["has_gauss"] else _glance
        self._glance_first = self._glance()

    def mark(self) -> Any:
        """The state of the generators now."""
        if not self.drew and self._glance() == self._glance_first:
            return self.first
        self.drew = True
        return read_generators()

    def restore(self, mark: Any) -> None:
        """Set the generators back; nothing is done while nothing has drawn."""
        if self.drew:
            set_generators(mark)


def read_generators() -> Any:
    """The state of the global generators now."""
    import numpy as np

    version, words, gauss = random.getstate()
    return version, array("I", words), gauss, np.random.get_state(legacy=False)


def set_generators(mark: Any) -> None:
    """Set the global generators back to a state that was read."""
    import numpy as np

    version, words, gauss, theirs = mark
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(theirs)


def _whole() -> Any:
    """All of the state, in a form that can be compared."""
    return repr(read_generators())


def _glance() -> Any:
    """Something that changes when a draw is made for the first time, cheaper to get than the whole state."""
    import numpy as np

    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if isinstance(generator, np.random.MT19937):
        theirs: Any = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
    else:
        theirs = repr(generator.state)
    return hash(random.getstate()), theirs

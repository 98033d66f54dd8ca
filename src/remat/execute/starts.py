"""The start of a segment: what it draws on, as it was when the segment was first run.

In: sources (`rng.py`). Out: a block in which they are as they were. A mark is held only of those that the segment
used; the global generators are asked in ways that cost little where it does not, since every segment asks them.
"""

import ctypes
import random
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from remat.execute.rng import Source

__all__ = ["Start"]

_MT19937_BYTES = 2500  # 624 words of the generator and its position


class Start:
    """Sources, marked before a segment runs for the first time; `settle` when it has run."""

    def __init__(self, sources: Sequence[Source]) -> None:
        python = _Python()
        state = python.read()
        every = [*([_Numpy()] if "numpy" in sys.modules else []), *sources]
        self._marks: list[tuple[Source, Any]] = [(python, state), *((source, source.read()) for source in every)]
        self._glances: list[Any] = [state, *(source.glance() for source in every)]

    def settle(self) -> None:
        """Forget the marks of sources that were not used."""
        pairs = zip(self._marks, self._glances, strict=True)
        used = [(source, mark) for (source, mark), glance in pairs if source.glance() != glance]
        self._marks = [(source, source.short(mark) if isinstance(source, _Python) else mark) for source, mark in used]
        self._glances = []

    @property
    def drew(self) -> bool:
        """Whether any source was used."""
        return bool(self._marks)

    @contextmanager
    def again(self) -> Iterator[None]:
        """A block in which the sources go on from where they were, and after which they are as they are now."""
        now = [(source, source.read()) for source, _ in self._marks]
        try:
            for source, mark in self._marks:
                source.write(mark)
            yield
        finally:
            for source, mark in now:
                source.write(mark)


class _Python:
    """The generator behind the functions of `random`."""

    def glance(self) -> Any:
        return random.getstate()

    def read(self) -> Any:
        return random.getstate()

    def write(self, mark: Any) -> None:
        version, words, gauss = mark
        random.setstate((version, tuple(words), gauss))

    @staticmethod
    def short(mark: Any) -> Any:
        """The mark in a tenth of the memory."""
        version, words, gauss = mark
        return version, array("I", words), gauss


class _Numpy:
    """The generator behind the functions of `np.random`.

    Its whole state takes long to get, and a look at the memory of its generator does not. So the state is remembered
    from one segment to the next. Only a cached half of a Gaussian pair cannot be seen there: with one, nothing is.
    """

    known: tuple[bytes, Any] | None = None

    def __init__(self) -> None:
        self._whole = False

    def glance(self) -> Any:
        words = None if self._whole else _words()
        return repr(_state()) if words is None else words

    def read(self) -> Any:
        words = _words()
        if words is not None and _Numpy.known is not None and _Numpy.known[0] == words:
            return _Numpy.known[1]
        state = _state()
        self._whole = bool(state["has_gauss"])
        _Numpy.known = None if self._whole or words is None else (words, state)
        return state

    def write(self, mark: Any) -> None:
        _Numpy.known = None
        sys.modules["numpy"].random.set_state(mark)


def _words() -> bytes | None:
    """The memory of NumPy's global generator, if it is of the kind that is understood."""
    numpy = sys.modules["numpy"]
    generator = numpy.random.get_bit_generator()
    if not isinstance(generator, numpy.random.MT19937):
        return None
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


def _state() -> Any:
    return sys.modules["numpy"].random.get_state(legacy=False)

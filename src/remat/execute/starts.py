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
        every = [_Python(), *([_Numpy()] if "numpy" in sys.modules else []), *sources]
        self._marks: list[tuple[Source, Any]] = [(source, source.read()) for source in every]
        self._glances: list[Any] = [source.glance() for source in every]

    def settle(self) -> None:
        """Forget the marks of sources that were not used."""
        pairs = zip(self._marks, self._glances, strict=True)
        self._marks = [(source, mark) for (source, mark), glance in pairs if source.glance() != glance]
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


class _Remembered:
    """A global generator whose whole state takes long to get, while a look at its memory does not.

    So the state is remembered from one segment to the next. What cannot be seen in the memory is the second half of a
    Gaussian pair that waits to be drawn: with one, nothing is remembered.
    """

    known: tuple[Any, Any] | None

    def __init_subclass__(cls) -> None:
        cls.known = None

    def __init__(self) -> None:
        self._whole = False

    def glance(self) -> Any:
        words = None if self._whole else self.words()
        return repr(self.state()) if words is None else words

    def read(self) -> Any:
        words, known = self.words(), self.known
        if words is not None and known is not None and known[0] == words:
            return known[1]
        state = self.state()
        self._whole = self.half_a_pair(state)
        type(self).known = None if self._whole or words is None else (words, state)
        return state

    def write(self, mark: Any) -> None:
        type(self).known = None
        self.put(mark)

    def words(self) -> Any:
        """What can be seen quickly; None where it is not known how."""
        raise NotImplementedError

    def state(self) -> Any:
        """The whole state."""
        raise NotImplementedError

    def half_a_pair(self, state: Any) -> bool:
        """Whether half a Gaussian pair waits."""
        raise NotImplementedError

    def put(self, state: Any) -> None:
        """Set the whole state."""
        raise NotImplementedError


class _Python(_Remembered):
    """The generator behind the functions of `random`."""

    def words(self) -> Any:
        return _python_words() if _PLAIN else None

    def state(self) -> Any:
        version, words, gauss = random.getstate()
        return version, array("I", words), gauss

    def half_a_pair(self, state: Any) -> bool:
        return state[2] is not None

    def put(self, state: Any) -> None:
        version, words, gauss = state
        random.setstate((version, tuple(words), gauss))


class _Numpy(_Remembered):
    """The generator behind the functions of `np.random`."""

    def words(self) -> Any:
        numpy = sys.modules["numpy"]
        generator = numpy.random.get_bit_generator()
        if not isinstance(generator, numpy.random.MT19937):
            return None
        return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)

    def state(self) -> Any:
        return sys.modules["numpy"].random.get_state(legacy=False)

    def half_a_pair(self, state: Any) -> bool:
        return bool(state["has_gauss"])

    def put(self, state: Any) -> None:
        sys.modules["numpy"].random.set_state(state)


_PYTHON = random.random.__self__  # type: ignore[attr-defined]  # the generator behind the module's functions


def _python_words() -> bytes:
    """The position and the words of Python's generator, which lie behind the head of its object."""
    return ctypes.string_at(id(_PYTHON) + object.__basicsize__, _MT19937_BYTES)


def _is_plain() -> bool:
    """Whether Python's generator lies in memory as it is thought to: that is seen by comparing."""
    if sys.implementation.name != "cpython" or type(_PYTHON).__basicsize__ < object.__basicsize__ + _MT19937_BYTES:
        return False
    *words, position = random.getstate()[1]
    return _python_words() == array("i", [position]).tobytes() + array("I", words).tobytes()


_PLAIN = _is_plain()

"""What a step draws on beside its arguments, replayed: random generators, and a framework's own sources.

A step that draws from `random`, `np.random`, or a generator that it closes over draws the same when it runs again. One
mark is taken for each kept state. As long as nothing has drawn from a source, all its marks are one object.
"""

import ctypes
import random
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["Replay", "Source", "global_sources", "private_source", "set_back"]

_MT19937_BYTES = 2500  # 624 words of the generator and its position


class Source(Protocol):
    """Something with a state that a step may change: a random generator, statistics that a module gathers."""

    def glance(self) -> Any:
        """Something that changes when the source is first used, cheaper to get than the whole state."""
        ...

    def read(self) -> Any:
        """The state now."""
        ...

    def write(self, mark: Any) -> None:
        """Set it back to a state that was read."""
        ...


class Replay:
    """Sources, marked together, and set back to a mark."""

    def __init__(self, sources: Sequence[Source] = ()) -> None:
        self.sources = [*global_sources(), *sources]
        self.first = [source.read() for source in self.sources]
        self.drawn = [False] * len(self.sources)
        self._glances = [source.glance() for source in self.sources]

    @property
    def drew(self) -> bool:
        """Whether any source was used."""
        return any(self.drawn)

    def mark(self) -> Any:
        """The state of the sources now."""
        if not self._look():
            return self.first
        pairs = zip(self.sources, self.drawn, self.first, strict=True)
        return [source.read() if drawn else first for source, drawn, first in pairs]

    def restore(self, mark: Any) -> None:
        """Set the sources back that were used since the beginning."""
        for source, drawn, state in zip(self.sources, self.drawn, mark or (), strict=bool(mark)):
            if drawn:
                source.write(state)

    def _look(self) -> bool:
        """Find out which sources were used; whether any was."""
        for k, drawn in enumerate(self.drawn):
            if not drawn:
                self.drawn[k] = self.sources[k].glance() != self._glances[k]
        return any(self.drawn)


class _Python:
    """A generator of `random` that a program made itself."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def glance(self) -> Any:
        return hash(self.generator.getstate())

    def read(self) -> Any:
        version, words, gauss = self.generator.getstate()
        return version, array("I", words), gauss

    def write(self, mark: Any) -> None:
        version, words, gauss = mark
        self.generator.setstate((version, tuple(words), gauss))


class _NumpyPrivate:
    """A generator of NumPy that a program made itself."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def glance(self) -> Any:
        return repr(self.read())

    def read(self) -> Any:
        if hasattr(self.generator, "bit_generator"):
            return self.generator.bit_generator.state
        return self.generator.get_state(legacy=False)

    def write(self, mark: Any) -> None:
        if hasattr(self.generator, "bit_generator"):
            self.generator.bit_generator.state = mark
        else:
            self.generator.set_state(mark)


class _Remembered(ABC):
    """A global generator whose whole state takes long to get, while a look at its memory does not.

    So the state is remembered from one time to the next. What cannot be seen in the memory is the second half of a
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

    @abstractmethod
    def words(self) -> Any:
        """What can be seen quickly; None where it is not known how."""

    @abstractmethod
    def state(self) -> Any:
        """The whole state."""

    @abstractmethod
    def half_a_pair(self, state: Any) -> bool:
        """Whether half a Gaussian pair waits."""

    @abstractmethod
    def put(self, state: Any) -> None:
        """Set the whole state."""


class _PythonGlobal(_Remembered):
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


class _NumpyGlobal(_Remembered):
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


def global_sources() -> list[Source]:
    """The generators of `random` and, if it is loaded, of `np.random`."""
    return [_PythonGlobal(), _NumpyGlobal()] if "numpy" in sys.modules else [_PythonGlobal()]


def private_source(value: Any) -> Source | None:
    """The source of a generator of Python or NumPy, or None for anything else."""
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return _Python(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.RandomState):
        return _NumpyPrivate(value)
    return None


@contextmanager
def set_back(sources: Sequence[Source], to: Any = None) -> Iterator[None]:
    """A block that leaves the sources as they were, and in which they go on from the mark `to` if there is one."""
    every = [*global_sources(), *sources]
    outside = [source.read() for source in every]
    try:
        for source, mark in zip(every, to or (), strict=bool(to)):
            source.write(mark)
        yield
    finally:
        for source, mark in zip(every, outside, strict=True):
            source.write(mark)

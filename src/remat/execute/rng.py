"""What a step draws on beside its arguments, replayed: random generators, and a framework's own sources.

A step that draws from `random`, `np.random`, or a generator that it closes over draws the same when it runs again. One
mark is taken for each kept state. As long as nothing has drawn from a source, all its marks are one object.
"""

import ctypes
import random
import sys
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
    """A generator of `random`; the module itself is the global one."""

    def __init__(self, generator: Any = random) -> None:
        self.generator = generator

    def glance(self) -> Any:
        return hash(self.generator.getstate())

    def read(self) -> Any:
        version, words, gauss = self.generator.getstate()
        return version, array("I", words), gauss

    def write(self, mark: Any) -> None:
        version, words, gauss = mark
        self.generator.setstate((version, tuple(words), gauss))


class _NumpyGlobal:
    """The generator behind the functions of `np.random`."""

    def __init__(self) -> None:
        # A draw that only takes the cached second half of a Gaussian pair moves nothing that a glance sees.
        self._whole = bool(self.read()["has_gauss"])

    def glance(self) -> Any:
        import numpy as np

        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if isinstance(generator, np.random.MT19937) and not self._whole:
            return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
        return repr(self.read()) if self._whole else repr(generator.state)

    def read(self) -> Any:
        import numpy as np

        return np.random.get_state(legacy=False)

    def write(self, mark: Any) -> None:
        import numpy as np

        np.random.set_state(mark)


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


def global_sources() -> list[Source]:
    """The generators of `random` and, if it is loaded, of `np.random`."""
    return [_Python(), _NumpyGlobal()] if "numpy" in sys.modules else [_Python()]


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

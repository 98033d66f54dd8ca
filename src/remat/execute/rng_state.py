"""Replayable states: what a step may change besides its carry, so that recomputing it must set it back first.

The states here are random generators. Most steps leave the two global ones alone, so that case is fast:
`random.getstate` builds 625 Python ints and `np.random.get_state` copies an array, while comparing the 2,500 bytes of a
Mersenne Twister in memory (ctypes) shows 20 to 50 times faster that nothing has changed; benchmarks/rng_snapshot.py
measures the ratio.
"""

import ctypes
import random
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

__all__ = ["ReadState", "ReplayableState", "global_rng_states", "private_rng_state"]

_MT19937_BYTES = 2500  # 624 words of 4 bytes and the position among them


class ReplayableState(Protocol):
    """A state that a step may change besides its carry: a random generator, the running statistics of a module."""

    def version(self, snapshot: Any = None) -> Any:
        """A cheap version stamp: unequal stamps mean that the state has changed.

        Passing a snapshot that was just taken saves reading some states twice.
        """
        ...

    def get(self) -> Any:
        """A snapshot of the state."""
        ...

    def set(self, snapshot: Any) -> None:
        """Set the state back to a snapshot."""
        ...


class ReadState(ReplayableState, Protocol):
    """A state that steps may also read without changing it, and that a tape may hold by reference."""

    is_read: bool

    def watch_use(self) -> Callable[[], bool]:
        """Watch the recording of steps; the returned function says whether they have used the state."""
        ...


class _PythonRng:
    """A user's `random.Random`, or the module `random`, whose functions are those of the global generator."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def version(self, snapshot: Any = None) -> Any:
        return hash(self.generator.getstate())

    def get(self) -> Any:
        version, words, gauss = self.generator.getstate()
        return version, array("I", words), gauss  # 2.5 KB; a tuple of 625 ints has ten times that

    def set(self, snapshot: Any) -> None:
        version, words, gauss = snapshot
        self.generator.setstate((version, tuple(words), gauss))


class _NumpyGenerator:
    """A user's `np.random.Generator`."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def version(self, snapshot: Any = None) -> Any:
        return repr(self.get() if snapshot is None else snapshot)

    def get(self) -> Any:
        return self.generator.bit_generator.state

    def set(self, snapshot: Any) -> None:
        self.generator.bit_generator.state = snapshot


class _NumpyRandomState(_NumpyGenerator):
    """A user's `np.random.RandomState`, or the module `np.random`."""

    def get(self) -> Any:
        return self.generator.get_state(legacy=False)

    def set(self, snapshot: Any) -> None:
        self.generator.set_state(snapshot)


class _CachedGlobalRng(ABC):
    """A global generator: its full state is slow to read, but its words in memory are fast to compare.

    So the last full state is cached, and is valid as long as the words have not changed. The words do not include the
    second number of a Gaussian pair (generators compute two and store one), so nothing is cached while one is waiting.
    """

    # The words and the full state that belongs to them; in the class, since there is one generator for all instances.
    cached: tuple[Any, Any] | None

    def __init_subclass__(cls) -> None:
        cls.cached = None

    def __init__(self, rng: ReplayableState) -> None:
        self._rng = rng  # reads the full state through public functions
        self._compare_full = False  # whether a Gaussian is waiting, so that the words do not determine the full state

    def version(self, snapshot: Any = None) -> Any:
        raw_words = None if self._compare_full else self.raw_words()
        return repr(self._rng.get()) if raw_words is None else raw_words

    def get(self) -> Any:
        raw_words, cached = self.raw_words(), self.cached
        if raw_words is not None and cached is not None and cached[0] == raw_words:
            return cached[1]
        full_state = self._rng.get()
        self._compare_full = self.has_waiting_gaussian(full_state)
        type(self).cached = None if self._compare_full or raw_words is None else (raw_words, full_state)
        return full_state

    def set(self, snapshot: Any) -> None:
        type(self).cached = None  # the same words may come with another waiting Gaussian
        self._rng.set(snapshot)

    @abstractmethod
    def raw_words(self) -> Any:
        """The generator's words as bytes; None if their location in memory is not known."""

    @abstractmethod
    def has_waiting_gaussian(self, full_state: Any) -> bool:
        """Whether the second number of a Gaussian pair is waiting to be drawn."""


class _PythonGlobal(_CachedGlobalRng):
    """The generator behind the functions of `random`."""

    def raw_words(self) -> Any:
        return _python_words.raw if _LAYOUT_IS_KNOWN else None

    def has_waiting_gaussian(self, full_state: Any) -> bool:
        return full_state[2] is not None


class _NumpyGlobal(_CachedGlobalRng):
    """The generator behind the functions of `np.random`."""

    found: ClassVar[tuple[Any, Any]] = (None, None)  # the generator, and its words in memory

    def raw_words(self) -> Any:
        numpy = sys.modules["numpy"]  # loaded, else there is no _NumpyGlobal; `import remat` does not load it
        generator = numpy.random.get_bit_generator()
        found = self.found
        if generator is not found[0]:
            # `np.random.set_bit_generator` may have installed one whose layout is not known.
            is_known = isinstance(generator, numpy.random.MT19937)
            words = _Words.from_address(generator.ctypes.state_address) if is_known else None
            found = type(self).found = (generator, words)
        return None if found[1] is None else found[1].raw

    def has_waiting_gaussian(self, full_state: Any) -> bool:
        return bool(full_state["has_gauss"])


_PYTHON = random.random.__self__  # type: ignore[attr-defined]  # the generator behind the functions of `random`
_Words = ctypes.c_char * _MT19937_BYTES
# The position and the words of Python's generator follow its object header.
_python_words = _Words.from_address(id(_PYTHON) + object.__basicsize__)


def _layout_is_known() -> bool:
    """Whether Python's generator has the assumed layout in memory: compares its bytes with its public state.

    If not (another Python implementation, a changed struct), the full state is used, which is only slower.
    """
    if sys.implementation.name != "cpython" or type(_PYTHON).__basicsize__ < object.__basicsize__ + _MT19937_BYTES:
        return False
    *words, position = random.getstate()[1]
    return bool(_python_words.raw == array("i", [position]).tobytes() + array("I", words).tobytes())


_LAYOUT_IS_KNOWN = _layout_is_known()


def global_rng_states() -> list[ReplayableState]:
    """The generators of `random` and, if it is loaded, of `np.random`."""
    python, numpy = _PythonGlobal(_PythonRng(random)), sys.modules.get("numpy")
    return [python] if numpy is None else [python, _NumpyGlobal(_NumpyRandomState(numpy.random))]


def private_rng_state(value: Any) -> ReplayableState | None:
    """The replayable state of a user's Python or NumPy generator, or None for anything else."""
    # SystemRandom draws from the operating system and has no state.
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return _PythonRng(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return _NumpyGenerator(value)
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return _NumpyRandomState(value)
    return None

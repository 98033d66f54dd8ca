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

__all__ = ["ReplayableState", "StateReplay", "global_rng_states", "preserved_state", "private_rng_state"]

_MT19937_BYTES = 2500  # 624 words of the generator and its position


class ReplayableState(Protocol):
    """Something with a state that a step may change: a random generator, statistics that a module gathers."""

    def version(self) -> Any:
        """Something that changes when the source is first used, cheaper to get than the whole state."""
        ...

    def get(self) -> Any:
        """The state now."""
        ...

    def set(self, snapshot: Any) -> None:
        """Set it back to a state that was read."""
        ...


class StateReplay:
    """Sources, marked together, and set back to a mark."""

    def __init__(self, replayable_states: Sequence[ReplayableState] = ()) -> None:
        self.replayable_states = [*global_rng_states(), *replayable_states]
        self.initial = [state_holder.get() for state_holder in self.replayable_states]
        self.used_flags = [False] * len(self.replayable_states)
        self._versions = [state_holder.version() for state_holder in self.replayable_states]

    @property
    def used(self) -> bool:
        """Whether any source was used."""
        return any(self.used_flags)

    def snapshot(self) -> Any:
        """The state of the sources now."""
        if not self._update_used():
            return self.initial
        pairs = zip(self.replayable_states, self.used_flags, self.initial, strict=True)
        return [state_holder.get() if used_flags else initial for state_holder, used_flags, initial in pairs]

    def restore(self, snapshot: Any) -> None:
        """Set the sources back that were used since the beginning."""
        for state_holder, used_flags, whole_state in zip(
            self.replayable_states, self.used_flags, snapshot or (), strict=bool(snapshot)
        ):
            if used_flags:
                state_holder.set(whole_state)

    def _update_used(self) -> bool:
        """Find out which sources were used; whether any was."""
        for k, used_flags in enumerate(self.used_flags):
            if not used_flags:
                self.used_flags[k] = self.replayable_states[k].version() != self._versions[k]
        return any(self.used_flags)


class _PythonRng:
    """A generator of `random` that a program made itself."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def version(self) -> Any:
        return hash(self.generator.getstate())

    def get(self) -> Any:
        version, raw_words, gauss = self.generator.getstate()
        return version, array("I", raw_words), gauss

    def set(self, snapshot: Any) -> None:
        version, raw_words, gauss = snapshot
        self.generator.setstate((version, tuple(raw_words), gauss))


class _NumpyRng:
    """A generator of NumPy that a program made itself."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def version(self) -> Any:
        return repr(self.get())

    def get(self) -> Any:
        if hasattr(self.generator, "bit_generator"):
            return self.generator.bit_generator.state
        return self.generator.get_state(legacy=False)

    def set(self, snapshot: Any) -> None:
        if hasattr(self.generator, "bit_generator"):
            self.generator.bit_generator.state = snapshot
        else:
            self.generator.set_state(snapshot)


class _CachedGlobalRng(ABC):
    """A global generator whose whole state takes long to get, while a look at its memory does not.

    So the state is remembered from one time to the next. What cannot be seen in the memory is the second half of a
    Gaussian pair that waits to be drawn: with one, nothing is remembered.
    """

    cached: tuple[Any, Any] | None

    def __init_subclass__(cls) -> None:
        cls.cached = None

    def __init__(self) -> None:
        self._compare_whole = False

    def version(self) -> Any:
        raw_words = None if self._compare_whole else self.raw_words()
        return repr(self.whole_state()) if raw_words is None else raw_words

    def get(self) -> Any:
        raw_words, cached = self.raw_words(), self.cached
        if raw_words is not None and cached is not None and cached[0] == raw_words:
            return cached[1]
        whole_state = self.whole_state()
        self._compare_whole = self.has_cached_gaussian(whole_state)
        type(self).cached = None if self._compare_whole or raw_words is None else (raw_words, whole_state)
        return whole_state

    def set(self, snapshot: Any) -> None:
        type(self).cached = None
        self.set_whole_state(snapshot)

    @abstractmethod
    def raw_words(self) -> Any:
        """What can be seen quickly; None where it is not known how."""

    @abstractmethod
    def whole_state(self) -> Any:
        """The whole state."""

    @abstractmethod
    def has_cached_gaussian(self, whole_state: Any) -> bool:
        """Whether half a Gaussian pair waits."""

    @abstractmethod
    def set_whole_state(self, whole_state: Any) -> None:
        """Set the whole state."""


class _PythonGlobal(_CachedGlobalRng):
    """The generator behind the functions of `random`."""

    def raw_words(self) -> Any:
        return _python_raw_words() if _LAYOUT_IS_KNOWN else None

    def whole_state(self) -> Any:
        version, raw_words, gauss = random.getstate()
        return version, array("I", raw_words), gauss

    def has_cached_gaussian(self, whole_state: Any) -> bool:
        return whole_state[2] is not None

    def set_whole_state(self, whole_state: Any) -> None:
        version, raw_words, gauss = whole_state
        random.setstate((version, tuple(raw_words), gauss))


class _NumpyGlobal(_CachedGlobalRng):
    """The generator behind the functions of `np.random`."""

    def raw_words(self) -> Any:
        numpy = sys.modules["numpy"]
        generator = numpy.random.get_bit_generator()
        if not isinstance(generator, numpy.random.MT19937):
            return None
        return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)

    def whole_state(self) -> Any:
        return sys.modules["numpy"].random.get_state(legacy=False)

    def has_cached_gaussian(self, whole_state: Any) -> bool:
        return bool(whole_state["has_gauss"])

    def set_whole_state(self, whole_state: Any) -> None:
        sys.modules["numpy"].random.set_state(whole_state)


_PYTHON = random.random.__self__  # type: ignore[attr-defined]  # the generator behind the module's functions


def _python_raw_words() -> bytes:
    """The position and the words of Python's generator, which lie behind the head of its object."""
    return ctypes.string_at(id(_PYTHON) + object.__basicsize__, _MT19937_BYTES)


def _layout_is_known() -> bool:
    """Whether Python's generator lies in memory as it is thought to: that is seen by comparing."""
    if sys.implementation.name != "cpython" or type(_PYTHON).__basicsize__ < object.__basicsize__ + _MT19937_BYTES:
        return False
    *raw_words, position = random.getstate()[1]
    return _python_raw_words() == array("i", [position]).tobytes() + array("I", raw_words).tobytes()


_LAYOUT_IS_KNOWN = _layout_is_known()


def global_rng_states() -> list[ReplayableState]:
    """The generators of `random` and, if it is loaded, of `np.random`."""
    return [_PythonGlobal(), _NumpyGlobal()] if "numpy" in sys.modules else [_PythonGlobal()]


def private_rng_state(value: Any) -> ReplayableState | None:
    """The source of a generator of Python or NumPy, or None for anything else."""
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return _PythonRng(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.RandomState):
        return _NumpyRng(value)
    return None


@contextmanager
def preserved_state(replayable_states: Sequence[ReplayableState], to: Any = None) -> Iterator[None]:
    """A block that leaves the sources as they were, and in which they go on from the mark `to` if there is one."""
    every = [*global_rng_states(), *replayable_states]
    outside = [state_holder.get() for state_holder in every]
    try:
        for state_holder, snapshot in zip(every, to or (), strict=bool(to)):
            state_holder.set(snapshot)
        yield
    finally:
        for state_holder, snapshot in zip(every, outside, strict=True):
            state_holder.set(snapshot)

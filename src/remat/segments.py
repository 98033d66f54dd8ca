"""What segments are on every framework: how they are asked for, their names, which are checked, and their nesting.

A segment is a function whose tape is not kept: it is run again when its backward needs it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any, NoReturn
from weakref import ReferenceType, finalize, ref

from remat.errors import DeterminismError, StepError

__all__ = [
    "CheckOnce",
    "CheckpointOptions",
    "display_name",
    "mutation_error",
    "nested",
    "nesting_depth",
    "raise_nondeterministic",
]


@dataclass(frozen=True)
class CheckpointOptions:
    """What is asked of a segment: when to compare values, whether to stop early, above which size to recompute.

    A policy says what is kept all the same; only JAX has them.
    """

    check: str = "first"
    early_stop: bool = True
    threshold: int | None = None  # bytes of the outputs; None: always
    policy: Any = None  # a function, or its name


def display_name(fn: Any) -> str:
    """What people call a function: its qualified name, or the class of a module or object."""
    while isinstance(fn, partial):
        fn = fn.func
    name, qualified = getattr(fn, "__name__", None), getattr(fn, "__qualname__", None)
    if name is None or qualified is None:
        return type(fn).__qualname__
    return str(qualified if qualified.endswith(name) else name)  # decorators may hand on only one of them


_checked: dict[tuple[int, ...], tuple[ReferenceType[Any], ...]] = {}
_lock = threading.RLock()  # a reference may die while it is held


class CheckOnce:
    """Whether the values of one function are compared, and `mark_passed` when they were and are the same.

    Functions are known by themselves, weakly: two closures of one code are two functions. What allows no weak reference
    is known by its code, and compared each time if it has none.
    """

    def __init__(self, fn: Callable[..., Any], check: str) -> None:
        self.wanted = check != "never"
        self._parts: tuple[ReferenceType[Any], ...] = ()
        if check == "first":
            parts = (fn.__self__, fn.__func__) if isinstance(fn, MethodType) else (fn,)
            try:
                self._parts = tuple(_weakly(part) for part in parts)
            except TypeError:  # it is not known again
                return
            self._key = tuple(id(part()) for part in self._parts)
            with _lock:
                self.wanted = _checked.get(self._key) != self._parts

    def mark_passed(self) -> None:
        """A segment of this function was compared in all that it saves, and was the same."""
        alive = [part() for part in self._parts]
        if not alive or any(part is None for part in alive):
            return
        with _lock:
            known = _checked.get(self._key) == self._parts
            _checked[self._key] = self._parts
        if not known:
            for part in alive:
                finalize(part, _checked.pop, self._key, None).atexit = False


def _weakly(value: Any) -> ReferenceType[Any]:
    try:
        return ref(value)
    except TypeError:
        return ref(value.__code__) if hasattr(value, "__code__") else ref(value)


_depth: ContextVar[int] = ContextVar("depth", default=0)


def nesting_depth() -> int:
    """How many segments are around the code that asks."""
    return _depth.get()


@contextmanager
def nested(depth: int) -> Iterator[None]:
    """A block inside a segment of this depth."""
    token = _depth.set(depth + 1)
    try:
        yield
    finally:
        _depth.reset(token)


def raise_nondeterministic(name: str, found: str) -> NoReturn:
    """Raise a DeterminismError that says what became another one."""
    raise DeterminismError(
        f"the segment {name} gave something else when it was recomputed: {found}, so the gradient would be wrong. It "
        "may count calls, write into what it captured, draw from a random generator that remat could not find, or "
        "read attributes or globals that were changed since. Draw random numbers before the segment and pass them in, "
        "or draw from global generators or from one that is passed in or closed over, which are replayed. "
        'remat.drop(fn, check="never") turns the comparison of values off'
    )


_COPY = "Make a new array instead, as in x = x + 1 for x += 1, or give the segment a copy"


def mutation_error(name: str, what: str, when: str, advice: str = _COPY) -> StepError:
    """What to say of a segment that uses what is not what it was."""
    return StepError(f"the segment {name} cannot be recomputed: {what} was written into {when}. {advice}")

"""What segments are on every framework: how they are asked for, their names, which are checked, and their nesting.

A segment is a function whose tape is not kept: it is run again when its backward needs it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NoReturn
from weakref import WeakSet

from remat.errors import DeterminismError, StepError

__all__ = ["Terms", "depth_here", "mark_checked", "name_of", "refuse_change", "refuse_writing", "to_check", "within"]


@dataclass(frozen=True)
class Terms:
    """What is asked of a segment: when to compare values, whether to stop early, above which size to recompute."""

    check: str = "first"
    early_stop: bool = True
    threshold: int | None = None  # bytes of the outputs; None: always


def name_of(fn: Any) -> str:
    """What people call a function: its qualified name, or the class of a module or object."""
    while isinstance(fn, partial):
        fn = fn.func
    name, qualified = getattr(fn, "__name__", None), getattr(fn, "__qualname__", None)
    if name is None or qualified is None:
        return type(fn).__qualname__
    return str(qualified if qualified.endswith(name) else name)  # decorators may hand on only one of them


_checked: WeakSet[Any] = WeakSet()
_lock = threading.Lock()


def _key(fn: Any) -> Any:
    """What stands for a function in all its calls: its code; an object that is no function stands for itself."""
    while isinstance(fn, partial):
        fn = fn.func
    if isinstance(fn, MethodType):
        fn = fn.__func__
    while isinstance(fn, FunctionType) and hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    return fn.__code__ if isinstance(fn, FunctionType) else fn


def to_check(fn: Callable[..., Any], check: str) -> bool:
    """Whether what a segment computes is to be compared when it is computed again."""
    if check != "first":
        return check == "always"
    try:
        with _lock:
            return _key(fn) not in _checked
    except TypeError:  # it can be no key, so that it is not known again
        return True


def mark_checked(fn: Callable[..., Any]) -> None:
    """A segment of this function was compared, and was the same."""
    try:
        with _lock:
            _checked.add(_key(fn))
    except TypeError:
        pass


_depth: ContextVar[int] = ContextVar("depth", default=0)


def depth_here() -> int:
    """How many segments are around the code that asks."""
    return _depth.get()


@contextmanager
def within(depth: int) -> Iterator[None]:
    """A block inside a segment of this depth."""
    token = _depth.set(depth + 1)
    try:
        yield
    finally:
        _depth.reset(token)


def refuse_change(name: str, found: str) -> NoReturn:
    """Raise a DeterminismError that says what became another one."""
    raise DeterminismError(
        f"the segment {name} gave something else when it was recomputed: {found}, so the gradient would be wrong. It "
        "may count calls, write into what it captured, draw from a random generator that remat could not find, or "
        "read attributes or globals that were changed since. Draw random numbers before the segment and pass them in, "
        "or draw from global generators or from one that is passed in or closed over, which are replayed. "
        'remat.drop(fn, check="never") turns the comparison of values off'
    )


_COPY = "Make a new array instead, as in x = x + 1 for x += 1, or give the segment a copy"


def refuse_writing(name: str, what: str, when: str, advice: str = _COPY) -> StepError:
    """What to say of a segment that uses what is not what it was."""
    return StepError(f"the segment {name} cannot be recomputed: {what} was written into {when}. {advice}")

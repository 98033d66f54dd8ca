"""Whether user code runs for the first time or is being recomputed because its results were not kept."""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Generic, TypeVar

__all__ = ["StopRecomputation", "is_recomputing", "recomputing", "variable_set"]

T = TypeVar("T")

# A context variable, so that other threads and tasks, in which code runs for the first time, do not see it.
_is_recomputing: ContextVar[bool] = ContextVar("is_recomputing", default=False)


def is_recomputing() -> bool:
    """Whether the calling code runs only to recompute values that were not kept.

    A step that counts, logs or gathers statistics only when this is False does so once per step.

    >>> import autograd.numpy as np, remat
    >>> from autograd import grad
    >>> seen = []
    >>> def step(x, _):
    ...     if not remat.is_recomputing():
    ...         seen.append("step")
    ...     return np.sin(x), None
    >>> slope = grad(lambda x: remat.scan(step, x, length=10, slots=3)[0])(0.5)
    >>> len(seen)
    10
    """
    return _is_recomputing.get()


def recomputing(active: bool) -> AbstractContextManager[None]:
    """A context in which `is_recomputing()` is True if `active`, and otherwise unchanged."""
    # A first run inside a recomputation is part of that recomputation, so this never sets the flag to False.
    return variable_set(_is_recomputing, active or _is_recomputing.get())


class variable_set(AbstractContextManager[None], Generic[T]):  # used as a function
    """A context in which a context variable has this value; a class for speed, as every segment enters several."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


class StopRecomputation(BaseException):
    """Ends the recomputation of a segment early, once all values that the backward needs are recomputed.

    A BaseException, so that `except Exception` in user code does not swallow it.
    """

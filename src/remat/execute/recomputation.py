"""Whether a step runs for the first time, or again because what it gave was not kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["StopRecomputation", "is_recomputing", "recomputing"]

_again: ContextVar[bool] = ContextVar("again", default=False)


def is_recomputing() -> bool:
    """Whether the code that asks runs again only to recompute what was not kept.

    A step that counts, logs or gathers statistics does it once if it does it only where this is False.

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
    return _again.get()


@contextmanager
def recomputing(again: bool) -> Iterator[None]:
    """A block in which code runs again; or, if not, as all around it does."""
    if not again or _again.get():
        yield
        return
    token = _again.set(again)
    try:
        yield
    finally:
        _again.reset(token)


class StopRecomputation(BaseException):
    """Ends the recomputation of a segment when all that was wanted of it is there; no error, so nobody catches it."""

"""Progress: an object that a caller passes in to hear how far long work is. The library itself is silent.

Long work anywhere calls `report_progress`; whoever listens in this context, by `with heard_by(progress):`, hears it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from remat.errors import ProblemError

__all__ = ["Progress", "check_progress", "report_progress", "reporting_to"]


class Progress(Protocol):
    """Told how much is done, of how much in all (None: not known yet).

    A job has parts, such as measuring, planning and running: a new part begins when `done` starts again.
    """

    def update(self, done: int, total: int | None) -> None:
        """`done` of `total` is behind us."""
        ...


_listener: ContextVar[Progress | None] = ContextVar("listener", default=None)


@contextmanager
def reporting_to(progress: Progress | None) -> Iterator[None]:
    """Let `progress` hear what is told in the block; None changes nothing."""
    if progress is None:
        yield
        return
    token = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(token)


def report_progress(done: int, total: int | None) -> None:
    """Say to whoever listens that `done` of `total` is behind us."""
    listener = _listener.get()
    if listener is not None:
        listener.update(done, total)


def check_progress(progress: object) -> None:
    """Raise a ProblemError for what cannot be told anything."""
    if progress is not None and not callable(getattr(progress, "update", None)):
        raise ProblemError(f"progress must have a method update(done, total), and {progress!r:.60} has none")

"""Progress: the caller passes in an object whose `update` is called during long work. The library prints nothing.

Long work calls `report_progress`, which reaches the object of the innermost `with reporting_to(progress):`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from remat.errors import ProblemError

__all__ = ["Progress", "check_progress", "report_progress", "reporting_to"]


class Progress(Protocol):
    """Receives the amount done and the total (None: not known yet).

    A job has stages, such as measuring, planning and running; a new stage begins when `done` starts over.
    """

    def update(self, done: int, total: int | None) -> None:
        """`done` of `total` is done."""
        ...


_listener: ContextVar[Progress | None] = ContextVar("listener", default=None)


@contextmanager
def reporting_to(progress: Progress | None) -> Iterator[None]:
    """Send the progress reported inside the `with` block to `progress`; None changes nothing."""
    if progress is None:
        yield
        return
    token = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(token)


def report_progress(done: int, total: int | None) -> None:
    """Tell the current listener, if there is one, that `done` of `total` is done."""
    listener = _listener.get()
    if listener is not None:
        listener.update(done, total)


def check_progress(progress: object) -> None:
    """Raise a ProblemError unless `progress` is None or has an `update` method."""
    if progress is not None and not callable(getattr(progress, "update", None)):
        raise ProblemError(f"progress must have a method update(done, total), and {progress!r:.60} has none")

"""The start of a segment: what it draws on, as it was when the segment was first run.

In: sources (`rng.py`). Out: a block in which they are as they were. A mark is held only of those that the segment
used.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from remat.execute.rng_state import Source, global_sources

__all__ = ["Start"]


class Start:
    """Sources, marked before a segment runs for the first time; `settle` when it has run."""

    def __init__(self, sources: Sequence[Source]) -> None:
        every = [*global_sources(), *sources]
        self._marks: list[tuple[Source, Any]] = [(source, source.read()) for source in every]
        self._glances: list[Any] = [source.glance() for source in every]

    def settle(self) -> None:
        """Forget the marks of sources that were not used."""
        pairs = zip(self._marks, self._glances, strict=True)
        self._marks = [(source, mark) for (source, mark), glance in pairs if source.glance() != glance]
        self._glances = []

    @property
    def drew(self) -> bool:
        """Whether any source was used."""
        return bool(self._marks)

    @contextmanager
    def again(self) -> Iterator[None]:
        """A block in which the sources go on from where they were, and after which they are as they are now."""
        now = [(source, source.read()) for source, _ in self._marks]
        try:
            for source, mark in self._marks:
                source.write(mark)
            yield
        finally:
            for source, mark in now:
                source.write(mark)

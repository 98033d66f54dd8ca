"""The start of a segment: what it draws on, as it was when the segment was first run.

In: sources (`rng.py`). Out: a block in which they are as they were. A mark is held only of those that the segment
used.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from remat.execute.rng_state import ReplayableState, global_rng_states

__all__ = ["SegmentReplay"]


class SegmentReplay:
    """Sources, marked before a segment runs for the first time; `forget_unused` when it has run."""

    def __init__(self, replayable_states: Sequence[ReplayableState]) -> None:
        every = [*global_rng_states(), *replayable_states]
        self._snapshots: list[tuple[ReplayableState, Any]] = [
            (state_holder, state_holder.get()) for state_holder in every
        ]
        self._versions: list[Any] = [state_holder.version() for state_holder in every]

    def forget_unused(self) -> None:
        """Forget the marks of sources that were not used."""
        pairs = zip(self._snapshots, self._versions, strict=True)
        self._snapshots = [
            (state_holder, snapshot) for (state_holder, snapshot), glance in pairs if state_holder.version() != glance
        ]
        self._versions = []

    @property
    def used(self) -> bool:
        """Whether any source was used."""
        return bool(self._snapshots)

    @contextmanager
    def rewound(self) -> Iterator[None]:
        """A block in which the sources go on from where they were, and after which they are as they are now."""
        now = [(state_holder, state_holder.get()) for state_holder, _ in self._snapshots]
        try:
            for state_holder, snapshot in self._snapshots:
                state_holder.set(snapshot)
            yield
        finally:
            for state_holder, snapshot in now:
                state_holder.set(snapshot)

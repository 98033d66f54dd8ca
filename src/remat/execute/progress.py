"""Progress: an object that a caller passes in to hear how far a long run is. The library itself is silent."""

from typing import Protocol

__all__ = ["Progress"]


class Progress(Protocol):
    """Told after each op how many units were run or pulled back, of how many in all (None: not known yet)."""

    def update(self, done: int, total: int | None) -> None:
        """`done` of `total` units are behind us."""
        ...

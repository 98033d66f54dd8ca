"""The protocol of a memory meter: allocated bytes and their peak, for measuring and profiling."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

__all__ = ["Meter"]


class Meter(Protocol):
    """Counts the bytes that a framework has allocated on its device."""

    def counting(self) -> AbstractContextManager[Any]:
        """A block in which allocations are counted; counting may make the program slower."""
        ...

    def now(self) -> int:
        """Bytes that are allocated now."""
        ...

    def peak(self) -> int:
        """The most bytes that were allocated since the last call of `reset_peak`."""
        ...

    def reset_peak(self) -> None:
        """Let the peak start from what is allocated now."""
        ...

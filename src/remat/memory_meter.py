"""The meter: the memory of a framework's device, as measuring and profiling ask for it."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

__all__ = ["Meter"]


class Meter(Protocol):
    """The memory of a framework's device."""

    def counting(self) -> AbstractContextManager[Any]:
        """Count what is allocated in the block."""
        ...

    def now(self) -> int:
        """Bytes that are allocated now."""
        ...

    def peak(self) -> int:
        """The most bytes that were allocated since the last call of `reset_peak`."""
        ...

    def reset_peak(self) -> None:
        """Begin anew with the peak."""
        ...

"""What the interpreter needs from a framework (`Backend`), and what profiles and the determinism check need as well.

States, tapes and gradients are opaque to the interpreter: it only passes them from one call to the next. While a
backend works on a state or a tape, the interpreter has no reference to it, so the backend can free it early.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from remat.memory_meter import Meter

__all__ = ["Backend", "FingerprintedBackend", "ObservableBackend"]


class Backend(Protocol):
    """How one framework runs the units of one problem (the steps of a loop, the stages of a chain)."""

    def advance(self, state: Any, start: int, stop: int) -> Any:
        """State `stop`, by running units start..stop-1 from state `start` without a tape."""
        ...

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Any]:
        """State `stop`, and the tape of units start..stop-1."""
        ...

    def pull_back(self, tape: Any, gradients: Any) -> Any:
        """The gradients at the start of the tape, from those at its end, whose buffers may be reused."""
        ...

    def copy(self, state: Any) -> Any:
        """A private copy of a state, which no step can write into."""
        ...

    def seal(self, state: Any) -> Any:
        """A value that changes if a kept state is written into."""
        ...


class ObservableBackend(Backend, Protocol):
    """A backend whose memory use can be measured, for profiles and for measuring the cost of a step."""

    def size(self, value: Any) -> int:
        """Bytes of a state, a tape or a cotangent."""
        ...

    def persistent_bytes(self, gradients: Any) -> dict[str, int]:
        """Bytes of what is live during the whole loop: inputs, captured values, outputs, gradients."""
        ...

    def failed_at(self) -> tuple[int, int]:
        """The step in which an error was raised, and the bytes of the tape that was recorded up to it."""
        ...

    def meter(self) -> Meter | None:
        """The meter of the framework's memory, if it has one."""
        ...


class FingerprintedBackend(Backend, Protocol):
    """A backend whose states can be compared with those of the first sweep."""

    def fingerprint(self, state: Any) -> Sequence[float]:
        """A fingerprint (one float) for each leaf of a state."""
        ...

    def mismatch(self, state: Any, fingerprint: Sequence[float], *, recorded: int) -> str | None:
        """A description of the first leaf whose fingerprint differs beyond rounding, or None.

        Recorded steps may round differently, so the tolerance grows with `recorded`, the number of recorded steps that
        led to the state.
        """
        ...

    def recorded_at_first(self, start: int, stop: int) -> int:
        """The number of units in a range that the first sweep may have rounded differently than `advance` does now."""
        ...

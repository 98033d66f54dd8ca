"""What the interpreter needs of a framework (`Backend`), and two protocols for those who look on.

States, tapes and gradients are the backend's own business: the interpreter passes them from call to call. It holds no
state or tape while a backend works on it, so that the backend can free it early.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from remat.memory_meter import Meter

__all__ = ["Backend", "FingerprintedBackend", "ObservableBackend"]


class Backend(Protocol):
    """How one framework runs the units of one problem."""

    def advance(self, state: Any, start: int, stop: int) -> Any:
        """State `stop`, by running units start..stop-1 from state `start` without a tape."""
        ...

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Any]:
        """State `stop`, and the tape of units start..stop-1."""
        ...

    def pull_back(self, tape: Any, gradients: Any) -> Any:
        """The gradients at the start of the tape, from those at its end; the old value is handed over."""
        ...

    def copy(self, state: Any) -> Any:
        """A private copy of a state, which no step can write into."""
        ...


class ObservableBackend(Backend, Protocol):
    """A backend whose memory can be measured: what profiles and measurements ask for."""

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

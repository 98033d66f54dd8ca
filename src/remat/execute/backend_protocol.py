"""The verbs: all that the interpreter asks of a framework."""

from collections.abc import Sequence
from typing import Any, Protocol

from remat.execute.rng_state import ReplayableState
from remat.memory_meter import Meter

__all__ = ["Backend"]


class Backend(Protocol):
    """How one framework runs the steps of one loop; states, tapes and cotangents are its own business.

    The interpreter passes a state or a tape on without holding it, so that a verb can let go of it while it runs.
    """

    @property
    def replayable_states(self) -> "Sequence[ReplayableState]":
        """What steps draw on beside the global random generators."""
        ...

    def advance(self, state: Any, start: int, stop: int) -> Any:
        """State `stop`, by running units start..stop-1 from state `start` and holding nothing."""
        ...

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Any]:
        """State `stop` and the tape of units start..stop-1."""
        ...

    def pull_back(self, tape: Any, cotangent: Any) -> Any:
        """The cotangent at the start of the tape; gradients of inputs and captured values are gathered by the verbs."""
        ...

    def copy(self, state: Any) -> Any:
        """A private copy of a state, which no step can write into."""
        ...

    def size(self, value: Any) -> int:
        """Bytes of a state, a tape or a cotangent."""
        ...

    def persistent_bytes(self) -> dict[str, int]:
        """Bytes of what is live throughout, by what it is: inputs, captured values, outputs, gradients."""
        ...

    def failed_at(self) -> tuple[int, int]:
        """Where a step raised an error: its number, and the bytes of the tape that was recorded up to it."""
        ...

    def meter(self) -> Meter | None:
        """The meter of the framework's memory, if it has one."""
        ...

    def fingerprint(self, state: Any) -> "Sequence[float]":
        """One number for each leaf of a state just computed, by which another run of the same step is known again."""
        ...

    def mismatch(self, state: Any, fingerprint: "Sequence[float]", *, recorded: int) -> str | None:
        """What makes a state another one than that of the summary, or None.

        Steps that are recorded may round otherwise: so many of them led to the state.
        """
        ...

"""Where kept states lie: one store for each level of memory."""

from typing import Any, Protocol

__all__ = ["RamStore", "StateStore"]


class StateStore(Protocol):
    """Keeps states by number. A state that was put is private: nobody writes into it."""

    def put(self, number: int, state: Any) -> None:
        """Keep a state."""
        ...

    def get(self, number: int) -> Any:
        """A kept state; it stays kept."""
        ...

    def drop(self, number: int) -> None:
        """Forget a kept state, and free its memory."""
        ...


class RamStore:
    """Keeps states where they are: in the memory that the framework computes in."""

    def __init__(self) -> None:
        self._states: dict[int, Any] = {}

    def put(self, number: int, state: Any) -> None:
        """Keep a state."""
        self._states[number] = state

    def get(self, number: int) -> Any:
        """A kept state; it stays kept."""
        return self._states[number]

    def drop(self, number: int) -> None:
        """Forget a kept state."""
        del self._states[number]

"""Where kept states are stored: one store for each level of memory."""

from typing import Any, Protocol

__all__ = ["RamStore", "StateStore"]


class StateStore(Protocol):
    """Keeps states by number. A stored state is a private copy: no step writes into it."""

    def put(self, number: int, state: Any) -> None:
        """Keep a state."""
        ...

    def get(self, number: int) -> Any:
        """Return a kept state; it stays kept."""
        ...

    def drop(self, number: int) -> None:
        """Free a kept state."""
        ...


class RamStore:
    """Keeps states where they were computed: it stores references, and moves no data."""

    def __init__(self) -> None:
        self._states: dict[int, Any] = {}

    def put(self, number: int, state: Any) -> None:
        """Keep a state."""
        self._states[number] = state

    def get(self, number: int) -> Any:
        """Return a kept state; it stays kept."""
        return self._states[number]

    def drop(self, number: int) -> None:
        """Free a kept state."""
        del self._states[number]

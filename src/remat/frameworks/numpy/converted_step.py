"""A step of a loop on NumPy, as a function of the values that it captured."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from remat.closures.closure_search import CapturedReference
from remat.execute.rng_state import ReplayableState

__all__ = ["ConvertedStep"]


class ConvertedStep(Protocol):
    """A step after closure conversion."""

    @property
    def cache_key(self) -> list[Any]:
        """What its cost depends on, apart from its arguments: the code that it runs."""
        ...

    @property
    def references(self) -> list[CapturedReference]:
        """Where captured values were found, by name."""
        ...

    @property
    def replayable_states(self) -> list[ReplayableState]:
        """Private random generators that it draws from."""
        ...

    def rebind(self, values: list[Any]) -> AbstractContextManager[Callable[..., Any]]:
        """The step with these values for what it captured, as long as the context lasts."""
        ...

"""A step of a loop on NumPy, as a function of the values that it captured."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from remat.closures.captures import CapturedReference
from remat.execute.python_state import Contents
from remat.execute.rng_state import ReplayableState
from remat.frameworks.numpy.protection import StepMode
from remat.pytree import Leaf, PyTree

__all__ = ["ConvertedStep"]


class ConvertedStep(Protocol):
    """A step after closure conversion."""

    @property
    def cache_key(self) -> list[Leaf]:
        """A key of the code that it runs: steps with equal keys, and equal specs of arguments, cost the same."""
        ...

    @property
    def references(self) -> list[CapturedReference]:
        """The variables in which captured values were found."""
        ...

    @property
    def replayable_states(self) -> list[ReplayableState]:
        """Private random generators that it draws from."""
        ...

    @property
    def mode(self) -> StepMode:
        """The first mode in which it may run."""
        ...

    @property
    def may_write(self) -> bool:
        """Whether its code has operators such as `+=`, which write into plain arrays and make new ones of boxes."""
        ...

    def contents(self) -> Contents:
        """What the containers that it reaches have in them now."""
        ...

    def rebind(self, values: list[Leaf]) -> AbstractContextManager[Callable[..., PyTree]]:
        """The step with these as its captured values, as long as the context lasts."""
        ...

"""Functions of flat arrays whose derivatives are ours, to any order and in both modes.

A `Function` says how it is run, and gives a `Derivative` for the arguments that move. That tells in both directions:
it pushes tangents forward, and pulls cotangents back with the help of what a run has saved. `composed.py` makes
functions of these again, `primitives.py` tells JAX about them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from remat.frameworks.jax.avals import Flags, look_of

__all__ = ["Arrays", "Derivative", "Function", "Keyed"]

Arrays = Sequence[Any]


class Keyed:
    """Compared by its key, so that what was compiled for an equal one is used again."""

    key: Any = None  # None: it is only equal to itself

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self.key is not None and self.key == other.key

    def __hash__(self) -> int:
        return id(self) if self.key is None else hash((type(self), self.key))


class Function(Keyed, ABC):
    """A function of flat arrays that gives a list of arrays."""

    eager = False  # whether it is run by Python, outside of any trace

    @abstractmethod
    def run(self, *args: Any) -> Arrays:
        """What it computes, by operations that JAX can trace."""

    @abstractmethod
    def derivative(self, moving: Flags, args: Arrays) -> "tuple[Derivative, Arrays]":
        """The derivative for the arguments that move, and further arrays that it needs."""

    def batched(self, axis: Any, flags: Flags, args: Arrays) -> "tuple[Function, Arrays, list[int | None]] | None":
        """The function for a batch, the first axis of the flagged arguments; its arguments, and the axes of the batch
        in its results. None: it is simply mapped.
        """
        return None

    def traced(self, args: Arrays) -> ClosedJaxpr:
        """The program for arguments that look like these."""
        known = self.__dict__.setdefault("_traced", {})
        looks = tuple(map(look_of, args))
        key = looks, jax.config.jax_enable_x64  # type: ignore[attr-defined]
        if key not in known:
            known[key] = jax.make_jaxpr(self.run)(*looks)
        found: ClosedJaxpr = known[key]
        return found


class Derivative(Keyed, ABC):
    """How a function changes with the arguments that move; it can tell in both directions."""

    function: Function
    outs: int  # results of the function
    extras: int = 0  # further arrays that it needs
    flowing: Flags  # the results that change
    moving: Flags  # the arguments that move
    written: Any = None  # what tells apart how the pullback is written, beside the key
    eager = False

    @property
    def run(self) -> Function:
        """The function as it is run where it is differentiated: rules of its own parts may say how."""
        return self.function

    @abstractmethod
    def saving(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results, and what the pullback needs beside the arguments and the further arrays."""

    @abstractmethod
    def push(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the results that change, by those of the arguments that move."""

    def pushed(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The same, written such that it can be differentiated in both modes."""
        return self.push(args, tangents)

    @abstractmethod
    def pull(self, given: Flags, args: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the arguments that move, by those of the given ones of the results that change."""

    @abstractmethod
    def pulled(self, given: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The same, from the arguments alone, written such that it can be differentiated in both modes."""

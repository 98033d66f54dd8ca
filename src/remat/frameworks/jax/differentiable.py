"""Functions of flat arrays whose derivatives are ours, to any order and in both modes.

A `DifferentiableFunction` says how it is run, and gives a `Linearization` for the active arguments. It works in both
directions: jvp pushes tangents forward, vjp pulls cotangents back with the residuals that a forward run has saved.
`linearizations.py` makes differentiable functions of these again, `primitives.py` tells JAX about them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from remat.frameworks.jax.avals import Flags, aval_of

__all__ = ["Arrays", "CacheKeyed", "DifferentiableFunction", "Linearization"]

Arrays = Sequence[Any]


class CacheKeyed:
    """Compared by its key, so that what was compiled for an equal one is used again."""

    key: Any = None  # None: it is only equal to itself

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self.key is not None and self.key == other.key

    def __hash__(self) -> int:
        return id(self) if self.key is None else hash((type(self), self.key))


class DifferentiableFunction(CacheKeyed, ABC):
    """A function of flat arrays that gives a list of arrays."""

    eager = False  # whether it is run by Python, outside of any trace

    @abstractmethod
    def run(self, *args: Any) -> Arrays:
        """What it computes, by operations that JAX can trace."""

    @abstractmethod
    def linearize(self, active_inputs: Flags, args: Arrays) -> "tuple[Linearization, Arrays]":
        """The derivative for the arguments that move, and further arrays that it needs."""

    def batched(
        self, axis: Any, flags: Flags, args: Arrays
    ) -> "tuple[DifferentiableFunction, Arrays, list[int | None]] | None":
        """The function for a batch, the first axis of the flagged arguments; its arguments, and the axes of the batch
        in its results. None: it is simply mapped.
        """
        return None

    def traced(self, args: Arrays) -> ClosedJaxpr:
        """The program for arguments that look like these."""
        known = self.__dict__.setdefault("_traced", {})
        avals = tuple(map(aval_of, args))
        key = avals, jax.config.jax_enable_x64  # type: ignore[attr-defined]
        if key not in known:
            known[key] = jax.make_jaxpr(self.run)(*avals)
        found: ClosedJaxpr = known[key]
        return found


class Linearization(CacheKeyed, ABC):
    """How a function changes with the arguments that move; it can tell in both directions."""

    function: DifferentiableFunction
    outs: int  # results of the function
    extras: int = 0  # further arrays that it needs
    active_outputs: Flags  # the results that change
    active_inputs: Flags  # the arguments that move
    written: Any = None  # what tells apart how the pullback is written, beside the key
    eager = False

    @property
    def run(self) -> DifferentiableFunction:
        """The function as it is run where it is differentiated: rules of its own parts may say how."""
        return self.function

    @abstractmethod
    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results, and what the pullback needs beside the arguments and the further arrays."""

    @abstractmethod
    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the results that change, by those of the arguments that move."""

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The same, written such that it can be differentiated in both modes."""
        return self.jvp(args, tangents)

    @abstractmethod
    def vjp(self, given: Flags, args: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the arguments that move, by those of the given ones of the results that change."""

    @abstractmethod
    def differentiable_vjp(self, given: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The same, from the arguments alone, written such that it can be differentiated in both modes."""

"""A function without the arguments and results that nobody needs, differentiable like the whole one.

Rule: if some results of a loop inside of a step are not used, neither are the arguments that only they are computed
from, such as a buffer that an inner loop writes into; so the outer loop need not keep these. It misses a leaf of a
carry that others depend on formally alone. Cost: none; zeros stand for what is not there, and XLA removes them.
"""

from collections.abc import Sequence
from typing import Any

from jax.typing import ArrayLike

from remat.frameworks.jax.avals import (
    Array,
    Aval,
    Flags,
    merge,
    select,
    zeros_like_aval,
)
from remat.frameworks.jax.differentiable import Arrays, DifferentiableFunction, Linearization

__all__ = ["Pruned", "prune"]


def prune(
    function: DifferentiableFunction, avals: Sequence[Aval], outputs: Flags
) -> tuple[DifferentiableFunction, Flags]:
    """The function with these results alone, of those arguments that they are computed from; and which these are."""
    inputs = function.inputs_of(avals, outputs)
    if all(inputs) and all(outputs):
        return function, inputs
    return Pruned(function, tuple(avals), inputs, outputs), inputs


class Pruned(DifferentiableFunction):
    """A function of some of its arguments, to some of its results; zeros stand for arguments that they do not read."""

    def __init__(
        self, function: DifferentiableFunction, avals: tuple[Aval, ...], inputs: Flags, outputs: Flags
    ) -> None:
        self.function, self.avals, self.inputs, self.outputs = function, avals, inputs, outputs
        self.eager = function.eager
        self.key = function, avals, inputs, outputs

    def whole(self, args: Sequence[Any]) -> list[Any]:
        """All arguments of the function."""
        rest = iter(args)
        pairs = zip(self.inputs, self.avals, strict=True)
        return [next(rest) if flag else zeros_like_aval(aval) for flag, aval in pairs]

    @property
    def has_custom_rules(self) -> bool:
        """As for the whole function."""
        return self.function.has_custom_rules

    def run(self, *args: Array) -> Arrays:
        """The results that are used."""
        return select(self.outputs, self.function.run(*self.whole(args)))

    def inputs_of(self, avals: Sequence[Aval], outputs: Flags) -> Flags:
        """Those of the whole function."""
        whole = tuple(merge(self.outputs, outputs, [False] * len(self.outputs)))
        return tuple(select(self.inputs, self.function.inputs_of(self.avals, whole)))

    def linearize(self, active_inputs: Flags, args: Arrays) -> tuple[Linearization, Sequence[ArrayLike]]:
        """The linearization of the whole function, for the same arguments and results."""
        active = tuple(merge(self.inputs, active_inputs, [False] * len(self.inputs)))
        whole, extra = self.function.linearize(active, self.whole(args))
        return _PrunedLinearization(self, whole, active_inputs), extra


class _PrunedLinearization(Linearization):
    """The linearization of a function for some of its arguments and results."""

    function: Pruned

    def __init__(self, function: Pruned, whole: Linearization, active_inputs: Flags) -> None:
        self.function, self.whole, self.active_inputs = function, whole, active_inputs
        self.n_outputs, self.extra_inputs = sum(function.outputs), whole.extra_inputs
        self.active_outputs = tuple(select(function.outputs, whole.active_outputs))
        self._used = tuple(select(whole.active_outputs, function.outputs))  # of the active results, those that are used
        self.algorithm, self.eager, self.error = whole.algorithm, whole.eager, whole.error
        self.key = function, whole, active_inputs

    @property
    def needed_inputs(self) -> Flags:
        """Those of the whole function."""
        return tuple(select(self.function.inputs, self.whole.needed_inputs))

    @property
    def forward_function(self) -> DifferentiableFunction:
        """That of the whole function, pruned."""
        function = self.function
        return Pruned(self.whole.forward_function, function.avals, function.inputs, function.outputs)

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results that are used, and all residuals."""
        outputs, residuals = self.whole.forward(self.function.whole(args), extra)
        return select(self.function.outputs, outputs), residuals

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the results that are used."""
        return select(self._used, self.whole.jvp(self.function.whole(args), tangents))

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the results that are used."""
        return select(self._used, self.whole.differentiable_jvp(self.function.whole(args), tangents))

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the active inputs."""
        return self.whole.vjp(self._nonzero(nonzero), self.function.whole(args), residuals, cotangents)

    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the active inputs."""
        return self.whole.differentiable_vjp(self._nonzero(nonzero), self.function.whole(args), cotangents)

    def _nonzero(self, nonzero: Flags) -> Flags:
        return tuple(merge(self._used, nonzero, [False] * len(self._used)))

"""Functions without the arguments and results that are not needed, differentiable like the whole function.

Rule: if some results of a loop inside a step are unused, so are the arguments that only these results depend on, such
as a buffer that the inner loop writes into; the outer loop need not keep them. It misses a carry leaf that others
depend on only formally. Cost: none; zeros stand in for missing arguments, and XLA removes them.
"""

from collections.abc import Sequence
from typing import Any

from jax.typing import ArrayLike

from remat.frameworks.jax.avals import (
    Array,
    Aval,
    ClosedJaxpr,
    Flags,
    merge,
    select,
    zeros_like_aval,
)
from remat.frameworks.jax.transforms.differentiable import Arrays, DifferentiableFunction, Linearization

__all__ = ["Pruned", "prune"]


def prune(
    function: DifferentiableFunction, avals: Sequence[Aval], outputs: Flags
) -> tuple[DifferentiableFunction, Flags]:
    """The function restricted to these results and the arguments they depend on, and flags of these arguments."""
    inputs = function.inputs_of(avals, outputs)
    if all(inputs) and all(outputs):
        return function, inputs
    return Pruned(function, tuple(avals), inputs, outputs), inputs


class Pruned(DifferentiableFunction):
    """A function restricted to some arguments and results; zeros stand in for the arguments that these do not read."""

    def __init__(
        self, function: DifferentiableFunction, avals: tuple[Aval, ...], inputs: Flags, outputs: Flags
    ) -> None:
        self.function, self.avals, self.inputs, self.outputs = function, avals, inputs, outputs
        self.eager, self.algorithm = function.eager, function.algorithm
        self.key = function, avals, inputs, outputs

    def whole(self, args: Sequence[Any]) -> list[Any]:
        """All arguments of the whole function."""
        rest = iter(args)
        pairs = zip(self.inputs, self.avals, strict=True)
        return [next(rest) if flag else zeros_like_aval(aval) for flag, aval in pairs]

    @property
    def has_custom_rules(self) -> bool:
        """Whether the whole function has custom rules."""
        return self.function.has_custom_rules

    @property
    def programs(self) -> tuple[ClosedJaxpr, ...]:
        """Those of the whole function."""
        return self.function.programs

    def run(self, *args: Array) -> Arrays:
        """The used results."""
        return select(self.outputs, self.function.run(*self.whole(args)))

    def limited(self, share: int) -> DifferentiableFunction:
        """The limited whole function, pruned."""
        function = self.function.limited(share)
        return self if function is self.function else Pruned(function, self.avals, self.inputs, self.outputs)

    def inputs_of(self, avals: Sequence[Aval], outputs: Flags) -> Flags:
        """Which of its arguments these results of the whole function depend on."""
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
        self._used = tuple(select(whole.active_outputs, function.outputs))  # which active results are used
        self.algorithm, self.eager, self.error = whole.algorithm, whole.eager, whole.error
        self.key = function, whole, active_inputs

    @property
    def needed_inputs(self) -> Flags:
        """The needed inputs of the whole function, restricted to its own."""
        return tuple(select(self.function.inputs, self.whole.needed_inputs))

    @property
    def forward_function(self) -> DifferentiableFunction:
        """The forward function of the whole function, pruned."""
        function = self.function
        return Pruned(self.whole.forward_function, function.avals, function.inputs, function.outputs)

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The used results, and all residuals."""
        outputs, residuals = self.whole.forward(self.function.whole(args), extra)
        return select(self.function.outputs, outputs), residuals

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the used results."""
        return select(self._used, self.whole.jvp(self.function.whole(args), tangents))

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the used results."""
        return select(self._used, self.whole.differentiable_jvp(self.function.whole(args), tangents))

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the active inputs."""
        return self.whole.vjp(self._nonzero(nonzero), self.function.whole(args), residuals, cotangents)

    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the active inputs."""
        return self.whole.differentiable_vjp(self._nonzero(nonzero), self.function.whole(args), cotangents)

    def _nonzero(self, nonzero: Flags) -> Flags:
        return tuple(merge(self._used, nonzero, [False] * len(self._used)))

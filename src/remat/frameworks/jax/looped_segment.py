"""Segments with a loop inside, whose backward waits for its cotangents.

The rule: where XLA compiles segments that contain loops, it starts the second runs of all of them before the first
cotangent is there, so that they take more memory than a plain program: 129 MiB instead of 97 for eight sections of a
scan of 512 steps on an H200. Barriers do not change that. Here the second run is inside a loop of one turn whose trip
count is computed from a cotangent: 47 MiB. Derivatives of it are those of `jax.checkpoint`, in both modes and to any
order, since a loop of dynamic length has no reverse mode.

What it can miss: loops behind `custom_vjp` rules, side effects and inside of `shard_map` stay with `jax.checkpoint`
(`avals.has_loop` says no). The cost: zeros like the gradients, which the loop begins with.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from remat.frameworks.jax.avals import (
    Array,
    ClosedJaxpr,
    Flags,
    aval_of,
    differentiable,
    jax_checkpoint,
    jaxpr_as_fun,
    lax_fori_loop,
    merge,
    nbytes,
    select,
    zeros_like_aval,
)
from remat.frameworks.jax.cache_key import has_custom_rules
from remat.frameworks.jax.differentiable import Arrays, DifferentiableFunction, Linearization

__all__ = ["LoopedSegment"]


class LoopedSegment(DifferentiableFunction):
    """A program with a loop, as a function of what it closes over and of its arguments."""

    def __init__(self, program: ClosedJaxpr) -> None:
        self._program, self.n_consts = program, len(program.consts)
        self.active_outputs = tuple(map(differentiable, program.out_avals))

    @property
    def has_custom_rules(self) -> bool:
        """Whether its program does."""
        return has_custom_rules(self._program)

    def run(self, *args: Array) -> Arrays:
        """The results."""
        program = ClosedJaxpr(self._program.jaxpr, list(args[: self.n_consts]))
        return list(jaxpr_as_fun(program)(*args[self.n_consts :]))

    def linearize(self, active_inputs: Flags, args: Arrays) -> tuple[Linearization, Sequence[ArrayLike]]:
        """A linearization without residuals: all is computed again."""
        return _SegmentLinearization(self, active_inputs), ()


class _SegmentLinearization(Linearization):
    """The derivatives of a segment with a loop."""

    def __init__(self, segment: LoopedSegment, active_inputs: Flags) -> None:
        self.function = self.segment = segment
        self.active_inputs, self.active_outputs = active_inputs, segment.active_outputs
        self.n_outputs = len(segment.active_outputs)

    @property
    def forward_function(self) -> DifferentiableFunction:
        """The segment as it runs where it is differentiated: rules of jax.custom_jvp were asked once, and are gone."""
        return _Expanded(self.segment, self.active_inputs) if self.segment.has_custom_rules else self.segment

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results; there are no residuals."""
        return self.forward_function.run(*args), ()

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the results."""
        return list(jax.jvp(self._outputs(args), tuple(select(self.active_inputs, args)), tuple(tangents))[1])

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the active inputs, computed once those of the results are there."""
        active = select(self.active_inputs, args)
        if not cotangents:
            return [zeros_like_aval(aval_of(each)) for each in active]

        def pull_back(_: Array, carry: tuple[Arrays, Arrays]) -> tuple[Arrays, Arrays]:
            return list(jax.vjp(self._outputs(args), *active)[1](self._all(nonzero, args, carry[1]))), carry[1]

        zeros = [zeros_like_aval(aval_of(each)) for each in active]
        return list(lax_fori_loop(0, _one(cotangents), pull_back, (zeros, list(cotangents)))[0])

    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The same by `jax.checkpoint`."""
        outputs = jax_checkpoint(self._outputs(args))
        return list(jax.vjp(outputs, *select(self.active_inputs, args))[1](self._all(nonzero, args, cotangents)))

    def _outputs(self, args: Arrays) -> Any:
        """The results that have tangents, as a function of the active inputs."""

        def outputs(*active: Array) -> list[Array]:
            results = self.segment.run(*merge(self.active_inputs, active, args))
            return list(select(self.active_outputs, results))

        return outputs

    def _all(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> list[Array]:
        """The cotangents of all results that have tangents."""
        avals = select(self.active_outputs, self.segment.jaxpr([*map(aval_of, args)]).out_avals)
        rest = iter(cotangents)
        return [next(rest) if flag else zeros_like_aval(aval) for flag, aval in zip(nonzero, avals, strict=True)]


class _Expanded(LoopedSegment):
    """A segment whose custom rules are asked for tangents of some inputs: it is what they compute of its results."""

    has_custom_rules = False

    def __init__(self, segment: LoopedSegment, active_inputs: Flags) -> None:
        self._segment, self._active = segment, active_inputs
        self.active_outputs = segment.active_outputs

    def run(self, *args: Array) -> Arrays:
        """The results; nobody uses the tangents."""
        active = select(self._active, args)
        zeros = [zeros_like_aval(aval_of(each)) for each in active]
        outputs = lambda *active: list(self._segment.run(*merge(self._active, active, args)))  # noqa: E731
        return list(jax.jvp(outputs, tuple(active), tuple(zeros))[0])


def _one(cotangents: Arrays) -> Array:
    """The number 1, which no compiler knows before a cotangent is there."""
    first = next((each for each in cotangents if nbytes(aval_of(each))), None)
    if first is None:
        return jnp.asarray(1, jnp.int32)
    corner = lax.slice(first, (0,) * first.ndim, (1,) * first.ndim).reshape(())
    one: Array = jnp.minimum((corner != jnp.inf).astype(jnp.int32), 0) + 1
    return one

"""Segments that contain a loop, whose backward waits for its cotangents.

The rule: where XLA compiles segments that contain loops, it starts the recomputations of all of them before the first
cotangent is available, so that they take more memory than a plain program: 129 MiB instead of 97 for eight sections of
a scan of 512 steps on an H200. Barriers do not change that. Here the recomputation is inside a loop of one iteration
whose trip count is computed from a cotangent: 47 MiB. Its derivatives are those of `jax.checkpoint`, in both modes and
to any order, since a loop of dynamic length has no reverse mode.

What it can miss: loops behind `custom_vjp` rules, with side effects or inside `shard_map` stay with `jax.checkpoint`
(`avals.has_loop` is False for them). The cost: zeros shaped like the gradients, with which the loop starts.
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
from remat.frameworks.jax.transforms.cache_key import has_custom_rules
from remat.frameworks.jax.transforms.differentiable import Arrays, DifferentiableFunction, Linearization
from remat.frameworks.jax.transforms.loop_budgets import limit_loops

__all__ = ["LoopedSegment"]


class LoopedSegment(DifferentiableFunction):
    """A program with a loop, as a function of what it closes over and its arguments."""

    def __init__(self, program: ClosedJaxpr) -> None:
        self._program, self.n_consts = program, len(program.consts)
        self.active_outputs = tuple(map(differentiable, program.out_avals))

    @property
    def has_custom_rules(self) -> bool:
        """Whether its program has custom rules."""
        return has_custom_rules(self._program)

    @property
    def programs(self) -> tuple[ClosedJaxpr, ...]:
        """Its program."""
        return (self._program,)

    def limited(self, share: int) -> DifferentiableFunction:
        """The segment with its loops limited."""
        program = limit_loops(self._program, share)
        return self if program is self._program else LoopedSegment(program)

    def run(self, *args: Array) -> Arrays:
        """The results."""
        program = ClosedJaxpr(self._program.jaxpr, list(args[: self.n_consts]))
        return list(jaxpr_as_fun(program)(*args[self.n_consts :]))

    def linearize(self, active_inputs: Flags, args: Arrays) -> tuple[Linearization, Sequence[ArrayLike]]:
        """A linearization without residuals: everything is recomputed."""
        return _SegmentLinearization(self, active_inputs), ()


class _SegmentLinearization(Linearization):
    """The derivatives of a segment with a loop."""

    def __init__(self, segment: LoopedSegment, active_inputs: Flags) -> None:
        self.function = self.segment = segment
        self.active_inputs, self.active_outputs = active_inputs, segment.active_outputs
        self.n_outputs = len(segment.active_outputs)

    @property
    def forward_function(self) -> DifferentiableFunction:
        """The segment as it runs when differentiated, where jax.custom_jvp rules have already been expanded."""
        return _Expanded(self.segment, self.active_inputs) if self.segment.has_custom_rules else self.segment

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results; there are no residuals."""
        return self.forward_function.run(*args), ()

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of the results."""
        return list(jax.jvp(self._outputs(args), tuple(select(self.active_inputs, args)), tuple(tangents))[1])

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of the active inputs, computed once those of the results are available."""
        active = select(self.active_inputs, args)
        if not cotangents:
            return [zeros_like_aval(aval_of(each)) for each in active]

        def pull_back(_: Array, carry: tuple[Arrays, Arrays]) -> tuple[Arrays, Arrays]:
            return list(jax.vjp(self._outputs(args), *active)[1](self._all(nonzero, args, carry[1]))), carry[1]

        zeros = [zeros_like_aval(aval_of(each)) for each in active]
        return list(lax_fori_loop(0, _one(cotangents), pull_back, (zeros, list(cotangents)))[0])

    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """Like `vjp`, by `jax.checkpoint`."""
        outputs = jax_checkpoint(self._outputs(args))
        return list(jax.vjp(outputs, *select(self.active_inputs, args))[1](self._all(nonzero, args, cotangents)))

    def _outputs(self, args: Arrays) -> Any:
        """A function from the active inputs to the results that have tangents."""

        def outputs(*active: Array) -> list[Array]:
            results = self.segment.run(*merge(self.active_inputs, active, args))
            return list(select(self.active_outputs, results))

        return outputs

    def _all(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> list[Array]:
        """The cotangents of all results that have tangents, with zeros for those that are missing."""
        avals = select(self.active_outputs, self.segment.jaxpr([*map(aval_of, args)]).out_avals)
        rest = iter(cotangents)
        return [next(rest) if flag else zeros_like_aval(aval) for flag, aval in zip(nonzero, avals, strict=True)]


class _Expanded(LoopedSegment):
    """A segment whose results are computed through its custom JVP rules, for tangents of the active inputs."""

    has_custom_rules = False

    def __init__(self, segment: LoopedSegment, active_inputs: Flags) -> None:
        self._segment, self._active, self._program = segment, active_inputs, segment._program
        self.active_outputs = segment.active_outputs

    def run(self, *args: Array) -> Arrays:
        """The results; the tangents are not used."""
        active = select(self._active, args)
        zeros = [zeros_like_aval(aval_of(each)) for each in active]
        outputs = lambda *active: list(self._segment.run(*merge(self._active, active, args)))  # noqa: E731
        return list(jax.jvp(outputs, tuple(active), tuple(zeros))[0])


def _one(cotangents: Arrays) -> Array:
    """The number 1, which the compiler cannot know before a cotangent is available."""
    first = next((each for each in cotangents if nbytes(aval_of(each))), None)
    if first is None:
        return jnp.asarray(1, jnp.int32)
    corner = lax.slice(first, (0,) * first.ndim, (1,) * first.ndim).reshape(())
    one: Array = jnp.minimum((corner != jnp.inf).astype(jnp.int32), 0) + 1
    return one

"""Forward-with-residuals and VJP as differentiable functions, plain and batched, with their linearizations.

Residuals are never differentiated: they are a function of the arguments, and a VJP is differentiated as a function of
arguments and cotangents. So a derivative of order k needs only the five methods of a `Linearization`.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from remat.frameworks.jax.avals import (
    Array,
    Aval,
    BatchAxis,
    ClosedJaxpr,
    Flags,
    aval_of,
    in_axes_of,
    merge,
    row_aval,
    select,
)
from remat.frameworks.jax.transforms.differentiable import Arrays, DifferentiableFunction, Linearization
from remat.frameworks.jax.transforms.propagation import batched_avals, batched_results

__all__ = ["VJP", "Batched", "BatchedLinearization", "ForwardWithResiduals"]

T = TypeVar("T")


class ForwardWithResiduals(DifferentiableFunction):
    """The results of a function, followed by the residuals that its VJP needs."""

    def __init__(self, linearization: Linearization) -> None:
        self.linearization, self.eager = linearization, linearization.eager
        self.key, self.algorithm = linearization, linearization.algorithm

    @property
    def has_custom_rules(self) -> bool:
        """Whether the function has custom rules."""
        return self.linearization.has_custom_rules

    @property
    def programs(self) -> tuple[ClosedJaxpr, ...]:
        """Those of the function."""
        return self.linearization.function.programs

    def run(self, *args: Array) -> Arrays:
        """Results and residuals; the extra arrays are the last arguments."""
        count = len(args) - self.linearization.extra_inputs
        outputs, residuals = self.linearization.forward(args[:count], args[count:])
        return [*outputs, *residuals]

    def inputs_of(self, avals: Sequence[Aval], outputs: Flags) -> Flags:
        """The inputs of the used results of the function; if residuals are used, also those that a VJP needs."""
        inner, n = self.linearization, self.linearization.n_outputs
        count = len(avals) - inner.extra_inputs
        inputs = inner.forward_function.inputs_of(avals[:count], outputs[:n])
        if any(outputs[n:]):
            inputs = tuple(a or b for a, b in zip(inputs, inner.needed_inputs, strict=True))
        return (*inputs, *([True] * inner.extra_inputs))

    def linearize(self, active_inputs: Flags, args: Arrays) -> tuple[Linearization, Sequence[ArrayLike]]:
        """The linearization of the function's results; residuals have no tangents."""
        count = len(args) - self.linearization.extra_inputs
        inner, extra = self.linearization.forward_function.linearize(active_inputs[:count], args[:count])
        # The number of residuals is only known after tracing.
        return _ForwardLinearization(self, inner, active_inputs, len(self.jaxpr(args).out_avals)), extra


class VJP(DifferentiableFunction):
    """The cotangents of the active inputs, as a function of arguments, residuals and nonzero cotangents."""

    def __init__(self, linearization: Linearization, nonzero: Flags, n_residuals: int) -> None:
        self.linearization, self.nonzero, self.n_residuals = linearization, nonzero, n_residuals
        self.eager, self.algorithm = linearization.eager, linearization.algorithm
        self.key = linearization, nonzero, n_residuals

    def split_args(self, args: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        """The arguments of the function, the residuals, and the cotangents."""
        a = len(self.linearization.active_inputs)
        b = a + self.n_residuals
        return args[:a], args[a:b], args[b:]

    @property
    def has_custom_rules(self) -> bool:
        """Whether the function has custom rules."""
        return self.linearization.has_custom_rules

    @property
    def programs(self) -> tuple[ClosedJaxpr, ...]:
        """Those of the function."""
        return self.linearization.function.programs

    def run(self, *args: Array) -> Arrays:
        """The cotangents of the active inputs."""
        return self.linearization.vjp(self.nonzero, *self.split_args(args))

    def inputs_of(self, avals: Sequence[Aval], outputs: Flags) -> Flags:
        """The inputs that are read, and the arguments that residuals depend on: the derivative is taken for these."""
        needed = self.linearization.needed_inputs
        return (*needed, *super().inputs_of(avals, outputs)[len(needed) :])

    def linearize(self, active_inputs: Flags, args: Arrays) -> tuple[Linearization, Sequence[ArrayLike]]:
        """The linearization with respect to arguments and cotangents."""
        return _VJPLinearization(self, active_inputs), ()


class _ForwardLinearization(Linearization):
    """The linearization of a forward run with residuals: that of the function, for its results only."""

    def __init__(
        self, function: ForwardWithResiduals, inner: Linearization, active_inputs: Flags, n_outputs: int
    ) -> None:
        self.function = self.outer = function
        self.inner, self.active_inputs, self.n_outputs = inner, active_inputs, n_outputs
        self.extra_inputs = (
            inner.extra_inputs
        )  # its own plan: other inputs may be active than in the first linearization
        self.active_outputs = (*inner.active_outputs, *([False] * (n_outputs - len(inner.active_outputs))))
        self.algorithm = inner.algorithm
        self.key, self.eager = (function, inner, active_inputs, n_outputs), inner.eager

    @property
    def needed_inputs(self) -> Flags:
        """The needed inputs of the function, and all extra arrays."""
        count = len(self.active_inputs) - len(self.inner.needed_inputs)
        return (*self.inner.needed_inputs, *([True] * count))

    def _inner_args(self, args: Arrays) -> Arrays:
        return args[: len(self.inner.active_inputs)]

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results and residuals of the function, and the residuals of its own VJP."""
        outputs, residuals = self.inner.forward(self._inner_args(args), extra)
        if self.inner == self.outer.linearization:  # the same inputs are active, so one run gives both
            return [*outputs, *residuals], residuals
        return self.outer.run(*args), residuals

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The JVP of the function."""
        return self.inner.jvp(self._inner_args(args), tangents)

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The differentiable JVP of the function."""
        return self.inner.differentiable_jvp(self._inner_args(args), tangents)

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The VJP of the function."""
        return self.inner.vjp(nonzero, self._inner_args(args), residuals, cotangents)

    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The differentiable VJP of the function."""
        return self.inner.differentiable_vjp(nonzero, self._inner_args(args), cotangents)


class _VJPLinearization(Linearization):
    """The linearization of a VJP with respect to arguments and cotangents; residuals follow from the arguments."""

    def __init__(self, function: VJP, active_inputs: Flags) -> None:
        self.function = self.outer = function
        self.inner = function.linearization
        self.active_inputs = active_inputs
        self.n_outputs = sum(self.inner.active_inputs)
        self.active_outputs = (True,) * self.n_outputs
        self.algorithm = self.inner.algorithm
        # The key of `function` covers `vjp`; loops of different lengths or plans differ only in `differentiable_vjp`.
        self.key = function, active_inputs, self.algorithm

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The cotangents, without residuals."""
        return self.outer.run(*args), ()

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """Forward over reverse: both sweeps run again with tangents, in the memory of two runs."""
        # The residuals in `args` come from a run without tangents, so the forward sweep has to run again with them.
        extra = self.outer.split_args(args)[1][: self.inner.extra_inputs]

        def both_sweeps(*active: Array) -> Arrays:
            inputs, _, cotangents = self.outer.split_args(merge(self.active_inputs, active, args))
            residuals = self.inner.forward(inputs, extra)[1]
            return self.inner.vjp(self.outer.nonzero, inputs, [*extra, *residuals], cotangents)

        return _tangents(both_sweeps, select(self.active_inputs, args), tangents)

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents, through the differentiable VJP of the function."""
        return _tangents(self._differentiable(args), select(self.active_inputs, args), tangents)

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Reverse over reverse, through the differentiable VJP of the function."""
        return self.differentiable_vjp(nonzero, args, cotangents)

    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents, through the differentiable VJP of the function."""
        outputs, vjp = jax.vjp(
            lambda *active: select(nonzero, self._differentiable(args)(*active)), *select(self.active_inputs, args)
        )
        return vjp([cotangent.astype(output.dtype) for cotangent, output in zip(cotangents, outputs, strict=True)])  # type: ignore[no-any-return]

    def _differentiable(self, args: Arrays) -> Callable[..., Arrays]:
        """The VJP as a function of the active inputs, by operations that JAX can differentiate."""

        def vjp(*active: Array) -> Arrays:
            inputs, _, cotangents = self.outer.split_args(merge(self.active_inputs, active, args))
            return list(self.inner.differentiable_vjp(self.outer.nonzero, inputs, cotangents))

        return vjp


class Batched(DifferentiableFunction):
    """A function for a batch: the first axis of the flagged arguments, and of the results that vmap reports as batched.

    A result that all members share is not broadcast; random keys, for example, may draw other numbers with a batch
    axis.
    """

    def __init__(self, function: DifferentiableFunction, axis: BatchAxis, flags: Flags) -> None:
        self.function, self.axis, self.flags = function, axis, flags
        self.key, self.algorithm = (function, axis, flags), function.algorithm

    @property
    def has_custom_rules(self) -> bool:
        """Whether the function of one member has custom rules."""
        return self.function.has_custom_rules

    @property
    def programs(self) -> tuple[ClosedJaxpr, ...]:
        """Those of one member."""
        return self.function.programs

    def run(self, *args: Array) -> Arrays:
        """The results of all members."""
        flags = self.batched_results(args)
        return list(self.axis.vmap(self._member, tuple(in_axes_of(self.flags)), in_axes_of(flags))(*args))

    def _member(self, *args: Array) -> list[Array]:
        return list(self.function.run(*args))

    def limited(self, share: int) -> DifferentiableFunction:
        """The limited function of one member, for a batch."""
        function = self.function.limited(share)
        return self if function is self.function else Batched(function, self.axis, self.flags)

    def _with_axis(self, function: Callable[[], T]) -> T:
        """The result of a function that traces one member, which may ask for the named axis, as if under vmap."""
        results: list[T] = []
        self.axis.vmap(lambda: results.append(function()), ())()
        return results[0]

    def member_avals(self, args: Sequence[Aval]) -> list[Aval]:
        """The avals of the arguments of one member."""
        return [row_aval(arg) if flag else aval_of(arg) for arg, flag in zip(args, self.flags, strict=True)]

    def inputs_of(self, avals: Sequence[Aval], outputs: Flags) -> Flags:
        """Those of one member."""
        return self._with_axis(lambda: self.function.inputs_of(self.member_avals(avals), outputs))

    def batched_results(self, args: Arrays) -> Flags:
        """Which results are batched; cached, since nested loops would ask ever more often."""
        known: dict[object, Flags] = self.__dict__.setdefault("_batched_results", {})
        avals = self.member_avals(args)
        key = (*avals, jax.config.jax_enable_x64)  # type: ignore[attr-defined]
        if key not in known:
            known[key] = batched_results(self._member, self.axis, avals, self.flags)
        return known[key]

    def linearize(self, active_inputs: Flags, args: Arrays) -> tuple[Linearization, Sequence[ArrayLike]]:
        """The linearization of one member, for a batch."""
        # Planning needs the sizes of one member; the extra arrays are the same for all.
        member = [
            aval if flag else arg for arg, aval, flag in zip(args, self.member_avals(args), self.flags, strict=True)
        ]
        linearization, extra = self._with_axis(lambda: self.function.linearize(active_inputs, member))

        def forward(*args: Array) -> list[Array]:
            outputs, residuals = linearization.forward(args, [*map(jnp.asarray, extra)])
            return [*outputs, *residuals]

        flags = batched_results(forward, self.axis, self.member_avals(args), self.flags)
        outputs, residuals = flags[: linearization.n_outputs], flags[linearization.n_outputs :]
        tangents = tuple(select(active_inputs, self.flags))
        return BatchedLinearization(self, linearization, outputs, residuals, tangents), extra


class BatchedLinearization(Linearization):
    """The linearization of a function for a batch, along the first axis of everything that is batched.

    `outputs`, `residuals` (without the extra arrays) and `tangents` are flags that say which of these are batched;
    tangents may be batched where arguments are not, as in jax.jacfwd.
    """

    function: Batched

    def __init__(
        self, function: Batched, member: Linearization, outputs: Flags, residuals: Flags, tangents: Flags
    ) -> None:
        self.function, self.member, self.outputs, self.residuals = function, member, outputs, residuals
        self.tangents = tangents
        self.axis, self.flags = function.axis, function.flags
        self.n_outputs, self.extra_inputs = member.n_outputs, member.extra_inputs
        self.active_inputs, self.active_outputs = member.active_inputs, member.active_outputs
        self.algorithm = member.algorithm
        self.key = function, member, outputs, residuals, tangents

    def output_avals(self, args: Sequence[Aval]) -> list[Aval]:
        """Those of one member, with a batch axis where outputs are batched."""
        return batched_avals(self.member.output_avals(self.function.member_avals(args)), self.axis, self.outputs)

    @property
    def needed_inputs(self) -> Flags:
        """The needed inputs of one member."""
        return self.member.needed_inputs

    @property
    def forward_function(self) -> DifferentiableFunction:
        """The forward function of one member, for a batch."""
        return Batched(self.member.forward_function, self.axis, self.flags)

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results and residuals of all members."""

        def one(*args: Array) -> list[Array]:
            outputs, residuals = self.member.forward(args, extra)
            return [*outputs, *residuals]

        flags = (*self.outputs, *self.residuals)
        results = self.axis.vmap(one, tuple(in_axes_of(self.flags)), in_axes_of(flags))(*args)
        return results[: self.n_outputs], results[self.n_outputs :]

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of all members."""
        return self._push(self.member.jvp, args, tangents)

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of all members."""
        return self._push(self.member.differentiable_jvp, args, tangents)

    def _push(self, jvp: Callable[..., Arrays], args: Arrays, tangents: Arrays) -> Arrays:
        in_axes = in_axes_of(self.flags), in_axes_of(self.tangents)
        out_axes = in_axes_of(select(self.active_outputs, self.outputs))
        all_members = self.axis.vmap(lambda args, tangents: list(jvp(args, tangents)), in_axes, out_axes)
        return all_members(list(args), list(tangents))  # type: ignore[no-any-return]

    def vjp(self, nonzero: Flags, args: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of all members, summed for arguments that the members share."""
        extra, member_residuals = list(residuals[: self.extra_inputs]), list(residuals[self.extra_inputs :])

        def one(args: Arrays, residuals: Arrays, cotangents: Arrays) -> list[Array]:
            return list(self.member.vjp(nonzero, args, [*extra, *residuals], cotangents))

        all_members = self.axis.vmap(one, (in_axes_of(self.flags), in_axes_of(self.residuals), 0))
        return self._sum_shared(all_members(list(args), member_residuals, self._for_members(nonzero, cotangents)))

    def differentiable_vjp(self, nonzero: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of all members, summed for arguments that the members share."""
        all_members = self.axis.vmap(
            lambda args, cotangents: list(self.member.differentiable_vjp(nonzero, args, cotangents)),
            (in_axes_of(self.flags), 0),
        )
        return self._sum_shared(all_members(list(args), self._for_members(nonzero, cotangents)))

    def _for_members(self, nonzero: Flags, cotangents: Arrays) -> list[Array]:
        """The cotangents with a batch axis; that of a result which all members share goes to the first member only."""
        flags = select(nonzero, select(self.active_outputs, self.outputs))
        return [
            bar if flag else jnp.zeros((self.axis.size, *bar.shape), bar.dtype).at[:1].set(bar)
            for bar, flag in zip(cotangents, flags, strict=True)
        ]

    def _sum_shared(self, cotangents: Arrays) -> Arrays:
        """The cotangents, summed for shared arguments: the transpose of broadcasting a tangent to all members."""
        pairs = zip(cotangents, self.tangents, strict=True)
        return [cotangent if flag else cotangent.sum(0) for cotangent, flag in pairs]


def _tangents(function: Callable[..., Arrays], args: Arrays, tangents: Arrays) -> Arrays:
    """The tangents of a function's results, by jax.jvp."""
    output_tangents: Arrays = jax.jvp(lambda *args: list(function(*args)), tuple(args), tuple(tangents))[1]
    return output_tangents

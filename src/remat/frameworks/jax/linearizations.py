"""Functions made of derivatives: a run that saves, a pullback, and either of them for a batch; with their derivatives.

What is saved is not differentiated: it follows from the arguments, and a pullback is differentiated as a function of
these and of the cotangents.
"""

from collections.abc import Callable
from typing import Any

import jax

from remat.frameworks.jax.avals import Flags, merge, row_aval, select
from remat.frameworks.jax.batch_axes import axis_cache_key, in_axes_of, vmap_along
from remat.frameworks.jax.differentiable import Arrays, DifferentiableFunction, Linearization

__all__ = ["VJP", "Batched", "BatchedLinearization", "ForwardWithResiduals"]


class ForwardWithResiduals(DifferentiableFunction):
    """The run that saves what the pullback needs; its results are those of the function, and then these."""

    def __init__(self, of: Linearization) -> None:
        self.of, self.eager = of, of.eager
        self.key = of

    def run(self, *args: Any) -> Arrays:
        """The results, and what is saved."""
        count = len(args) - self.of.extras
        outs, saved = self.of.forward(args[:count], args[count:])
        return [*outs, *saved]

    def linearize(self, active_inputs: Flags, args: Arrays) -> tuple[Linearization, Arrays]:
        """The derivative of the results; what is saved does not change."""
        count = len(args) - self.of.extras
        by, extra = self.of.run.linearize(active_inputs[:count], args[:count])
        return _ForwardLinearization(self, by, active_inputs, len(self.traced(args).out_avals)), extra


class VJP(DifferentiableFunction):
    """The pullback, a function of the arguments, of what was saved and of the given cotangents."""

    def __init__(self, of: Linearization, given: Flags, saved: int) -> None:
        self.of, self.given, self.saved, self.eager = of, given, saved, of.eager
        self.key = of, given, saved

    def run(self, *args: Any) -> Arrays:
        """The cotangents of the arguments that move."""
        count = len(self.of.active_inputs)
        return self.of.vjp(self.given, args[:count], args[count : count + self.saved], args[count + self.saved :])

    def linearize(self, active_inputs: Flags, args: Arrays) -> tuple[Linearization, Arrays]:
        """The derivative of the pullback as a function of arguments and cotangents."""
        return _VJPLinearization(self, active_inputs), ()


class _ForwardLinearization(Linearization):
    """The derivative of a run that saves: of its results alone, by the same means."""

    def __init__(self, function: ForwardWithResiduals, of: Linearization, active_inputs: Flags, outs: int) -> None:
        self.function = self.by = function
        self.of, self.active_inputs, self.outs, self.extras = of, active_inputs, outs, of.extras
        self.active_outputs = (*of.active_outputs, *([False] * (outs - len(of.active_outputs))))
        self.written = of.written
        self.key, self.eager = (function, of, active_inputs, outs), of.eager

    def _args(self, args: Arrays) -> Arrays:
        return args[: len(self.of.active_inputs)]

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results with what is saved; and what is saved here, the same if the same arguments move."""
        outs, saved = self.of.forward(self._args(args), extra)
        if self.of == self.by.of:
            return [*outs, *saved], saved
        return self.by.run(*args), saved

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """As of the function."""
        return self.of.jvp(self._args(args), tangents)

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """As of the function."""
        return self.of.differentiable_jvp(self._args(args), tangents)

    def vjp(self, given: Flags, args: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
        """As of the function."""
        return self.of.vjp(given, self._args(args), saved, cotangents)

    def differentiable_vjp(self, given: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """As of the function."""
        return self.of.differentiable_vjp(given, self._args(args), cotangents)


class _VJPLinearization(Linearization):
    """The derivative of a pullback. What was saved is left out of it: it follows from the arguments."""

    def __init__(self, of: VJP, active_inputs: Flags) -> None:
        self.function = self.of = of
        self.active_inputs = active_inputs
        self.outs = sum(of.of.active_inputs)
        self.active_outputs = (True,) * self.outs
        self.written = of.of.written
        self.key = of, active_inputs, self.written
        count = len(of.of.active_inputs)
        self._saved = slice(count, count + of.saved)

    def _apart(self, args: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        return args[: self._saved.start], args[self._saved], args[self._saved.stop :]

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The cotangents; nothing is saved."""
        return self.of.run(*args), ()

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """By running forward and back with tangents, in the memory of two runs."""
        first, saved, _ = self._apart(args)
        extra = saved[: self.of.of.extras]

        def both(*moved: Any) -> Arrays:
            found = merge(self.active_inputs, moved, args)
            again = self.of.of.forward(found[: len(first)], extra)[1]
            return self.of.of.vjp(self.of.given, found[: len(first)], [*extra, *again], found[self._saved.stop :])

        return _pushed_through(both, select(self.active_inputs, args), tangents)

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """Through the loops that it can be written as."""
        return _pushed_through(self._written(args), select(self.active_inputs, args), tangents)

    def vjp(self, given: Flags, args: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
        """Through the loops that it can be written as."""
        return self.differentiable_vjp(given, args, cotangents)

    def differentiable_vjp(self, given: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """Through the loops that it can be written as."""
        found, back = jax.vjp(
            lambda *moved: select(given, self._written(args)(*moved)), *select(self.active_inputs, args)
        )
        return back([cotangent.astype(out.dtype) for cotangent, out in zip(cotangents, found, strict=True)])  # type: ignore[no-any-return]

    def _written(self, args: Arrays) -> Callable[..., Arrays]:
        def written(*moved: Any) -> Arrays:
            first, _, cotangents = self._apart(merge(self.active_inputs, moved, args))
            return list(self.of.of.differentiable_vjp(self.of.given, first, cotangents))

        return written


class Batched(DifferentiableFunction):
    """A function for a batch: the first axis of the flagged arguments, and of all results."""

    def __init__(self, of: DifferentiableFunction, axis: Any, flags: Flags) -> None:
        self.of, self.axis, self.flags = of, axis, flags
        self.key = of, axis_cache_key(axis), flags

    def run(self, *args: Any) -> Arrays:
        """The results of all."""
        return list(vmap_along(lambda *args: list(self.of.run(*args)), self.axis, tuple(in_axes_of(self.flags)))(*args))

    def linearize(self, active_inputs: Flags, args: Arrays) -> tuple[Linearization, Arrays]:
        """The derivative for a batch."""
        one = [row_aval(arg) if flag else arg for arg, flag in zip(args, self.flags, strict=True)]
        of, extra = self.of.linearize(active_inputs, one)
        return BatchedLinearization(self, of, self.axis, self.flags), extra


class BatchedLinearization(Linearization):
    """The derivative of a function for a batch."""

    def __init__(self, function: DifferentiableFunction, of: Linearization, axis: Any, flags: Flags) -> None:
        self.function, self.of, self.axis, self.flags = function, of, axis, flags
        self.outs, self.extras, self.active_outputs, self.active_inputs = (
            of.outs,
            of.extras,
            of.active_outputs,
            of.active_inputs,
        )
        self.written = of.written
        self.key = of, axis_cache_key(axis), flags

    @property
    def run(self) -> DifferentiableFunction:
        """As of the function, for a batch."""
        return Batched(self.of.run, self.axis, self.flags)

    def forward(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results of all, and what is saved for each."""

        def one(*args: Any) -> tuple[list[Any], list[Any]]:
            outs, saved = self.of.forward(args, extra)
            return list(outs), list(saved)

        found: tuple[Arrays, Arrays] = vmap_along(one, self.axis, tuple(in_axes_of(self.flags)))(*args)
        return found

    def jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of all."""
        return self._forward(self.of.jvp, args, tangents)

    def differentiable_jvp(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of all."""
        return self._forward(self.of.differentiable_jvp, args, tangents)

    def _forward(self, jvp: Callable[..., Arrays], args: Arrays, tangents: Arrays) -> Arrays:
        flags = in_axes_of(self.flags)
        both = vmap_along(
            lambda args, tangents: list(jvp(args, tangents)), self.axis, (flags, select(self.active_inputs, flags))
        )
        return both(list(args), list(tangents))  # type: ignore[no-any-return]

    def vjp(self, given: Flags, args: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of all; what they share gets the sum."""
        extra, rest = list(saved[: self.extras]), list(saved[self.extras :])

        def one(args: Arrays, rest: Arrays, cotangents: Arrays) -> list[Any]:
            return list(self.of.vjp(given, args, [*extra, *rest], cotangents))

        found = vmap_along(one, self.axis, (in_axes_of(self.flags), 0, 0))(list(args), rest, list(cotangents))
        return self._summed(found)

    def differentiable_vjp(self, given: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of all; what they share gets the sum."""
        one = vmap_along(
            lambda args, ct: list(self.of.differentiable_vjp(given, args, ct)), self.axis, (in_axes_of(self.flags), 0)
        )
        return self._summed(one(list(args), list(cotangents)))

    def _summed(self, found: Arrays) -> Arrays:
        """What all of a batch share gets the sum."""
        flags = select(self.active_inputs, self.flags)
        return [part if flag else part.sum(0) for part, flag in zip(found, flags, strict=True)]


def _pushed_through(function: Callable[..., Arrays], args: Arrays, tangents: Arrays) -> Arrays:
    found: Arrays = jax.jvp(lambda *args: list(function(*args)), tuple(args), tuple(tangents))[1]
    return found

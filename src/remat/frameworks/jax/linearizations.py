"""Functions made of derivatives: a run that saves, a pullback, and either of them for a batch; with their derivatives.

What is saved is not differentiated: it follows from the arguments, and a pullback is differentiated as a function of
these and of the cotangents.
"""

from collections.abc import Callable
from typing import Any

import jax

from remat.frameworks.jax.avals import Flags, merged, picked, without_first
from remat.frameworks.jax.batch_axes import axes, axis_key, mapping
from remat.frameworks.jax.differentiable import Arrays, Derivative, Function

__all__ = ["Mapped", "MappedDerivative", "Pull", "Saving"]


class Saving(Function):
    """The run that saves what the pullback needs; its results are those of the function, and then these."""

    def __init__(self, of: Derivative) -> None:
        self.of, self.eager = of, of.eager
        self.key = of

    def run(self, *args: Any) -> Arrays:
        """The results, and what is saved."""
        count = len(args) - self.of.extras
        outs, saved = self.of.saving(args[:count], args[count:])
        return [*outs, *saved]

    def derivative(self, moving: Flags, args: Arrays) -> tuple[Derivative, Arrays]:
        """The derivative of the results; what is saved does not change."""
        count = len(args) - self.of.extras
        by, extra = self.of.run.derivative(moving[:count], args[:count])
        return _SavingDerivative(self, by, moving, len(self.traced(args).out_avals)), extra


class Pull(Function):
    """The pullback, a function of the arguments, of what was saved and of the given cotangents."""

    def __init__(self, of: Derivative, given: Flags, saved: int) -> None:
        self.of, self.given, self.saved, self.eager = of, given, saved, of.eager
        self.key = of, given, saved

    def run(self, *args: Any) -> Arrays:
        """The cotangents of the arguments that move."""
        count = len(self.of.moving)
        return self.of.pull(self.given, args[:count], args[count : count + self.saved], args[count + self.saved :])

    def derivative(self, moving: Flags, args: Arrays) -> tuple[Derivative, Arrays]:
        """The derivative of the pullback as a function of arguments and cotangents."""
        return _PullDerivative(self, moving), ()


class _SavingDerivative(Derivative):
    """The derivative of a run that saves: of its results alone, by the same means."""

    def __init__(self, function: Saving, of: Derivative, moving: Flags, outs: int) -> None:
        self.function = self.by = function
        self.of, self.moving, self.outs, self.extras = of, moving, outs, of.extras
        self.flowing = (*of.flowing, *([False] * (outs - len(of.flowing))))
        self.written = of.written
        self.key, self.eager = (function, of, moving, outs), of.eager

    def _args(self, args: Arrays) -> Arrays:
        return args[: len(self.of.moving)]

    def saving(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results with what is saved; and what is saved here, the same if the same arguments move."""
        outs, saved = self.of.saving(self._args(args), extra)
        if self.of == self.by.of:
            return [*outs, *saved], saved
        return self.by.run(*args), saved

    def push(self, args: Arrays, tangents: Arrays) -> Arrays:
        """As of the function."""
        return self.of.push(self._args(args), tangents)

    def pushed(self, args: Arrays, tangents: Arrays) -> Arrays:
        """As of the function."""
        return self.of.pushed(self._args(args), tangents)

    def pull(self, given: Flags, args: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
        """As of the function."""
        return self.of.pull(given, self._args(args), saved, cotangents)

    def pulled(self, given: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """As of the function."""
        return self.of.pulled(given, self._args(args), cotangents)


class _PullDerivative(Derivative):
    """The derivative of a pullback. What was saved is left out of it: it follows from the arguments."""

    def __init__(self, of: Pull, moving: Flags) -> None:
        self.function = self.of = of
        self.moving = moving
        self.outs = sum(of.of.moving)
        self.flowing = (True,) * self.outs
        self.written = of.of.written
        self.key = of, moving, self.written
        count = len(of.of.moving)
        self._saved = slice(count, count + of.saved)

    def _apart(self, args: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        return args[: self._saved.start], args[self._saved], args[self._saved.stop :]

    def saving(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The cotangents; nothing is saved."""
        return self.of.run(*args), ()

    def push(self, args: Arrays, tangents: Arrays) -> Arrays:
        """By running forward and back with tangents, in the memory of two runs."""
        first, saved, _ = self._apart(args)
        extra = saved[: self.of.of.extras]

        def both(*moved: Any) -> Arrays:
            found = merged(self.moving, moved, args)
            again = self.of.of.saving(found[: len(first)], extra)[1]
            return self.of.of.pull(self.of.given, found[: len(first)], [*extra, *again], found[self._saved.stop :])

        return _pushed_through(both, picked(self.moving, args), tangents)

    def pushed(self, args: Arrays, tangents: Arrays) -> Arrays:
        """Through the loops that it can be written as."""
        return _pushed_through(self._written(args), picked(self.moving, args), tangents)

    def pull(self, given: Flags, args: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
        """Through the loops that it can be written as."""
        return self.pulled(given, args, cotangents)

    def pulled(self, given: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """Through the loops that it can be written as."""
        found, back = jax.vjp(lambda *moved: picked(given, self._written(args)(*moved)), *picked(self.moving, args))
        return back([cotangent.astype(out.dtype) for cotangent, out in zip(cotangents, found, strict=True)])  # type: ignore[no-any-return]

    def _written(self, args: Arrays) -> Callable[..., Arrays]:
        def written(*moved: Any) -> Arrays:
            first, _, cotangents = self._apart(merged(self.moving, moved, args))
            return list(self.of.of.pulled(self.of.given, first, cotangents))

        return written


class Mapped(Function):
    """A function for a batch: the first axis of the flagged arguments, and of all results."""

    def __init__(self, of: Function, axis: Any, flags: Flags) -> None:
        self.of, self.axis, self.flags = of, axis, flags
        self.key = of, axis_key(axis), flags

    def run(self, *args: Any) -> Arrays:
        """The results of all."""
        return list(mapping(lambda *args: list(self.of.run(*args)), self.axis, tuple(axes(self.flags)))(*args))

    def derivative(self, moving: Flags, args: Arrays) -> tuple[Derivative, Arrays]:
        """The derivative for a batch."""
        one = [without_first(arg) if flag else arg for arg, flag in zip(args, self.flags, strict=True)]
        of, extra = self.of.derivative(moving, one)
        return MappedDerivative(self, of, self.axis, self.flags), extra


class MappedDerivative(Derivative):
    """The derivative of a function for a batch."""

    def __init__(self, function: Function, of: Derivative, axis: Any, flags: Flags) -> None:
        self.function, self.of, self.axis, self.flags = function, of, axis, flags
        self.outs, self.extras, self.flowing, self.moving = of.outs, of.extras, of.flowing, of.moving
        self.written = of.written
        self.key = of, axis_key(axis), flags

    @property
    def run(self) -> Function:
        """As of the function, for a batch."""
        return Mapped(self.of.run, self.axis, self.flags)

    def saving(self, args: Arrays, extra: Arrays) -> tuple[Arrays, Arrays]:
        """The results of all, and what is saved for each."""

        def one(*args: Any) -> tuple[list[Any], list[Any]]:
            outs, saved = self.of.saving(args, extra)
            return list(outs), list(saved)

        found: tuple[Arrays, Arrays] = mapping(one, self.axis, tuple(axes(self.flags)))(*args)
        return found

    def push(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of all."""
        return self._forward(self.of.push, args, tangents)

    def pushed(self, args: Arrays, tangents: Arrays) -> Arrays:
        """The tangents of all."""
        return self._forward(self.of.pushed, args, tangents)

    def _forward(self, push: Callable[..., Arrays], args: Arrays, tangents: Arrays) -> Arrays:
        flags = axes(self.flags)
        both = mapping(
            lambda args, tangents: list(push(args, tangents)), self.axis, (flags, picked(self.moving, flags))
        )
        return both(list(args), list(tangents))  # type: ignore[no-any-return]

    def pull(self, given: Flags, args: Arrays, saved: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of all; what they share gets the sum."""
        extra, rest = list(saved[: self.extras]), list(saved[self.extras :])

        def one(args: Arrays, rest: Arrays, cotangents: Arrays) -> list[Any]:
            return list(self.of.pull(given, args, [*extra, *rest], cotangents))

        found = mapping(one, self.axis, (axes(self.flags), 0, 0))(list(args), rest, list(cotangents))
        return self._summed(found)

    def pulled(self, given: Flags, args: Arrays, cotangents: Arrays) -> Arrays:
        """The cotangents of all; what they share gets the sum."""
        one = mapping(lambda args, ct: list(self.of.pulled(given, args, ct)), self.axis, (axes(self.flags), 0))
        return self._summed(one(list(args), list(cotangents)))

    def _summed(self, found: Arrays) -> Arrays:
        """What all of a batch share gets the sum."""
        flags = picked(self.moving, self.flags)
        return [part if flag else part.sum(0) for part, flag in zip(found, flags, strict=True)]


def _pushed_through(function: Callable[..., Arrays], args: Arrays, tangents: Arrays) -> Arrays:
    found: Arrays = jax.jvp(lambda *args: list(function(*args)), tuple(args), tuple(tangents))[1]
    return found

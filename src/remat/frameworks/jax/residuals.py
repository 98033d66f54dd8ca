"""The tape of a step, as arrays: what its pullback needs beside its constants and inputs.

In: a step, and where tangents flow. Out: a program that runs the step and gives its tape, and the pullback of that. An
array of the tape that does not depend on carry and input is the same for all steps, and is held once for a unit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from remat.errors import StepError
from remat.frameworks.jax.avals import Flags, merge, nbytes, select
from remat.frameworks.jax.differentiable import Arrays, CacheKeyed
from remat.frameworks.jax.step_jaxpr import Step, depends_on

__all__ = ["Activity", "StepVJP", "Tape"]


class Activity(NamedTuple):
    """Which arguments of a step move, and where tangents flow to."""

    consts: Flags
    xs: Flags
    carry: Flags  # after any number of steps
    ys: Flags

    def through(
        self, step: Step, consts: Arrays, carry: Arrays, x: Arrays
    ) -> tuple[Callable[..., Any], tuple[list[Any], list[Any], list[Any]]]:
        """The step as a function of what moves, to what tangents flow to and to all that it gives; and what moves."""

        def moved(consts_: Arrays, carry_: Arrays, x_: Arrays) -> Any:
            after, y = step(
                merge(self.consts, consts_, consts), merge(self.carry, carry_, carry), merge(self.xs, x_, x)
            )
            return (select(self.carry, after), select(self.ys, y)), (after, y)

        return moved, (select(self.consts, consts), select(self.carry, carry), select(self.xs, x))


class Tape(NamedTuple):
    """What a pullback needs: arrays of each step, and those that all steps share."""

    per_step: list[Any]
    shared: list[Any]


def _without_derivative(error: Exception) -> StepError:
    """What to say of a step that JAX cannot differentiate."""
    told = str(error).partition("\n")[0]
    advice = "give it a derivative by jax.custom_vjp, or put jax.lax.stop_gradient around what goes into it"
    if "while_loop" in told or "fori_loop" in told:
        advice = "loops in a step whose length is not known when they are traced are remat.while_loop's"
    return StepError(f"the step cannot be differentiated: {told} What to do: {advice}")


class StepVJP(CacheKeyed):
    """A step that can be recorded and pulled back, by tangents that flow so.

    `run` is the step as it is run where it is differentiated: a rule of its own may say how (`jax.custom_vjp`).
    """

    run: Step

    def __init__(self, step: Step, activity: Activity) -> None:
        self.step, self.activity = step, activity
        self.key = None if step.key is None else (step, activity)
        n, m = step.consts, step.carry
        self._tree: Any = None

        def record(*args: Any) -> list[Any]:
            consts, carry, x = args[:n], args[n : n + m], args[n + m :]

            moved, parts = activity.through(step, consts, carry, x)
            _, pull, (after, y) = jax.vjp(moved, *parts, has_aux=True)
            leaves, self._tree = jax.tree.flatten(pull)
            return [*after, *y, *leaves]

        avals = step.avals
        try:
            self._program = jax.make_jaxpr(record)(*avals)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise _without_derivative(error) from error
        jaxpr, outs = self._program.jaxpr, len(step.outs)
        places = {var: k for k, var in enumerate(jaxpr.invars)}
        found = [None if hasattr(var, "val") else places.get(var) for var in jaxpr.outvars[outs:]]
        # For each leaf, the number of the argument that it is, if that is a constant or an input.
        self._known = [None if k is None or n <= k < n + m else k for k in found]
        varies = depends_on(jaxpr, [False] * n + [True] * (len(avals) - n))[outs:]
        self._per_step = tuple(k is None and flag for k, flag in zip(self._known, varies, strict=True))
        self._shared = tuple(k is None and not flag for k, flag in zip(self._known, varies, strict=True))
        kept = dce_jaxpr(jaxpr, [True] * outs + [False] * len(found), instantiate=True)[0]
        self.run = Step(ClosedJaxpr(kept, self._program.consts), n, m)
        self.avals = select(self._per_step, self._program.out_avals[outs:])
        self.shared_avals = select(self._shared, self._program.out_avals[outs:])

    @property
    def nbytes(self) -> int:
        """Bytes of what each step has for itself."""
        return sum(map(nbytes, self.avals))

    @property
    def shared_nbytes(self) -> int:
        """Bytes of what all steps share."""
        return sum(map(nbytes, self.shared_avals))

    def record(self, consts: Arrays, carry: Arrays, x: Arrays) -> tuple[list[Any], list[Any], Tape]:
        """The carry after a step, its output and its tape."""
        found = jaxpr_as_fun(self._program)(*consts, *carry, *x)
        m, outs = self.step.carry, len(self.step.outs)
        tape = Tape(select(self._per_step, found[outs:]), select(self._shared, found[outs:]))
        return found[:m], found[m:outs], tape

    def vjp(self, tape: Tape, consts: Arrays, x: Arrays, carry_bar: Arrays, y_bar: Arrays) -> Any:
        """The cotangents of constants, carry and input: of those that move."""
        per_step, shared = iter(tape.per_step), iter(tape.shared)
        args = [*consts, *([None] * self.step.carry), *x]
        leaves = [
            args[known] if known is not None else next(per_step) if mine else next(shared)
            for known, mine in zip(self._known, self._per_step, strict=True)
        ]
        try:
            return jax.tree.unflatten(self._tree, leaves)((list(carry_bar), list(y_bar)))
        except (ValueError, NotImplementedError) as error:
            raise _without_derivative(error) from error

"""The VJP of a step from residuals: the tape of the step, as arrays.

In: a step, and which of its inputs are active. Out: a program that runs the step and returns its residuals, and the VJP
from these. There are three kinds of residuals, which a loop stores differently:

- a constant or an input of the step is not stored at all, since it is available when the VJP runs;
- an array that depends on neither carry nor input is the same for all steps and is stored once (`shared`);
- all others are stored for each step (`per_step`).
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax

from remat.frameworks.jax.avals import (
    Array,
    Aval,
    ClosedJaxpr,
    Flags,
    inputs_needed,
    jaxpr_as_fun,
    merge,
    nbytes,
    select,
    without_unused,
)
from remat.frameworks.jax.loops.derived_residuals import without_derived
from remat.frameworks.jax.loops.step_jaxpr import StepJaxpr
from remat.frameworks.jax.transforms.differentiable import Arrays, CacheKeyed
from remat.frameworks.jax.transforms.propagation import depends_on, grow, no_derivative_error
from remat.pytree import PyTree

__all__ = ["Activity", "RecomputedStep", "Residuals", "StepVJP"]


class Activity(NamedTuple):
    """Which inputs of a step are active (have tangents), and which outputs are active after any number of steps."""

    consts: Flags
    xs: Flags
    carry: Flags
    ys: Flags

    def restrict(
        self, step: StepJaxpr, consts: Arrays, carry: Arrays, x: Arrays
    ) -> tuple[Callable[..., Any], tuple[list[Array], list[Array], list[Array]]]:
        """The step as a function from its active inputs to (active outputs, all outputs), and these inputs."""

        def restricted(active_consts: Arrays, active_carry: Arrays, active_x: Arrays) -> PyTree:
            after, y = step(
                merge(self.consts, active_consts, consts),
                merge(self.carry, active_carry, carry),
                merge(self.xs, active_x, x),
            )
            return (select(self.carry, after), select(self.ys, y)), (after, y)

        return restricted, (select(self.consts, consts), select(self.carry, carry), select(self.xs, x))


class Residuals(NamedTuple):
    """What the VJP of one or more steps needs: arrays of each step, and arrays that all steps share."""

    per_step: list[Array]
    shared: list[Array]


class StepVJP(CacheKeyed):
    """A step with its VJP, for given active inputs.

    `forward` is the step as it runs when differentiated, which a jax.custom_vjp rule may make a different program.
    """

    forward: StepJaxpr

    def __init__(self, step: StepJaxpr, activity: Activity) -> None:
        self.step, self.activity = step, activity
        self.key = None if step.key is None else (step, activity)
        n_outputs = len(step.out_avals)
        program, self._vjp_tree = _trace_vjp(step, activity)
        self.program, self._derivation = without_derived(program, n_outputs)
        self._input_of = _residuals_that_are_inputs(self.program, step)
        stored = [k is None for k in self._input_of]
        # Loop-invariant residuals depend only on constants.
        varies = depends_on(self.program, [False] * step.n_consts + [True] * (len(step.avals) - step.n_consts))
        pairs = list(zip(stored, varies[n_outputs:], strict=True))
        self._per_step = tuple(keep and changes for keep, changes in pairs)
        self._shared = tuple(keep and not changes for keep, changes in pairs)
        # Use the primal part of the recorded program rather than `step` itself, so that advancing and recording agree.
        residual_avals = self.program.out_avals[n_outputs:]
        outputs_alone = [True] * n_outputs + [False] * len(residual_avals)
        self.forward = StepJaxpr(without_unused(self.program, outputs_alone), step.n_consts, step.n_carry)
        self.per_step_avals = select(self._per_step, residual_avals)
        self.shared_avals = select(self._shared, residual_avals)

    @property
    def y_avals(self) -> list[Aval]:
        """The avals of the step's output."""
        return self.step.y_avals

    @cached_property
    def needed(self) -> Flags:
        """Which leaves of the carry the residuals of this step and of later steps depend on.

        The others, such as sums and buffers that are only written to, need not be kept: they are results of the first
        sweep, and the reverse sweep needs only their cotangents.
        """
        return self.kept((False,) * self.step.n_carry)[0]

    def kept(self, write_once: Flags) -> tuple[Flags, Flags]:
        """The leaves of the carry to keep with each state, and those to keep only as they are after the last step.

        The latter are buffers: if each place is written once and read only later, a step finds what it reads in the
        last carry too, so that nothing has to be kept or recomputed for it.
        """
        n, m, residuals = self.step.n_consts, self.step.n_carry, [k is None for k in self._input_of]

        def results(carry: Flags) -> Flags:
            again = [flag and not once for flag, once in zip(carry, write_once, strict=True)]
            used = [*again, *([False] * (len(self.step.out_avals) - m)), *residuals]
            return inputs_needed(self.program, used)[n : n + m]

        pairs = list(zip(grow(results, (False,) * m)[0], write_once, strict=True))
        return tuple(flag and not once for flag, once in pairs), tuple(flag and once for flag, once in pairs)

    def recomputed(self, kept: Flags, final: Flags | None = None) -> "RecomputedStep":
        """The step as the reverse sweep recomputes it, from kept leaves of a carry and final values of others."""
        return RecomputedStep(self, kept, (False,) * len(kept) if final is None else final)

    @property
    def nbytes(self) -> int:
        """Bytes of the residuals of one step."""
        return sum(map(nbytes, self.per_step_avals))

    @property
    def shared_nbytes(self) -> int:
        """Bytes of the residuals that all steps share."""
        return sum(map(nbytes, self.shared_avals))

    def record(self, consts: Arrays, carry: Arrays, x: Arrays) -> tuple[list[Array], list[Array], Residuals]:
        """The carry after a step, its output and its residuals."""
        results = jaxpr_as_fun(self.program)(*consts, *carry, *x)
        n_carry, n_outputs = self.step.n_carry, len(self.step.out_avals)
        return results[:n_carry], results[n_carry:n_outputs], self.residuals_of(results[n_outputs:])

    def residuals_of(self, leaves: Arrays) -> Residuals:
        """The stored leaves of a VJP, by kind."""
        return Residuals(self.stored_per_step(leaves), select(self._shared, leaves))

    def stored_per_step(self, residuals: Sequence[Any]) -> list[Any]:
        """Those residuals that are stored for each step."""
        return select(self._per_step, residuals)

    def vjp(self, residuals: Residuals, consts: Arrays, x: Arrays, carry_bar: Arrays, y_bar: Arrays) -> PyTree:
        """The cotangents of the active constants, carry leaves and inputs."""
        per_step, shared = iter(residuals.per_step), iter(residuals.shared)
        args: list[PyTree] = [*consts, *([None] * self.step.n_carry), *x]  # the carry before the step is gone
        leaves = [
            args[k] if k is not None else next(per_step) if is_per_step else next(shared)
            for k, is_per_step in zip(self._input_of, self._per_step, strict=True)
        ]
        try:
            vjp = jax.tree.unflatten(self._vjp_tree, self._derivation.residuals(leaves))
            return vjp((list(carry_bar), list(y_bar)))
        except (ValueError, NotImplementedError) as error:  # found only in the transpose, as for while_loop
            raise no_derivative_error(error) from error


class RecomputedStep(CacheKeyed):
    """A step as the reverse sweep runs it: without outputs, and with only the kept leaves of its carry.

    Its constants are those of the step, followed by the `final` values of further leaves.
    """

    def __init__(self, step_vjp: StepVJP, kept: Flags, final: Flags) -> None:
        self.full, self.kept, self.key = step_vjp, kept, (step_vjp, kept, final)
        activity, step, program = step_vjp.activity, step_vjp.step, step_vjp.program
        self.activity = activity._replace(consts=(*activity.consts, *([False] * sum(final))))
        n_residuals, n_xs = len(program.out_avals) - len(step.out_avals), len(step.avals) - step.n_consts - step.n_carry
        used = [*kept, *([False] * (len(step.out_avals) - step.n_carry)), *([True] * n_residuals)]
        read = [a or b for a, b in zip(kept, final, strict=True)]
        program = without_unused(program, used, [*([True] * step.n_consts), *read, *([True] * n_xs)])
        places = [False] * step.n_consts + select(read, final) + [False] * n_xs
        self._program = _with_args_moved(program, places, step.n_consts)
        carry_alone = [True] * sum(kept) + [False] * n_residuals
        n_consts = step.n_consts + sum(final)
        self.forward = StepJaxpr(without_unused(self._program, carry_alone), n_consts, sum(kept))
        self.shared_avals, self.y_avals = step_vjp.shared_avals, step_vjp.y_avals

    def record(self, consts: Arrays, carry: Arrays, x: Arrays) -> tuple[list[Array], list[Array], Residuals]:
        """The kept leaves of the carry after a step, no output, and its residuals."""
        results = jaxpr_as_fun(self._program)(*consts, *carry, *x)
        return results[: sum(self.kept)], [], self.full.residuals_of(results[sum(self.kept) :])

    def vjp(self, residuals: Residuals, consts: Arrays, x: Arrays, carry_bar: Arrays, y_bar: Arrays) -> PyTree:
        """The VJP of the whole step, from the same residuals."""
        return self.full.vjp(residuals, consts[: self.full.step.n_consts], x, carry_bar, y_bar)


def _with_args_moved(program: ClosedJaxpr, flags: Sequence[bool], to: int) -> ClosedJaxpr:
    """The program with its flagged arguments moved to position `to`, before the other arguments from there on."""
    if not any(flags):
        return program
    rest = [not flag for flag in flags]
    avals, k = list(program.in_avals), to + sum(flags)

    def moved(*args: Array) -> list[Array]:
        return list(jaxpr_as_fun(program)(*merge(flags, args[to:k], merge(rest, [*args[:to], *args[k:]], args))))

    others = select(rest, avals)
    return jax.make_jaxpr(moved)(*others[:to], *select(flags, avals), *others[to:])


def _trace_vjp(step: StepJaxpr, activity: Activity) -> tuple[ClosedJaxpr, Any]:
    """The program of a step that also returns the leaves of its VJP function, and the tree of these leaves.

    jax.vjp returns a pytree whose leaves are the residuals; flattening it gives them as arrays.
    """
    n, m = step.n_consts, step.n_carry
    trees: list[Array] = []

    def record(*args: Array) -> list[Array]:
        restricted, active = activity.restrict(step, args[:n], args[n : n + m], args[n + m :])
        _, vjp, (after, y) = jax.vjp(restricted, *active, has_aux=True)
        leaves, tree = jax.tree.flatten(vjp)
        trees.append(tree)
        return [*after, *y, *leaves]

    try:
        return jax.make_jaxpr(record)(*step.avals), trees[-1]
    except (ValueError, TypeError, NotImplementedError) as error:
        raise no_derivative_error(error) from error


def _residuals_that_are_inputs(program: ClosedJaxpr, step: StepJaxpr) -> list[int | None]:
    """For each residual, the number of the constant or input that it is, else None."""
    numbers = {id(var): k for k, var in enumerate(program.jaxpr.invars)}  # by identity, since literals cannot be hashed
    first_carry, end_carry = step.n_consts, step.n_consts + step.n_carry
    places = [numbers.get(id(var)) for var in program.jaxpr.outvars[len(step.out_avals) :]]
    # A leaf of the carry is an argument too, but not available when the VJP runs, so it has to be stored.
    return [None if k is None or first_carry <= k < end_carry else k for k in places]

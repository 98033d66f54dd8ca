"""Transformed steps: one that propagates tangents (jvp), and one for a batch (vmap)."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp

from remat.frameworks.jax.avals import (
    Array,
    BatchAxis,
    Flags,
    aval_of,
    in_axes_of,
    jaxpr_as_fun,
    row_aval,
    select,
    zeros_like_aval,
)
from remat.frameworks.jax.loops.residuals import Activity
from remat.frameworks.jax.loops.step_jaxpr import StepJaxpr
from remat.frameworks.jax.transforms.differentiable import Arrays
from remat.frameworks.jax.transforms.propagation import batched_avals, batched_results, grow
from remat.pytree import PyTree

__all__ = ["broadcast_batch", "jvp_step", "vmap_step"]


def jvp_step(
    step: StepJaxpr,
    activity: Activity,
    active_carry: Flags,
    consts: Arrays,
    carry: Arrays,
    xs: Arrays,
    tangents: Arrays,
) -> tuple[StepJaxpr, list[Array], list[Array], list[Array]]:
    """The step with tangents, and its constants, first carry and inputs, each followed by their tangents.

    `tangents` are those of the active constants, of the first carry where `active_carry` is set, and of the active
    inputs.
    """
    rest = iter(tangents)
    consts_dot = [next(rest) for _ in select(activity.consts, consts)]
    # A carry leaf may only become active in a later step; it starts with a zero tangent.
    leaves = select(activity.carry, zip(carry, active_carry, strict=True))
    carry_dot = [next(rest) if active else zeros_like_aval(leaf) for leaf, active in leaves]
    xs_dot = list(rest)
    n, m, k = len(consts), len(carry), len(xs)

    def with_tangents(consts: Arrays, carry: Arrays, x: Arrays) -> PyTree:
        restricted, active = activity.restrict(step, consts[:n], carry[:m], x[:k])
        # Plain values come first, so that the slices of the plain step stay valid.
        dots = list(consts[n:]), list(carry[m:]), list(x[k:])
        _, (after_dot, y_dot), (after, y) = jax.jvp(restricted, active, dots, has_aux=True)
        return [*after, *after_dot], [*y, *y_dot]

    avals = [*map(aval_of, [*consts, *consts_dot, *carry, *carry_dot]), *map(row_aval, [*xs, *xs_dot])]
    dual_step = StepJaxpr.of(with_tangents, avals, n + len(consts_dot), m + len(carry_dot))
    return dual_step, [*consts, *consts_dot], [*carry, *carry_dot], [*xs, *xs_dot]


def vmap_step(
    step: StepJaxpr, axis: BatchAxis, consts: Flags, carry: Flags, xs: Flags
) -> tuple[StepJaxpr, Flags, Flags]:
    """The step for a batch, and which leaves of its carry and outputs are batched."""

    def results(carry: Flags) -> Flags:
        return batched_results(jaxpr_as_fun(step.program), axis, step.avals, (*consts, *carry, *xs))

    carry, ys = grow(results, carry)
    in_axes = in_axes_of(consts), in_axes_of(carry), in_axes_of(xs)

    def batched(consts: Arrays, carry: Arrays, x: Arrays) -> PyTree:
        return axis.vmap(step, in_axes, (in_axes[1], in_axes_of(ys)))(list(consts), list(carry), list(x))

    avals = batched_avals(step.avals, axis, (*consts, *carry, *xs))
    return StepJaxpr.of(batched, avals, step.n_consts, step.n_carry), carry, ys


def broadcast_batch(values: Arrays, batched: Iterable[bool], wanted: Iterable[bool], size: int) -> list[Array]:
    """The values, broadcast to a batch along a new first axis where one is wanted and missing."""
    return [
        jnp.broadcast_to(value[None], (size, *value.shape)) if want and not has else value
        for value, has, want in zip(values, batched, wanted, strict=True)
    ]

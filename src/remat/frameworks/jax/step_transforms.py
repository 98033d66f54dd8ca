"""Steps made of steps: one with tangents, one for a batch."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from remat.frameworks.jax.avals import Flags, aval_of, row_aval, select, with_first, zeros_like_aval
from remat.frameworks.jax.batch_axes import has_name, in_axes_of, vmap_along
from remat.frameworks.jax.differentiable import Arrays
from remat.frameworks.jax.residuals import Activity
from remat.frameworks.jax.step_jaxpr import Step

__all__ = ["broadcast_batch", "jvp_step", "vmap_step"]


def jvp_step(
    step: Step, activity: Activity, active_inputs: Flags, consts: Arrays, carry: Arrays, xs: Arrays, tangents: Arrays
) -> tuple[Step, list[Any], list[Any], list[Any]]:
    """The step that carries tangents along, and its constants, first carry and inputs, each with tangents behind.

    `active_inputs` parts of the first carry have tangents, and so have the flowing constants and inputs.
    """
    parts = iter(tangents)
    consts_dot = [next(parts) for _ in select(activity.consts, consts)]
    active_outputs = select(activity.carry, zip(carry, active_inputs, strict=True))
    carry_dot = [next(parts) if moves else zeros_like_aval(value) for value, moves in active_outputs]
    xs_dot = list(parts)
    n, m, k = len(consts), len(carry), len(xs)

    def both(consts: Arrays, carry: Arrays, x: Arrays) -> Any:
        moved, values = activity.through(step, consts[:n], carry[:m], x[:k])
        dots = list(consts[n:]), list(carry[m:]), list(x[k:])
        _, (after_dot, y_dot), (after, y) = jax.jvp(moved, values, dots, has_aux=True)
        return [*after, *after_dot], [*y, *y_dot]

    avals = [*map(aval_of, [*consts, *consts_dot, *carry, *carry_dot]), *map(row_aval, [*xs, *xs_dot])]
    made = Step.of(both, avals, n + len(consts_dot), m + len(carry_dot))
    return made, [*consts, *consts_dot], [*carry, *carry_dot], [*xs, *xs_dot]


def vmap_step(step: Step, axis: Any, consts: Flags, carry: Flags, xs: Flags) -> tuple[Step, Flags, Flags]:
    """The step for a batch, and which parts of its carry and of its outputs are batched."""
    carry, ys = step.closure_of_dependence(consts, carry, xs)
    if has_name(axis):  # it may ask for its place in the batch
        carry, ys = (True,) * len(carry), (True,) * len(ys)

    def batch(consts_: Arrays, carry_: Arrays, x_: Arrays) -> Any:
        flags = in_axes_of(consts), in_axes_of(carry), in_axes_of(xs)
        return vmap_along(step, axis, flags, (flags[1], in_axes_of(ys)))(list(consts_), list(carry_), list(x_))

    flags = (*consts, *carry, *xs)
    avals = [
        with_first(aval, axis.size, axis.explicit_mesh_axis) if flag else aval
        for aval, flag in zip(step.avals, flags, strict=True)
    ]
    return Step.of(batch, avals, step.consts, step.carry), carry, ys


def broadcast_batch(values: Arrays, are: Iterable[bool], wanted: Iterable[bool], size: int) -> list[Any]:
    """The values with a batch as their first axis, where it is wanted and they have none."""
    return [
        jnp.broadcast_to(value[None], (size, *value.shape)) if want and not has else value
        for value, has, want in zip(values, are, wanted, strict=True)
    ]

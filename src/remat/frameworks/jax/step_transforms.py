"""Steps made of steps: one with tangents, one for a batch."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from remat.frameworks.jax.avals import Flags, blank, look_of, picked, with_first, without_first
from remat.frameworks.jax.batch_axes import axes, has_name, mapping
from remat.frameworks.jax.differentiable import Arrays
from remat.frameworks.jax.residuals import Flow
from remat.frameworks.jax.step_jaxpr import Step

__all__ = ["batched", "dual", "spread"]


def dual(
    step: Step, flow: Flow, moving: Flags, consts: Arrays, carry: Arrays, xs: Arrays, tangents: Arrays
) -> tuple[Step, list[Any], list[Any], list[Any]]:
    """The step that carries tangents along, and its constants, first carry and inputs, each with tangents behind.

    `moving` parts of the first carry have tangents, and so have the flowing constants and inputs.
    """
    parts = iter(tangents)
    consts_dot = [next(parts) for _ in picked(flow.consts, consts)]
    flowing = picked(flow.carry, zip(carry, moving, strict=True))
    carry_dot = [next(parts) if moves else blank(value) for value, moves in flowing]
    xs_dot = list(parts)
    n, m, k = len(consts), len(carry), len(xs)

    def both(consts: Arrays, carry: Arrays, x: Arrays) -> Any:
        moved, values = flow.through(step, consts[:n], carry[:m], x[:k])
        dots = list(consts[n:]), list(carry[m:]), list(x[k:])
        _, (after_dot, y_dot), (after, y) = jax.jvp(moved, values, dots, has_aux=True)
        return [*after, *after_dot], [*y, *y_dot]

    looks = [*map(look_of, [*consts, *consts_dot, *carry, *carry_dot]), *map(without_first, [*xs, *xs_dot])]
    made = Step.of(both, looks, n + len(consts_dot), m + len(carry_dot))
    return made, [*consts, *consts_dot], [*carry, *carry_dot], [*xs, *xs_dot]


def batched(step: Step, axis: Any, consts: Flags, carry: Flags, xs: Flags) -> tuple[Step, Flags, Flags]:
    """The step for a batch, and which parts of its carry and of its outputs are batched."""
    carry, ys = step.reach(consts, carry, xs)
    if has_name(axis):  # it may ask for its place in the batch
        carry, ys = (True,) * len(carry), (True,) * len(ys)

    def batch(consts_: Arrays, carry_: Arrays, x_: Arrays) -> Any:
        flags = axes(consts), axes(carry), axes(xs)
        return mapping(step, axis, flags, (flags[1], axes(ys)))(list(consts_), list(carry_), list(x_))

    flags = (*consts, *carry, *xs)
    looks = [
        with_first(look, axis.size, axis.explicit_mesh_axis) if flag else look
        for look, flag in zip(step.looks, flags, strict=True)
    ]
    return Step.of(batch, looks, step.consts, step.carry), carry, ys


def spread(values: Arrays, are: Iterable[bool], wanted: Iterable[bool], size: int) -> list[Any]:
    """The values with a batch as their first axis, where it is wanted and they have none."""
    return [
        jnp.broadcast_to(value[None], (size, *value.shape)) if want and not has else value
        for value, has, want in zip(values, are, wanted, strict=True)
    ]

"""Batches: vmap with the axis that JAX hands to a batching rule."""

from collections.abc import Callable, Iterable
from typing import Any

import jax

__all__ = ["axis_cache_key", "has_name", "in_axes_of", "vmap_along"]


def in_axes_of(flags: Iterable[bool]) -> list[int | None]:
    """The axis of the batch in values with a flag: the first one."""
    return [0 if flag else None for flag in flags]


def has_name(axis: Any) -> bool:
    """Whether a user gave the axis a name, by which functions may ask for it."""
    return isinstance(axis.name, str | tuple)


def axis_cache_key(axis: Any) -> Any:
    """What tells an axis from others."""
    return axis.size, axis.spmd_name, axis.name if has_name(axis) else None


def vmap_along(function: Callable[..., Any], axis: Any, in_axes: Any, out_axes: Any = 0) -> Callable[..., Any]:
    """The function for a batch along that axis."""
    named = {"axis_name": axis.name} if has_name(axis) else {}
    return jax.vmap(function, in_axes, out_axes, axis_size=axis.size, spmd_axis_name=axis.spmd_name, **named)

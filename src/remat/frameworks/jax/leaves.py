"""Leaves of JAX: its own pytrees are its containers."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.tree_util import tree_flatten

__all__ = ["flatten", "prepend", "stack", "unpack"]


def unpack(value: Any) -> Any:
    """The value: JAX has no containers that wrap plain ones."""
    return value


def flatten(value: Any) -> tuple[list[Any], Any]:
    """The leaves of a pytree, and its structure."""
    return tree_flatten(value)


def stack(rows: Sequence[Any]) -> Any:
    """One array of several, along a new first axis."""
    return jnp.stack(rows)


def prepend(first: Any, rows: Any) -> Any:
    """An array with one more row, the first."""
    return jnp.concatenate([jnp.expand_dims(first, 0), rows])

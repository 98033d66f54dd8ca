"""Leaf functions of the framework protocol for JAX, whose containers are its pytrees."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.tree_util import tree_flatten

from remat.pytree import Leaf, PyTree

__all__ = ["flatten", "own", "prepend", "separate", "stack", "unpack"]


def unpack(value: PyTree) -> PyTree:
    """The value itself: JAX has no containers that wrap plain ones."""
    return value


def flatten(value: PyTree) -> tuple[list[Leaf], Any]:
    """The leaves of a pytree, and its structure."""
    return tree_flatten(value)


def stack(rows: Sequence[Leaf]) -> PyTree:
    """The rows as one array, stacked along a new first axis."""
    return jnp.stack(rows)


def own(leaf: Leaf) -> Leaf:
    """The leaf itself: JAX arrays are immutable."""
    return leaf


def separate(rows: PyTree) -> Sequence[Leaf]:
    """The rows of an array one by one."""
    return [rows[i] for i in range(len(rows))]


def prepend(first: Leaf, rows: PyTree) -> PyTree:
    """The rows with `first` added in front."""
    return jnp.concatenate([jnp.expand_dims(first, 0), rows])

"""Splits values of any kind into arrays, which JAX traces, and static values, which are passed through unchanged."""

from collections.abc import Callable, Iterator
from enum import Enum
from numbers import Number
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten, tree_unflatten, treedef_is_leaf

from remat.closures.kinds import Kind, kind_of
from remat.closures.reach import Reach
from remat.errors import StepError
from remat.frameworks.jax.avals import Tracer, innermost_trace, trace_of
from remat.pytree import Leaf, PyTree, flatten

__all__ = ["Build", "check_no_leaked_tracers", "is_array", "is_traceable", "partition"]

Build = Callable[[Iterator[Any]], Any]  # rebuilds a partitioned value around other arrays


def partition(value: PyTree, wanted: Callable[[Any], bool], arrays: list[Leaf], static_values: list[Leaf]) -> Build:
    """Append wanted leaves to `arrays`, others to `static_values`; return a function that rebuilds the value.

    Containers are those that remat knows, which keep the order of dicts, and those registered with JAX.
    """
    leaves, tree = flatten(value)
    builds = [_partition_leaf(leaf, wanted, arrays, static_values) for leaf in leaves]
    return lambda replacements: tree.unflatten([build(replacements) for build in builds])


def _partition_leaf(leaf: Leaf, wanted: Callable[[Any], bool], arrays: list[Leaf], static_values: list[Leaf]) -> Build:
    if wanted(leaf):
        arrays.append(leaf)
        return next
    leaves, tree = tree_flatten(leaf)  # a leaf for remat may be a JAX container, with our containers inside
    if treedef_is_leaf(tree):
        static_values.append(leaf)
        return lambda _: leaf
    builds = [partition(each, wanted, arrays, static_values) for each in leaves]
    return lambda replacements: tree_unflatten(tree, [build(replacements) for build in builds])


def is_array(leaf: Leaf) -> bool:
    """Whether a leaf is a JAX array or a tracer."""
    return isinstance(leaf, jax.Array | Tracer)


def is_traceable(leaf: Leaf) -> bool:
    """Whether a leaf of the arguments is traced: JAX arrays and numeric NumPy arrays are; single numbers are static."""
    if isinstance(leaf, np.ndarray):
        return leaf.dtype == bool or bool(jnp.issubdtype(leaf.dtype, np.number))
    return is_array(leaf)


# Values of these types cannot hold tracers, and are not searched.
_ATOMIC_TYPES = (np.generic, Number, str, bytes, Enum, type, np.dtype, slice, range, type(...), ModuleType)


def check_no_leaked_tracers(static_values: list[Leaf], name: str) -> None:
    """Raise a StepError if static results of a segment hold its tracers, which are meaningless outside of it."""
    for leaf in static_values:
        is_numpy = isinstance(leaf, np.ndarray)
        if isinstance(leaf, _ATOMIC_TYPES) or (is_numpy and leaf.dtype != object):
            continue
        tracers = _LeakedTracers()
        tracers.add([leaf.tolist() if is_numpy else leaf], everything=True)
        if tracers.found:
            what = "an array of objects" if is_numpy else f"a {type(leaf).__qualname__}"
            raise StepError(
                f"a result of the segment {name} is {what}, in which gradients would be lost. Return arrays in tuples, "
                "named tuples, lists, dicts, dataclasses, or containers that are registered with jax.tree_util"
            )


class _LeakedTracers(Reach):
    """A search for tracers of the innermost trace, which is that of the segment."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False
        self._innermost = innermost_trace()

    def kind(self, cls: type) -> Kind:
        return Kind.TAKEN if issubclass(cls, jax.Array | Tracer) else kind_of(cls)

    def take(self, value: Leaf, owner: Leaf, key: Leaf) -> None:
        self.found = self.found or (self._innermost is not None and trace_of(value) is self._innermost)

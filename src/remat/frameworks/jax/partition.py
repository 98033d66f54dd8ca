"""Values of any kind, split into arrays, which JAX traces, and the rest, which goes beside it."""

from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from numbers import Number
from types import ModuleType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten, tree_unflatten, treedef_is_leaf

from remat.closures.capture import BaseCaptureFilter, ConvertedClosure
from remat.errors import StepError
from remat.pytree import flatten

__all__ = ["Build", "check_no_leaked_tracers", "is_array", "is_traceable", "partition"]

Build = Callable[[Iterator[Any]], Any]


def partition(value: Any, wanted: Callable[[Any], bool], arrays: list[Any], static_values: list[Any]) -> Build:
    """Add the wanted leaves to the arrays, the others go beside; what puts others for the arrays is returned.

    Containers are those that remat knows, in which dicts stay in order, and those that are registered with JAX.
    """
    leaves, tree = flatten(value)
    parts = [_split_leaf(leaf, wanted, arrays, static_values) for leaf in leaves]
    return lambda found: tree.unflatten([part(found) for part in parts])


def _split_leaf(leaf: Any, wanted: Callable[[Any], bool], arrays: list[Any], static_values: list[Any]) -> Build:
    if wanted(leaf):
        arrays.append(leaf)
        return next
    leaves, tree = tree_flatten(leaf)
    if treedef_is_leaf(tree):
        static_values.append(leaf)
        return lambda found: leaf
    parts = [partition(each, wanted, arrays, static_values) for each in leaves]
    return lambda found: tree_unflatten(tree, [part(found) for part in parts])


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array of JAX, or traced by it."""
    return isinstance(leaf, jax.Array | jax.core.Tracer)


def is_traceable(leaf: Any) -> bool:
    """Whether a leaf of the arguments is: JAX's arrays, and NumPy's if they hold numbers. A single number stays."""
    if isinstance(leaf, np.ndarray):
        return leaf.dtype == bool or bool(jnp.issubdtype(leaf.dtype, np.number))
    return is_array(leaf)


_PLAIN = (np.generic, Number, str, bytes, Enum, type, np.dtype, slice, range, type(...), ModuleType)


def check_no_leaked_tracers(static_values: list[Any], name: str) -> None:
    """Raise a StepError if results of a segment that are no arrays hold some of its own, which are nothing outside."""
    for leaf in static_values:
        array = isinstance(leaf, np.ndarray)
        if isinstance(leaf, _PLAIN) or (array and leaf.dtype != object):
            continue
        traced = _LeakedTracers()
        ConvertedClosure(traced, partial(len, leaf.tolist() if array else leaf))
        if traced.found:
            kind = "an array of objects" if array else f"a {type(leaf).__qualname__}"
            raise StepError(
                f"a result of the segment {name} is {kind}, in which gradients would be lost. Return arrays in tuples, "
                "named tuples, lists, dicts, dataclasses, or containers that are registered with jax.tree_util"
            )


class _LeakedTracers(BaseCaptureFilter):
    """Looks for arrays that belong to the innermost trace; see `execute.captured.Boxes`."""

    opaque_types: ClassVar[tuple[type, ...]] = (jax.Array, jax.core.Tracer)
    atomic_types: ClassVar[frozenset[type]] = frozenset()

    def __init__(self) -> None:
        self.found = False
        self._trace = getattr(jnp.zeros(()), "_trace", None)

    def accepts(self, leaf: Any) -> bool:
        if isinstance(leaf, jax.core.Tracer) and self._trace is not None:
            self.found = self.found or getattr(leaf, "_trace", None) is self._trace
        return False

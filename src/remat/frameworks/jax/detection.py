"""Which values belong to JAX: arrays and tracers, containers that hold them, and plain numbers during a trace."""

from typing import Any

import jax
from jax.tree_util import all_leaves, tree_leaves

from remat.frameworks.framework_protocol import FrameworkTraits
from remat.frameworks.jax.avals import Tracer, is_tracing
from remat.pytree import Leaf

__all__ = ["TRAITS", "is_module", "is_tracing", "owns"]

ARRAY_TYPES: tuple[type, ...] = (jax.Array, Tracer)
DECIDING_TYPES = (*ARRAY_TYPES, *filter(None, [getattr(jax, "Ref", None)]))  # mutable arrays exist since 0.7
TRAITS = FrameworkTraits(
    "jax",
    "JAX",
    array_types=ARRAY_TYPES,
    decides_loops=DECIDING_TYPES,
    decides_segments=DECIDING_TYPES,
    mixes=False,
    conversion="jax.numpy.from_dlpack(array)",
    has_policies=True,
    has_scan_options=True,
)


def owns(leaf: Leaf) -> bool:
    """Whether a leaf is a container that only JAX knows and that holds a JAX array."""
    return any(isinstance(part, ARRAY_TYPES) for part in tree_leaves(leaf))


def is_module(fn: Any) -> bool:
    """Whether this is a pytree, as equinox and flax modules are."""
    return not all_leaves([fn])

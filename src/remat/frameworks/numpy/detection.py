"""Which values are autograd's: its boxes. Plain arrays and numbers belong to no framework."""

from autograd.extend import Box

from remat.frameworks.framework_protocol import FrameworkTraits
from remat.pytree import Leaf, PyTree
from remat.segments import CheckpointOptions

__all__ = ["TRAITS", "checkpoint_module", "is_module", "is_tracing", "owns"]

TRAITS = FrameworkTraits("numpy", "autograd", array_types=(Box,), frees_graphs_at_the_end=True, boxes_floats=True)


def owns(leaf: Leaf) -> bool:
    """False: only boxes are autograd's, and these are in `TRAITS.array_types`."""
    return False


def is_module(fn: PyTree) -> bool:
    """Autograd has no modules."""
    return False


def is_tracing() -> bool:
    """False: autograd traces only boxes, so plain numbers are never part of a trace."""
    return False


def checkpoint_module(module: PyTree, options: CheckpointOptions) -> PyTree:
    """Raises a TypeError; never called, since autograd has no modules."""
    raise TypeError(f"autograd has no modules, and {module!r:.60} is none")

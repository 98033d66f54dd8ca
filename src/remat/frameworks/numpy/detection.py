"""Which values are autograd's: its boxes. Plain arrays and numbers belong to no framework."""

from typing import Any

from autograd.extend import Box

from remat.segments import CheckpointOptions

__all__ = [
    "ARRAY_TYPES",
    "CONVERSION",
    "DECIDES_LOOPS",
    "DECIDES_SEGMENTS",
    "HAS_POLICIES",
    "MIXES",
    "NAME",
    "TITLE",
    "checkpoint_module",
    "is_module",
    "is_tracing",
    "owns",
]

NAME, TITLE = "numpy", "autograd"
MIXES, CONVERSION = True, ""
ARRAY_TYPES: tuple[type, ...] = (Box,)
DECIDES_LOOPS: tuple[type, ...] = ()
DECIDES_SEGMENTS: tuple[type, ...] = ()
HAS_POLICIES = False


def owns(leaf: Any) -> bool:
    """False: only boxes are autograd's, and these are in ARRAY_TYPES."""
    return False


def is_module(fn: Any) -> bool:
    """Autograd has no modules."""
    return False


def is_tracing() -> bool:
    """False: autograd traces boxes only, so that plain numbers are not part of a trace."""
    return False


def checkpoint_module(module: Any, options: CheckpointOptions) -> Any:
    """Raises a TypeError; never called, since autograd has no modules."""
    raise TypeError(f"autograd has no modules, and {module!r:.60} is none")

"""Which values are PyTorch's: tensors, modules, and instances of any other class of torch."""

from typing import Any

import torch

__all__ = [
    "ARRAY_TYPES",
    "CONVERSION",
    "DECIDES_LOOPS",
    "DECIDES_SEGMENTS",
    "HAS_POLICIES",
    "MIXES",
    "NAME",
    "TITLE",
    "is_module",
    "is_tracing",
    "owns",
]

NAME, TITLE = "torch", "PyTorch"
MIXES, CONVERSION = True, "torch.from_dlpack(array)"
ARRAY_TYPES: tuple[type, ...] = (torch.Tensor,)
DECIDES_LOOPS: tuple[type, ...] = ()  # a loop over NumPy arrays may call a model of PyTorch
DECIDES_SEGMENTS: tuple[type, ...] = (torch.Tensor, torch.nn.Module)
HAS_POLICIES = False


def owns(leaf: Any) -> bool:
    """Whether a class of the leaf comes from torch."""
    return any(base.__module__.partition(".")[0] == "torch" for base in type(leaf).__mro__)


def is_module(fn: Any) -> bool:
    """Whether this is an nn.Module."""
    return isinstance(fn, torch.nn.Module)


def is_tracing() -> bool:
    """False: tensors carry their graph, and plain numbers are never part of it."""
    return False

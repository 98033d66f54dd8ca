"""Which values are PyTorch's: tensors, modules, and instances of any other class of torch."""

from typing import Any

import torch

from remat.frameworks.framework_protocol import FrameworkTraits

__all__ = ["TRAITS", "is_module", "is_tracing", "owns"]

TRAITS = FrameworkTraits(
    "torch",
    "PyTorch",
    array_types=(torch.Tensor,),
    decides_loops=(),  # a loop over NumPy arrays may call a model of PyTorch
    decides_segments=(torch.Tensor, torch.nn.Module),
    conversion="torch.from_dlpack(array)",
)


def owns(leaf: Any) -> bool:
    """Whether a class of the leaf comes from torch."""
    return any(base.__module__.partition(".")[0] == "torch" for base in type(leaf).__mro__)


def is_module(fn: Any) -> bool:
    """Whether this is an nn.Module."""
    return isinstance(fn, torch.nn.Module)


def is_tracing() -> bool:
    """False: tensors carry their graph, and plain numbers are never part of it."""
    return False

"""Operators of PyTorch as it dispatches them: the mode that sees each of them, and what switches modes off.

The documented ways to these have only private names (checked with 2.11 and 2.13).
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DispatchMode", "Operator", "current_node", "is_autocast", "negated", "without_autocast", "without_modes"]

DispatchMode = TorchDispatchMode
Operator = torch._ops.OpOverload


def current_node() -> Node | None:
    """The node of autograd that this thread runs, None outside of a backward."""
    return torch._C._current_autograd_node()


def without_modes() -> AbstractContextManager[Any]:
    """A block in which no dispatch mode sees operators."""
    return torch._C._DisableTorchDispatch()


def is_autocast() -> bool:
    """Whether autocast is on for any device."""
    return bool(torch._C._is_any_autocast_enabled())


def without_autocast() -> AbstractContextManager[Any]:
    """A block without autocast on any device, also for weights that were cast before."""
    return torch._C._DisableAutocast()


def negated(tensor: Tensor) -> Tensor:
    """The tensor as a view that negates lazily."""
    return torch._neg_view(tensor)

"""PyTorch's operators as they are dispatched: the mode that sees each of them, and ways to switch modes off.

These documented features have only private names (checked with 2.11 and 2.13).
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "DispatchMode",
    "Operator",
    "current_node",
    "is_autocast",
    "keeps_graph",
    "negated",
    "without_autocast",
    "without_modes",
]

DispatchMode = TorchDispatchMode
Operator = torch._ops.OpOverload


def current_node() -> Node | None:
    """The autograd node that this thread is running; None outside of a backward."""
    return torch._C._current_autograd_node()


def keeps_graph() -> bool:
    """Whether the backward that this thread runs keeps its graph for another backward."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def without_modes() -> AbstractContextManager[Any]:
    """A context in which no dispatch mode sees operators."""
    return torch._C._DisableTorchDispatch()


def is_autocast() -> bool:
    """Whether autocast is on for any device."""
    return bool(torch._C._is_any_autocast_enabled())


def without_autocast() -> AbstractContextManager[Any]:
    """A context without autocast on any device, which ignores weights that were cast earlier too."""
    return torch._C._DisableAutocast()


def negated(tensor: Tensor) -> Tensor:
    """The tensor as a view that is negated lazily."""
    return torch._neg_view(tensor)

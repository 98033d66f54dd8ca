"""Transforms of torch.func and forward-mode AD: whether one is running, and which of them a tensor belongs to.

The only file that asks functorch's interpreter stack. PyTorch has no public query for it; all names below were
checked with 2.11 and 2.13.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["escaped_its_transform", "in_forward_mode", "in_transform", "is_wrapped", "wrapped_by_active_transform"]

_functorch: Any = torch._C._functorch  # no stubs

_DEAD = -2  # the level of a wrapper whose transform has ended


def in_transform() -> bool:
    """Whether a transform of torch.func (grad, vjp, jvp, vmap, functionalize) is running."""
    return _functorch.maybe_current_level() is not None


def in_forward_mode() -> bool:
    """Whether a `torch.autograd.forward_ad.dual_level` is entered."""
    return torch.autograd.forward_ad._current_level >= 0  # no public query; -1 outside of every level


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor is the wrapper of some transform, running or ended."""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor))


def wrapped_by_active_transform(leaf: Any) -> bool:
    """Whether a leaf is a tensor that a transform which runs now has wrapped."""
    return isinstance(leaf, Tensor) and is_wrapped(leaf) and 0 <= _level(leaf) <= _current_level()


def escaped_its_transform(tensor: Tensor) -> bool:
    """Whether a tensor is the wrapper of a transform that has ended, or of one inside the one which runs now."""
    return is_wrapped(tensor) and (_level(tensor) == _DEAD or _level(tensor) > _current_level())


def _level(tensor: Tensor) -> int:
    return int(_functorch.maybe_get_level(tensor))


def _current_level() -> int:
    return _functorch.maybe_current_level() or 0

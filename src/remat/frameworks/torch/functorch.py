"""Transforms of torch.func and forward-mode AD: whether one is running, and which of them a tensor belongs to.

The only file that asks functorch's interpreter stack. PyTorch has no public query for it; all names below were
checked with 2.11 and 2.13.
"""

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

__all__ = [
    "HooksRefused",
    "escaped_its_transform",
    "in_forward_mode",
    "in_transform",
    "is_wrapped",
    "outside_transforms",
    "refuses_hooks",
    "remember_transforms",
    "uses_transforms",
    "wrapped_by_active_transform",
]

_functorch: Any = torch._C._functorch  # no stubs

_DEAD = -2  # the level of a wrapper whose transform has ended


def in_transform() -> bool:
    """Whether a transform of torch.func (grad, vjp, jvp, vmap, functionalize) is running."""
    return _functorch.maybe_current_level() is not None


def outside_transforms() -> AbstractContextManager[object]:
    """A block in which no transform runs, for work on tensors that none of them has wrapped.

    Transforms record and map every operation, also on such tensors, and forbid to write into them.
    """
    return temporarily_clear_interpreter_stack() if in_transform() else nullcontext()


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


class HooksRefused(Exception):
    """A function has entered a transform of torch.func, which does not run under saved-tensor hooks."""


_transforming: WeakSet[Any] = WeakSet()


def refuses_hooks(error: RuntimeError) -> bool:
    """Whether an error says that a transform does not run under saved-tensor hooks; it has no type of its own."""
    return "support saved tensor hooks" in str(error)


def remember_transforms(fn: Any) -> None:
    """Note that a function enters transforms of torch.func."""
    with suppress(TypeError):  # some objects have no weak references; they are tried each time
        _transforming.add(getattr(fn, "__func__", fn))


def uses_transforms(fn: Any) -> bool:
    """Whether it is known that a function enters transforms of torch.func."""
    try:
        return bool(_transforming) and getattr(fn, "__func__", fn) in _transforming
    except TypeError:
        return False

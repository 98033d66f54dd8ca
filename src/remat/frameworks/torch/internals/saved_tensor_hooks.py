"""The stack of hooks on saved tensors: whether there are any, and contexts without them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

__all__ = ["has_saved_tensor_hooks", "saved_tensor_hooks_allowed", "without_saved_tensor_hooks"]

_autograd: Any = torch._C._autograd  # the stack has no public names


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """A context without the enclosing saved-tensor hooks: those of a segment are not for steps that are measured."""
    hooks = []
    while (top := _autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


def has_saved_tensor_hooks() -> bool:
    """Whether hooks pack saved tensors here, as in a segment."""
    return _autograd._top_saved_tensors_default_hooks(True) is not None


def saved_tensor_hooks_allowed() -> AbstractContextManager[None]:
    """A context that allows saved-tensor hooks even if an enclosing transform, which is not active, disables them."""
    message = _autograd._saved_tensors_hooks_get_disabled_error_message()
    return nullcontext() if message is None else _hooks_allowed(message)


@contextmanager
def _hooks_allowed(message: str) -> Iterator[None]:
    _autograd._saved_tensors_hooks_enable()
    try:
        yield
    finally:
        _autograd._saved_tensors_hooks_disable(message)

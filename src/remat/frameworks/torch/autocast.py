"""Autocast, the default dtype and device when a loop or segment was called, restored for steps that run later."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from remat.frameworks.torch.graph import has_function_modes

__all__ = ["AutocastState", "forget_casts"]

_DEVICES = ("cpu", "cuda")


class AutocastState:
    """The state of autocast on the CPU and on CUDA, the default dtype and device, when this object was created."""

    def __init__(self) -> None:
        self._at_call, self._defaults = _autocast(), _defaults()
        self._enabled = any(enabled for enabled, _ in self._at_call)

    def __repr__(self) -> str:
        return f"AutocastState({self._at_call})"

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two states equal."""
        return *self._at_call, self._defaults

    def active(self, *, grad: bool) -> AbstractContextManager[Any]:
        """A block in which autocast is as it was at the call, and graphs are recorded or not."""
        now = _autocast()
        if self._at_call == now and not self._enabled and not _is_nested() and _defaults() == self._defaults:
            return torch.set_grad_enabled(grad)
        return self._active(self._at_call != now, grad)

    @contextmanager
    def _active(self, changed: bool, grad: bool) -> Iterator[None]:
        """The same block, if autocast is on, has to be changed, or was turned off: steps may turn it on.

        Autocast caches the weights that it has cast, with or without a graph. The cache is cleared at both ends: a
        weight that was cast without a graph in one place would otherwise lose its gradient in another.
        """
        with ExitStack() as stack:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            default_dtype, default_device = self._defaults
            torch.set_default_dtype(default_dtype)
            if default_device != _defaults()[1]:
                stack.enter_context(default_device or torch.device("cpu"))
            if changed:
                for device, (enabled, dtype) in zip(_DEVICES, self._at_call, strict=True):
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            torch.clear_autocast_cache()
            stack.callback(torch.clear_autocast_cache)
            stack.enter_context(torch.set_grad_enabled(grad))
            yield


def _is_nested() -> bool:
    """Whether this is inside of a block of autocast, on or off: then its cache outlives those that steps enter."""
    torch.autocast_increment_nesting()
    return bool(torch.autocast_decrement_nesting())


def forget_casts() -> None:
    """Let autocast cast every weight again, as in a new training step; a measured run has what that takes."""
    if any(enabled for enabled, _ in _autocast()):
        torch.clear_autocast_cache()


def _defaults() -> tuple[torch.dtype, torch.device | None]:
    """The dtype and the device of tensors that are made without naming them; None for the CPU, without any mode."""
    # To ask for the device takes 8 us. `with torch.device(...)` and `set_default_device` are modes.
    return torch.get_default_dtype(), torch.get_default_device() if has_function_modes() else None


def _autocast() -> list[tuple[bool, torch.dtype]]:
    return [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]

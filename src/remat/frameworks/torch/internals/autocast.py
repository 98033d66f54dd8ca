"""Autocast, default dtype and default device at the call of a loop or segment, restored for steps that run later."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from remat.frameworks.torch.internals.graph import has_function_modes

__all__ = ["AutocastState", "forget_casts"]

_DEVICES = ("cpu", "cuda")


class AutocastState:
    """Autocast on the CPU and on CUDA, and the default dtype and device, when this object was created."""

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
        """A context in which autocast is as it was at the call, with grad mode on or off."""
        now = _autocast()
        if self._at_call == now and not self._enabled and not _is_nested() and _defaults() == self._defaults:
            return torch.set_grad_enabled(grad)
        return self._active(self._at_call != now, grad)

    @contextmanager
    def _active(self, changed: bool, grad: bool) -> Iterator[None]:
        """The context for the cases where autocast is on, has to be changed, or is turned off but steps may turn it on.

        Autocast caches the weights that it has cast, with or without a graph. The cache is cleared at both ends of the
        context: otherwise a weight cast without a graph in one place would lose its gradient in another.
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
    """Whether an autocast context, on or off, is active: its cache then outlives the contexts that steps enter."""
    torch.autocast_increment_nesting()
    return bool(torch.autocast_decrement_nesting())


def forget_casts() -> None:
    """Make autocast cast every weight again, as in a new training step, so that a measured run includes the casts."""
    if any(enabled for enabled, _ in _autocast()):
        torch.clear_autocast_cache()


def _defaults() -> tuple[torch.dtype, torch.device | None]:
    """The default dtype and device of new tensors; None stands for the CPU if no function mode is active."""
    # Querying the device takes 8 us; `with torch.device(...)` and `set_default_device` both use function modes.
    return torch.get_default_dtype(), torch.get_default_device() if has_function_modes() else None


def _autocast() -> list[tuple[bool, torch.dtype]]:
    return [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]

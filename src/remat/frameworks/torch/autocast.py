"""The modes in which a loop was called: autocast, and whether its steps run with gradients on."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

__all__ = ["AutocastState"]

_DEVICES = ("cpu", "cuda")


class AutocastState:
    """Autocast as it was when this was made."""

    def __init__(self) -> None:
        self._then = _autocast()
        self._any = any(enabled for enabled, _ in self._then)

    def __repr__(self) -> str:
        return f"Modes({self._then})"

    def active(self, *, grad: bool) -> AbstractContextManager[Any]:
        """A block in which autocast is as it was then, and graphs are recorded or not."""
        now = _autocast()
        if self._then == now and not self._any:
            return torch.set_grad_enabled(grad)
        return self._active(self._then != now, grad)

    @contextmanager
    def _active(self, changed: bool, grad: bool) -> Iterator[None]:
        """A block in which autocast is as it was then, and graphs are recorded or not.

        Autocast remembers weights that it has cast, and with them whether they were cast with gradients on. So what was
        cast here is forgotten at both ends: else a weight that was cast without would lose its gradient elsewhere.
        """
        with ExitStack() as stack:
            if changed:
                for device, (enabled, dtype) in zip(_DEVICES, self._then, strict=True):
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            torch.clear_autocast_cache()
            stack.callback(torch.clear_autocast_cache)
            stack.enter_context(torch.set_grad_enabled(grad))
            yield


def _autocast() -> list[tuple[bool, torch.dtype]]:
    return [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]

"""The modes in which a loop was called: autocast, and whether its steps run with gradients on."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

__all__ = ["Modes"]

_DEVICES = ("cpu", "cuda")


class Modes:
    """Autocast as it was when this was made."""

    def __init__(self) -> None:
        self._then = _autocast()

    def __repr__(self) -> str:
        return f"Modes({self._then})"

    @contextmanager
    def on(self, *, grad: bool) -> Iterator[None]:
        """A block in which autocast is as it was then, and graphs are recorded or not.

        Autocast remembers weights that it has cast, and with them whether they were cast with gradients on. So what was
        cast here is forgotten at both ends: else a weight that was cast without would lose its gradient elsewhere.
        """
        any_on = any(enabled for enabled, _ in self._then)
        with ExitStack() as stack:
            if self._then != _autocast():
                for device, (enabled, dtype) in zip(_DEVICES, self._then, strict=True):
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            if any_on:
                torch.clear_autocast_cache()
                stack.callback(torch.clear_autocast_cache)
            stack.enter_context(torch.set_grad_enabled(grad))
            yield


def _autocast() -> list[tuple[bool, torch.dtype]]:
    return [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES]

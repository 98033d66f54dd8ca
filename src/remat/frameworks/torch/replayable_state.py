"""What PyTorch's steps draw on beside their arguments: its random generators, and the buffers of modules.

Statistics that a module gathers while it runs (batch norm, spectral norm, counters) are like a random generator: they
are what they were when a step is run again, and in the end what the plain loop leaves behind.
"""

from typing import Any

import torch
from torch.nn.parameter import is_lazy

SMALL = 1 << 20  # bytes of buffers that are copied though nobody trains the module

__all__ = ["BufferState", "GeneratorState", "global_generators"]


class GeneratorState:
    """A random generator of PyTorch, on any device."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def version(self) -> Any:
        """All of its state, as bytes."""
        return self.generator.get_state().numpy().tobytes()

    def get(self) -> Any:
        """Its state."""
        return self.generator.get_state()

    def set(self, mark: Any) -> None:
        """Set it back."""
        self.generator.set_state(mark)


def global_generators() -> list[GeneratorState]:
    """The global generators: that of the CPU, and those of the CUDA devices that are in use."""
    found = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found += torch.cuda.default_generators
    return [GeneratorState(generator) for generator in found]


class BufferState:
    """The buffers of one module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def may_change(self) -> bool:
        """Whether a step may write into them: modules in training do, others seldom into large ones."""
        held = self._held()
        return bool(held) and (self.module.training or sum(buffer.nbytes for _, buffer in held) <= SMALL)

    def _held(self) -> list[tuple[str, torch.Tensor]]:
        held = self.module._buffers.items()
        return [(name, buffer) for name, buffer in held if buffer is not None and not is_lazy(buffer)]

    def version(self) -> Any:
        """Which tensors they are, and how often each was written into; batch norm counts what it gathers."""
        return [(name, id(buffer), buffer._version) for name, buffer in self._held()]

    def get(self) -> Any:
        """Copies of them."""
        return [(name, buffer, buffer.detach().clone()) for name, buffer in self._held()]

    def set(self, mark: Any) -> None:
        """Put the numbers back, unseen by graphs that hold these buffers."""
        for name, buffer, numbers in mark:
            self.module._buffers[name] = buffer
            buffer.data.copy_(numbers)

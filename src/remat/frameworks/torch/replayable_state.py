"""State outside of the arguments that steps and segments read and change: random generators, and buffers of modules.

Statistics that a module accumulates while it runs (batch norm, spectral norm, counters) are treated as the state of a
random generator is: recomputation starts from what they were, and afterwards they are what the plain program leaves.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from remat.execute.rng_state import ReplayableState
from remat.frameworks.torch.graph import version
from remat.frameworks.torch.modules import is_uninitialized, registered_buffers

SMALL = 1 << 20  # bytes of buffers that are copied though their module is not in training

__all__ = ["BufferState", "GeneratorState", "global_generators"]


class GeneratorState:
    """A `torch.Generator` that the program made, on any device."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def version(self) -> Any:
        """All of its state, as bytes."""
        return self.generator.get_state().numpy().tobytes()

    def get(self) -> Any:
        """Its state."""
        return self.generator.get_state()

    def set(self, snapshot: Any) -> None:
        """Put a state back."""
        self.generator.set_state(snapshot)


class _CpuGenerator:
    """The global generator of the CPU."""

    def version(self) -> Any:
        return self.get().numpy().tobytes()

    def get(self) -> Tensor:
        return torch.get_rng_state()

    def set(self, snapshot: Tensor) -> None:
        torch.set_rng_state(snapshot)


class _CudaGenerator:
    """The global generator of one CUDA device."""

    def __init__(self, device: int) -> None:
        self.device = device

    def version(self) -> Any:
        return self.get().numpy().tobytes()

    def get(self) -> Tensor:
        return torch.cuda.get_rng_state(self.device)

    def set(self, snapshot: Tensor) -> None:
        torch.cuda.set_rng_state(snapshot, self.device)


def global_generators(devices: Iterable[int] | None = None) -> list[ReplayableState]:
    """The global generators of the CPU and, once CUDA is in use, of these CUDA devices; of all if None are named."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return [_CpuGenerator()]
    indices = range(torch.cuda.device_count()) if devices is None else devices
    return [_CpuGenerator(), *map(_CudaGenerator, indices)]


class BufferState:
    """The buffers of one module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def may_change(self) -> bool:
        """Whether a step may write into them: modules in training do, others seldom into large ones."""
        buffers = self._buffers()
        return bool(buffers) and (self.module.training or sum(buffer.nbytes for _, buffer in buffers) <= SMALL)

    def _buffers(self) -> list[tuple[str, Tensor]]:
        registered = registered_buffers(self.module).items()
        return [(name, buffer) for name, buffer in registered if buffer is not None and not is_uninitialized(buffer)]

    def version(self) -> Any:
        """Which tensors they are, and how often each was written into; batch norm writes into a counter."""
        return [(name, id(buffer), version(buffer)) for name, buffer in self._buffers()]

    def get(self) -> Any:
        """The buffers and copies of their values."""
        return [(name, buffer, buffer.detach().clone()) for name, buffer in self._buffers()]

    def set(self, snapshot: Any) -> None:
        """Put buffers and values back. By `.data`, so that graphs which have saved a buffer see no new version."""
        buffers = registered_buffers(self.module)
        for name, buffer, values in snapshot:
            buffers[name] = buffer
            buffer.data.copy_(values)

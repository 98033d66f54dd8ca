"""Random generators of PyTorch as replayable states (rng_state.py)."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from remat.execute.rng_state import ReplayableState

__all__ = ["GeneratorState", "global_generators"]


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

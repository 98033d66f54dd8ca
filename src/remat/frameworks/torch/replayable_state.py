"""Random generators of PyTorch as replayable states (rng_state.py)."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from remat.execute.rng_state import ReplayableState

__all__ = ["GeneratorState", "global_generators"]


class GeneratorState:
    """A `torch.Generator`, on any device."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def version(self, snapshot: Tensor | None = None) -> Any:
        """All of its state, as bytes."""
        return (self.get() if snapshot is None else snapshot).numpy().tobytes()

    def get(self) -> Tensor:
        """Its state."""
        return self.generator.get_state()

    def set(self, snapshot: Tensor) -> None:
        """Put a state back."""
        self.generator.set_state(snapshot)


_CPU = GeneratorState(torch.default_generator)


def global_generators(devices: Iterable[int] | None = None) -> list[ReplayableState]:
    """The global generators of the CPU and, once CUDA is in use, of these CUDA devices; of all if None are named."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return [_CPU]
    indices = range(torch.cuda.device_count()) if devices is None else devices
    return [_CPU, *(GeneratorState(torch.cuda.default_generators[index]) for index in indices)]

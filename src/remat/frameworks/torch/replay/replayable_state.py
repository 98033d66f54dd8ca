"""PyTorch's random generators as replayable states (rng_state.py)."""

from collections.abc import Callable, Iterable
from ctypes import string_at
from functools import partial
from typing import Any

import torch
from torch import Tensor

from remat.execute.rng_state import ReplayableState

__all__ = ["generator_state", "global_generators"]


class _Generator:
    """A generator, given by the functions that get and set its state.

    Snapshots are Python bytes: as tensors, the snapshots of many segments would occupy the memory that is budgeted.
    """

    def __init__(self, get: Callable[[], Tensor], put: Callable[[Tensor], object]) -> None:
        self._get, self._put = get, put

    def get(self) -> bytes:
        """Its state."""
        state = self._get()
        return string_at(state.data_ptr(), state.nbytes)  # without PyTorch: FakeTensorMode refuses real tensors

    def set(self, snapshot: bytes) -> None:
        """Put a state back."""
        self._put(torch.frombuffer(bytearray(snapshot), dtype=torch.uint8))

    def version(self, snapshot: bytes | None = None) -> Any:
        """All of its state."""
        return self.get() if snapshot is None else snapshot


def generator_state(generator: torch.Generator) -> ReplayableState:
    """The state of a generator created by the program, on any device."""
    return _Generator(generator.get_state, generator.set_state)


_CPU = _Generator(torch.get_rng_state, torch.set_rng_state)


def global_generators(devices: Iterable[int] | None = None) -> list[ReplayableState]:
    """The global generators of the CPU and, once CUDA is initialized, of these CUDA devices; of all devices if None."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return [_CPU]
    indices = range(torch.cuda.device_count()) if devices is None else devices
    cuda = torch.cuda
    return [_CPU, *(_Generator(partial(cuda.get_rng_state, k), partial(cuda.set_rng_state, device=k)) for k in indices)]

"""Meters of PyTorch's memory: the allocator of a CUDA device; on the CPU, every storage that an op makes."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

# The documented way to see every op has only a private path (checked with 2.11 and 2.13).
from torch.utils._python_dispatch import TorchDispatchMode

# `remat.pytree.flatten` does not see torch.return_types, and takes three times as long for every op that is counted.
from torch.utils._pytree import tree_leaves

from remat.frameworks.torch.storage import is_dense
from remat.pytree import flatten

__all__ = ["CudaMeter", "StorageMeter", "cuda_of", "fake_tensor_mode", "free_bytes", "free_on", "meter_for"]


def cuda_of(devices: Sequence[torch.device]) -> torch.device | None:
    """The CUDA device among these, or None."""
    return next((device for device in devices if device.type == "cuda"), None)


def meter_for(devices: Sequence[torch.device]) -> Any:
    """The meter of the memory that a loop on these devices is planned for."""
    device = cuda_of(devices)
    return StorageMeter() if device is None else CudaMeter(device)


def free_on(*values: Any) -> int | None:
    """Bytes that are free on the CUDA device that values are on, or None if they are on none."""
    return free_bytes([leaf.device for leaf in flatten(values)[0] if isinstance(leaf, Tensor)])


def free_bytes(devices: Sequence[torch.device]) -> int | None:
    """Bytes that are free on the CUDA device among these, what its allocator holds and does not use included."""
    device = cuda_of(devices)
    if device is None:
        return None
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + held)


def fake_tensor_mode() -> Any:
    """A mode in which ops compute shapes and dtypes, and no numbers; real tensors may go in."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # no public path, and slow to import

    return FakeTensorMode(allow_non_fake_inputs=True)


class CudaMeter:
    """Bytes that PyTorch has allocated on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @contextmanager
    def counting(self) -> Iterator[None]:
        """The allocator counts always; its peak begins anew."""
        self.reset_peak()
        yield

    def now(self) -> int:
        """Bytes that are allocated now."""
        return int(torch.cuda.memory_allocated(self.device))

    def peak(self) -> int:
        """The most bytes that were allocated since `reset_peak`."""
        return int(torch.cuda.max_memory_allocated(self.device))

    def reset_peak(self) -> None:
        """Begin anew with the peak."""
        torch.cuda.reset_peak_memory_stats(self.device)


class StorageMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all storages that were made while it is on and that are still there; real or fake ones."""

    def __init__(self, inside: Any = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside = nullcontext() if inside is None else inside  # the mode that makes fake tensors
        self._live: dict[int, int] = {}
        self._now = self._peak = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count in the block."""
        with self._inside, self:
            yield

    def now(self) -> int:
        """Bytes that are allocated now."""
        return self._now

    def peak(self) -> int:
        """The most bytes that were allocated since `reset_peak`."""
        return self._peak

    def reset_peak(self) -> None:
        """Begin anew with the peak."""
        self._peak = self._now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and count what it made."""
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if is_dense(t)}
        out = func(*args, **(kwargs or {}))
        if func.is_view:  # of something that was there before, if it is not counted yet
            return out
        for tensor in tree_leaves(out):
            if is_dense(tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in given and id(storage) not in self._live:
                    self._count(storage)
        return out

    def _count(self, storage: Any) -> None:
        number, size = id(storage), storage.nbytes()
        self._live[number] = size
        self._now += size
        self._peak = max(self._peak, self._now)
        weakref.finalize(storage, self._gone, number)

    def _gone(self, number: int) -> None:
        self._now -= self._live.pop(number, 0)

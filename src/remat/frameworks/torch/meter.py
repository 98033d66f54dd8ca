"""Meters of PyTorch's memory: the allocator of a CUDA device; on the CPU, the storages that ops make, or the events
that the allocator reports to a profiler, which include the workspace of kernels, such as that of convolutions.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch

# The documented way to see every op has only a private path (checked with 2.11 and 2.13).
from torch.utils._python_dispatch import TorchDispatchMode

# `remat.pytree.flatten` does not know torch.return_types, and takes three times as long, for every op.
from torch.utils._pytree import tree_leaves

from remat.errors import InfeasibleError
from remat.frameworks.torch.internals.storage import is_dense, storage_id
from remat.frameworks.torch.leaves import tensors_in

__all__ = [
    "AllocatorMeter",
    "CudaMeter",
    "StorageMeter",
    "allocations",
    "allocator_of",
    "cuda_of",
    "devices_of",
    "free_bytes",
    "free_on",
    "meter_for",
    "one_step",
]


def cuda_of(devices: Sequence[torch.device]) -> torch.device | None:
    """The CUDA device among these, or None."""
    return next((device for device in devices if device.type == "cuda"), None)


def meter_for(devices: Sequence[torch.device]) -> Any:
    """The meter of the memory for which a loop on these devices is planned."""
    device = cuda_of(devices)
    return StorageMeter() if device is None else CudaMeter(device)


def allocator_of(devices: Sequence[torch.device]) -> Any:
    """The meter of the allocator of these devices; on the CPU, that of storages if the program is being profiled."""
    device = cuda_of(devices)
    if device is not None:
        return CudaMeter(device)
    return StorageMeter() if torch._C._autograd._profiler_enabled() else AllocatorMeter()


def free_on(*values: Any) -> int | None:
    """The free bytes of the CUDA device on which values are, or None if they are on none."""
    return free_bytes(devices_of(*values))


def devices_of(*values: Any) -> list[torch.device]:
    """The devices of the tensors among values."""
    return [tensor.device for tensor in tensors_in(values)]


def free_bytes(devices: Sequence[torch.device]) -> int | None:
    """The free bytes of the CUDA device among these, including those that PyTorch has reserved but does not use."""
    device = cuda_of(devices)
    if device is None:
        return None
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + reserved)


@contextmanager
def one_step(when: str, need: int) -> Iterator[None]:
    """A context in which a single step runs; if CUDA has not enough memory for it, it raises an InfeasibleError."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise InfeasibleError(
            f"CUDA ran out of memory {when}: {error}. Free memory, or make the step smaller; a budget cannot help, "
            "since a single step does not fit",
            need,
            "bytes",
        ) from error


@contextmanager
def allocations(devices: Sequence[torch.device]) -> Iterator[Callable[[], int]]:
    """A context that yields a function which returns the bytes allocated inside it so far, freed or not."""
    device = cuda_of(devices)
    if device is not None:  # the allocator's own count, since its peak, which the user may read, must not be reset
        before = _allocated_on(device)
        yield lambda: _allocated_on(device) - before
        return
    meter = StorageMeter()
    with meter:
        yield lambda: meter.allocated


def _allocated_on(device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get("allocated_bytes.all.allocated", 0))


class CudaMeter:
    """Bytes that PyTorch has allocated on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A context in which bytes are counted; the allocator always counts, so this only resets the peak."""
        self.reset_peak()
        yield

    def now(self) -> int:
        """The bytes allocated now."""
        return int(torch.cuda.memory_allocated(self.device))

    def peak(self) -> int:
        """The most bytes allocated at once since `reset_peak`."""
        return int(torch.cuda.max_memory_allocated(self.device))

    def reset_peak(self) -> None:
        """Reset the peak to the bytes allocated now."""
        torch.cuda.reset_peak_memory_stats(self.device)


class AllocatorMeter:
    """Bytes that this thread has allocated on the CPU, from the events that the allocator reports to a profiler.

    PyTorch prints a line to stderr when memory is freed that was allocated outside all counting contexts, such as that
    of a tensor that a step replaces by another. So warm-ups and what follows them are counted, too.
    """

    def __init__(self) -> None:
        self._now = self._peak = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A context in which bytes are counted; no other profiler may run inside it."""
        self._start()
        try:
            yield
        finally:
            self._stop()

    def now(self) -> int:
        """The bytes allocated now."""
        self._stop()
        self._start()
        return self._now

    def peak(self) -> int:
        """The most bytes allocated at once since `reset_peak`."""
        if torch._C._autograd._profiler_enabled():
            self.now()
        return self._peak

    def reset_peak(self) -> None:
        """Reset the peak to the bytes allocated now."""
        self._peak = self.now()

    def _start(self) -> None:
        torch._C._autograd._enable_profiler_legacy(_memory_events())

    def _stop(self) -> None:
        events: Any = torch._C._autograd._disable_profiler_legacy()
        for event in chain.from_iterable(events):
            self._read(event)

    def _read(self, event: Any) -> None:
        if event.kind() == "memory_alloc":  # also for freed memory, with a negative number
            self._now += event.cpu_memory_usage()
            self._peak = max(self._peak, self._now)


def _memory_events() -> Any:
    autograd: Any = torch.autograd  # it does not export these names
    options = torch._C._profiler._ExperimentalConfig()
    # Input shapes, memory, stacks, flops, modules; by position, since the names differ between versions.
    return autograd.ProfilerConfig(autograd.ProfilerState.CPU, False, True, False, False, False, options)


class StorageMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the live storages that ops have made while this mode was active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allocated = 0  # in total, including what was freed
        self._live: dict[int, int] = {}
        self._now = self._peak = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A context in which bytes are counted."""
        with self:
            yield

    def now(self) -> int:
        """The bytes allocated now."""
        return self._now

    def peak(self) -> int:
        """The most bytes allocated at once since `reset_peak`."""
        return self._peak

    def reset_peak(self) -> None:
        """Reset the peak to the bytes allocated now."""
        self._peak = self._now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and count the storages that it made."""
        inputs = {storage_id(t) for t in tree_leaves((args, kwargs)) if is_dense(t)}
        out = func(*args, **(kwargs or {}))
        if func.is_view:  # a view makes no storage; its input's storage is counted, or existed before
            return out
        for tensor in tree_leaves(out):
            if is_dense(tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in inputs and id(storage) not in self._live:
                    self._count(storage)
        return out

    def _count(self, storage: Any) -> None:
        key, size = id(storage), storage.nbytes()
        self._live[key] = size
        self._now += size
        self.allocated += size
        self._peak = max(self._peak, self._now)
        weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self._now -= self._live.pop(key, 0)

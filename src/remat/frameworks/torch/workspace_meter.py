"""The workspace of single operators: the bytes that they take while they run, besides their results.

The rule: on a CUDA device the allocator is asked before and after each operator. On the CPU the events that the
allocator reports to a profiler are read at the end, with marks where operators begin and end: a profiler must not be
stopped inside a backward, since it has to see nodes both begin and end. What it can miss: on the CPU, all workspace
while the program itself is being profiled.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.profiler import record_function

from remat.frameworks.torch.meter import AllocatorMeter, CudaMeter, allocator_of, cuda_of

__all__ = ["WorkspaceMeter"]

_BEGIN, _END = "remat: an operator begins", "remat: an operator ends"


class WorkspaceMeter(AllocatorMeter):
    """Runs operators, and knows the workspace of each, by its number, once its context has ended."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        super().__init__()
        device = cuda_of(devices)
        self._cuda = None if device is None else CudaMeter(device)
        self._marks = isinstance(allocator_of(devices), AllocatorMeter)
        self._ran, self._before = 0, 0
        self._bytes: list[int] = []

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A context in which operators run."""
        if self._marks:
            with super().counting():
                yield
        else:
            yield

    def run(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """The result of an operator, and its number."""
        number, self._ran = self._ran, self._ran + 1
        if self._cuda is not None:
            before = self._cuda.now()
            self._cuda.reset_peak()
            out = call()
            self._bytes.append(max(0, self._cuda.peak() - max(before, self._cuda.now())))
        elif self._marks:
            with record_function(_BEGIN):
                pass
            out = call()
            with record_function(_END):
                pass
        else:
            out = call()
        return out, number

    def workspace(self, number: int) -> int:
        """The bytes that an operator took besides its results."""
        return self._bytes[number] if number < len(self._bytes) else 0

    def _read(self, event: Any) -> None:
        super()._read(event)
        if event.kind() == "push" and event.name() == _BEGIN:
            self._before = self._peak = self._now
        elif event.kind() == "push" and event.name() == _END:
            self._bytes.append(max(0, self._peak - max(self._before, self._now)))

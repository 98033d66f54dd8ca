"""The memory that a loop's parameters are in: steps that run again read what the first sweep has read.

The rule: a parameter that gets other memory (`.data`) before the backward is in its former one while steps run again,
and in the present one otherwise: also while a range is pulled back, where plain autograd reads the present one as well.

What it can miss: numbers written into the same memory without a new version, and subclasses of tensors, which have
their own idea of memory. The cost: 1 us for a parameter and loop, 0.3 us for a parameter and range of steps; former
memory lives as long as the graph.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from torch import Tensor

from remat.frameworks.torch.tensor_state import is_plain, set_data

__all__ = ["Memory", "in_memory", "memory_of"]

Memory: TypeAlias = Sequence[Tensor | None]  # by input: a tensor in its memory, None if it is to stay where it is


def memory_of(tensors: Sequence[Tensor]) -> Memory:
    """The memory that these tensors are in now, of those that are leaves."""
    return [tensor.data if tensor.is_leaf and is_plain(tensor) else None for tensor in tensors]


@contextmanager
def in_memory(tensors: Sequence[Tensor], memory: Memory) -> Iterator[None]:
    """A block in which these tensors are in this memory; only those are touched that are in another one."""
    moved = [
        (tensor, tensor.data, former)
        for tensor, former in zip(tensors, memory, strict=False)  # no memory as long as inputs are found
        if former is not None and (tensor.data_ptr() != former.data_ptr() or tensor.shape != former.shape)
    ]
    try:
        for tensor, _, former in moved:
            set_data(tensor, former, None)
        yield
    finally:
        for tensor, present, _ in moved:
            set_data(tensor, present, None)

"""Small tensors that a function may write into, such as the statistics of norms, copied together.

The rule: their numbers at the call are copied into one tensor for each dtype and device. In a recomputation they are
moved to new memory that has these numbers, and afterwards back to their own memory, which was not touched. So nothing
has to be saved and copied back, and on a GPU two kernels do the work of dozens.

If two of them share memory, or one shares the memory of an argument, each must see what is written through the other:
then the numbers are written into the memory itself, and restored afterwards.

What it can miss: views of them that are neither reached nor passed as arguments.

The cost: 1 us for each tensor and a copy for each dtype, and the same again for a recomputation.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from remat.frameworks.torch.internals.functorch import outside_transforms
from remat.frameworks.torch.internals.storage import is_dense, storage_id

__all__ = ["SmallBuffers", "exchange_data"]

_ALIGNED = 64  # bytes: kernels may depend on the alignment, and then round differently


class SmallBuffers:
    """Tensors without a gradient, and a copy of their numbers."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors, self._at_call = tensors, [tensor.data for tensor in tensors]
        self._memory = frozenset([id(data.untyped_storage()) for data in self._at_call])
        # On the CPU no kernels are launched, and separate copies are faster than a joint one.
        is_cpu = all(data.is_cpu for data in self._at_call)
        self._copies = [data.clone() for data in self._at_call] if is_cpu else _CopiedTogether(self._at_call)

    def rewind(self) -> None:
        """Give the tensors the memory and the numbers that they had at the call."""
        exchange_data(self._tensors, self._at_call)
        for data, numbers in zip(self._at_call, self._numbers(), strict=True):
            data.copy_(numbers)

    @contextmanager
    def restored(self, arguments: Iterable[Tensor], *, in_place: bool) -> Iterator[frozenset[int]]:
        """A context in which the tensors have the numbers of the call; yields the storages they have only in it."""
        own = [tensor.data for tensor in self._tensors]
        wanted = [tensor for tensor in self._tensors if tensor.requires_grad and tensor.is_leaf]  # since the call
        in_place = in_place or len(self._memory) < len(self._tensors) or self._has(arguments)
        before = [data.clone() for data in own] if in_place else None
        try:
            _set_requires_grad(wanted, False)
            if in_place:
                self.rewind()
            else:
                exchange_data(self._tensors, self._numbers())
            yield self._memory if in_place else frozenset([storage_id(tensor) for tensor in self._tensors])
        finally:
            exchange_data(self._tensors, own)
            _set_requires_grad(wanted, True)
            for data, numbers in zip(own, before or (), strict=before is not None):
                data.copy_(numbers)

    def _has(self, arguments: Iterable[Tensor]) -> bool:
        """Whether an argument, which the function may read or write, shares memory with one of the tensors."""
        return any(not each.requires_grad and is_dense(each) and storage_id(each) in self._memory for each in arguments)

    def _numbers(self) -> Iterable[Tensor]:
        """The numbers that the tensors had at the call, in fresh memory."""
        copies = self._copies
        return [copy.clone() for copy in copies] if isinstance(copies, list) else copies.numbers()


def _set_requires_grad(tensors: Iterable[Tensor], wanted: bool) -> None:
    for tensor in tensors:
        tensor.requires_grad_(wanted)


def exchange_data(tensors: Iterable[Tensor], memory: Iterable[Tensor]) -> None:
    """Move tensors to this memory, by `.data`: graphs that have saved them see no new version."""
    for tensor, data in zip(tensors, memory, strict=True):
        tensor.data = data


class _CopiedTogether:
    """One copy of the tensors for each dtype and device, in which each tensor is aligned like memory of its own."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        kinds: dict[object, list[int]] = {}
        for at, tensor in enumerate(tensors):
            kinds.setdefault((tensor.dtype, tensor.device), []).append(at)
        self._shapes = [tensor.shape for tensor in tensors]
        self._kinds: list[tuple[list[int], list[int], Tensor]] = []
        for places in kinds.values():
            parts = [part for at in places for part in (tensors[at].view(-1), _padding_after(tensors[at]))]
            self._kinds.append((places, [part.numel() for part in parts], torch.cat(parts)))

    def numbers(self) -> list[Tensor]:
        """The numbers, in fresh memory."""
        found: dict[int, Tensor] = {}
        for places, sizes, flat in self._kinds:
            found |= zip(places, torch.split(flat.clone(), sizes)[::2], strict=True)
        return [found[at].view(shape) for at, shape in enumerate(self._shapes)]


def _padding_after(tensor: Tensor) -> Tensor:
    return _padding(tensor.dtype, tensor.device, -tensor.nbytes % _ALIGNED // tensor.element_size())


@lru_cache(maxsize=256)
def _padding(dtype: torch.dtype, device: torch.device, count: int) -> Tensor:
    with torch.inference_mode(False), outside_transforms():
        return torch.zeros(count, dtype=dtype, device=device)

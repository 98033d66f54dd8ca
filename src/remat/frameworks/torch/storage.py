"""Identity of storages: which tensors are in the same memory, and the bytes of a set of tensors, each storage once.

All views of a storage give the same `untyped_storage()` object, and as long as the storage lives, so does that object:
PyTorch preserves it (checked with 2.11 and 2.13). So its `id` is the identity of the memory. An id may be
used again when a storage is freed; where that can happen, `SavedBytes` watches it by a weak reference.
"""

from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from remat.frameworks.torch.graph import view_base

__all__ = ["SavedBytes", "is_dense", "local_part", "storage_id"]


def local_part(tensor: Tensor) -> Tensor:
    """The numbers of a tensor that this process has: of a DTensor its part, which alone has memory here."""
    if type(tensor) is Tensor or not hasattr(type(tensor), "to_local"):
        return tensor
    with torch.no_grad():
        part: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
        return part


def storage_id(tensor: Tensor) -> int:
    """The identity of the memory that a tensor is in, valid while that memory is."""
    return id(local_part(tensor).untyped_storage())


def is_dense(value: Any) -> bool:
    """Whether a value is a tensor with a storage of its own to ask for: sparse ones have several."""
    return isinstance(value, Tensor) and value.layout is torch.strided


class SavedBytes:
    """Bytes that plain autograd would keep for a segment: each storage once, without inputs, outputs and parameters.

    A storage that is freed stays counted, and its id is free for another.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._live: dict[int, tuple[Any, int]] = {}
        self._freed = 0
        self.count = 0  # storages
        self._inputs = {storage_id(tensor) for tensor in inputs if is_dense(tensor)}  # alive while the segment runs

    def add(self, tensor: Tensor) -> None:
        """Count the storage of a tensor that is saved."""
        origin = view_base(tensor)
        is_parameter = origin.is_leaf and origin.requires_grad
        if is_dense(tensor) and not is_parameter and storage_id(tensor) not in self._inputs:
            storage = local_part(tensor).untyped_storage()
            key = id(storage)
            self.count += key not in self._live
            self._live[key] = ref(storage, lambda _: self._free(key)), storage.nbytes()

    def without(self, outputs: Sequence[Any]) -> int:
        """All bytes but those of outputs, which the caller keeps alive."""
        excluded = {storage_id(out) for out in outputs if is_dense(out)}
        live = self._live.copy()  # in one go: a garbage collection may free storages meanwhile
        return self._freed + sum(size for key, (_, size) in live.items() if key not in excluded)

    def _free(self, key: int) -> None:
        self._freed += self._live.pop(key)[1]

"""Identity of storages: which tensors share memory, and the bytes of a set of tensors, counting each storage once.

All views of a storage return the same `untyped_storage()` object, which PyTorch preserves as long as the storage lives
(checked with 2.11 and 2.13). So the `id` of that object identifies the memory. An id may be reused after a storage is
freed; where that can happen, `SavedBytes` watches the storage by a weak reference.
"""

from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from remat.frameworks.torch.internals.graph import view_base

__all__ = ["SavedBytes", "is_dense", "local_part", "storage_id"]


def local_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds: of a DTensor its local part, the only one with memory here."""
    if type(tensor) is Tensor or not hasattr(type(tensor), "to_local"):
        return tensor
    with torch.no_grad():
        part: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
        return part


def storage_id(tensor: Tensor) -> int:
    """The identity of a tensor's memory, valid while that memory lives."""
    return id(local_part(tensor).untyped_storage())


def is_dense(value: Any) -> bool:
    """Whether a value is a tensor with a single storage; sparse tensors have several."""
    return isinstance(value, Tensor) and value.layout is torch.strided


class SavedBytes:
    """Bytes that plain autograd would keep for a segment: each storage once, without inputs, outputs and parameters.

    A freed storage stays counted, and its id may be reused by another.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._live: dict[int, tuple[Any, int]] = {}
        self._freed = 0
        self.count = 0  # storages
        self._inputs = {storage_id(tensor) for tensor in inputs if is_dense(tensor)}  # alive while the segment runs

    def add(self, tensor: Tensor) -> None:
        """Count the storage of a saved tensor."""
        origin = view_base(tensor)
        is_parameter = origin.is_leaf and origin.requires_grad
        if is_dense(tensor) and not is_parameter and storage_id(tensor) not in self._inputs:
            storage = local_part(tensor).untyped_storage()
            key = id(storage)
            self.count += key not in self._live
            self._live[key] = ref(storage, lambda _: self._free(key)), storage.nbytes()

    def without(self, outputs: Sequence[Any]) -> int:
        """All bytes except those of outputs, which the caller keeps alive."""
        excluded = {storage_id(out) for out in outputs if is_dense(out)}
        live = self._live.copy()  # a copy, since a garbage collection may free storages during the loop
        return self._freed + sum(size for key, (_, size) in live.items() if key not in excluded)

    def _free(self, key: int) -> None:
        self._freed += self._live.pop(key)[1]

"""Identity of storages: which tensors are in the same memory, and the bytes of a set of tensors, each storage once.

All views of a storage give the same `untyped_storage()` object, and as long as the storage lives, so does that object:
PyTorch preserves it (checked with 2.11 and 2.13). So its `id` is the identity of the memory. An id may be
used again when a storage is freed; where that can happen, `StorageBytes` watches it by a weak reference.
"""

from collections.abc import Iterable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

__all__ = ["StorageBytes", "is_dense", "local_part", "storage_id"]


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


class StorageBytes:
    """Bytes of storages that were added, each once; one that is freed stays counted, and its id is free for another."""

    def __init__(self, leaves: Iterable[Any] = ()) -> None:
        """Starts with the numbers of the tensors among these leaves; none of them is kept alive."""
        self._live: dict[int, tuple[Any, int]] = {}
        self._freed = 0
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                part = local_part(leaf)
                self._set(part.untyped_storage(), part.numel() * part.element_size())

    def add(self, tensor: Tensor) -> None:
        """Count the whole storage of a tensor."""
        storage = local_part(tensor).untyped_storage()
        self._set(storage, storage.nbytes())

    def _set(self, storage: Any, nbytes: int) -> None:
        key = id(storage)
        self._live[key] = ref(storage, lambda _: self._free(key)), nbytes

    def total(self, without: Iterable[int] = ()) -> int:
        """The bytes of all, but for those that live and have one of these ids."""
        excluded = set(without)
        live = self._live.copy()  # in one go: a garbage collection may free storages meanwhile
        return self._freed + sum(size for key, (_, size) in live.items() if key not in excluded)

    def _free(self, key: int) -> None:
        self._freed += self._live.pop(key)[1]

"""A backward for a batch of cotangents: `torch.autograd.grad(..., is_grads_batched=True)`, `jacobian(vectorize=True)`.

PyTorch maps such a backward by a vmap of its own, older than that of torch.func, which does not know the vmap rules of
autograd.Functions and cannot draw random numbers. So recomputations run outside of it, and a loop takes the batch out
of its cotangents and puts it back into its gradients. There is no public query; the names below were checked with 2.11
and 2.13.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["for_whole_batch", "is_batched", "one_by_one", "outside_batched_backward"]

_private: Any = torch._C  # no stubs
_functions = _private._VariableFunctions
_Backward: TypeAlias = Callable[[Sequence[Any], int], Sequence[Any]]


def is_batched(tensor: Any) -> bool:
    """Whether a tensor is wrapped by the vmap of such a backward."""
    return isinstance(tensor, Tensor) and bool(_private._functorch.is_legacy_batchedtensor(tensor))


def _level() -> int:
    """How many such vmaps are active."""
    level: int = _private._vmapmode_increment_nesting() - 1
    _private._vmapmode_decrement_nesting()
    return level


def outside_batched_backward() -> AbstractContextManager[None]:
    """A context in which no such vmap is active."""
    level = _level()
    return _outside(level) if level else nullcontext()


@contextmanager
def _outside(level: int) -> Iterator[None]:
    for _ in range(level):
        _private._vmapmode_decrement_nesting()
    try:
        yield
    finally:
        for _ in range(level):
            _private._vmapmode_increment_nesting()


def for_whole_batch(backward: _Backward, cotangents: Sequence[Any]) -> list[Any]:
    """The gradients of a batch, by one call `backward(cotangents, size)` in which both have the batch as first axis."""
    bars, size = _with_batch_axis(cotangents)
    with outside_batched_backward():
        gradients = backward(bars, size)
    return _without_batch_axis(gradients)


def one_by_one(backward: Callable[[Sequence[Any]], Sequence[Any]], cotangents: Sequence[Any]) -> list[Any]:
    """The gradients of a batch, by a call `backward(cotangents)` for each of its elements."""
    bars, size = _with_batch_axis(cotangents)
    with outside_batched_backward():
        rows = [backward([None if bar is None else bar[k] for bar in bars]) for k in range(size)]
        gradients = [_stacked(gradients) for gradients in zip(*rows, strict=True)]
    return _without_batch_axis(gradients)


def _stacked(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """The gradients as one tensor, with zeros in place of None; None if all of them are."""
    found = next((each for each in gradients if each is not None), None)
    if found is None:
        return None
    return torch.stack([torch.zeros_like(found) if each is None else each for each in gradients])


def _with_batch_axis(cotangents: Sequence[Any]) -> tuple[list[Any], int]:
    """The cotangents with the batch as first axis, and its size; at least one must be batched."""
    level, first = _level(), next(filter(is_batched, cotangents))
    size = len(_functions._remove_batch_dim(first, level, 1, 0))  # a batched tensor ignores the 1
    return [None if each is None else _functions._remove_batch_dim(each, level, size, 0) for each in cotangents], size


def _without_batch_axis(gradients: Sequence[Any]) -> list[Any]:
    """The gradients, with their first axis wrapped as the batch of the vmap."""
    level = _level()
    return [None if each is None else _functions._add_batch_dim(each, 0, level) for each in gradients]

"""The stacked outputs of the older loops, in the form that their callers expect, without a copy.

`prepend` puts the initial value in front of them, for `binomial_checkpoint`. Rule: they were allocated with room for
one more row before the first (`LoopRequest.spare_row`); the value is written there, and the tensor of all rows is a new
one on the same storage.
`separate` returns the rows one by one, for `checkpointed_loop`: each is a tensor with its own version counter, so that
one can be modified while another is needed for a backward; with views, that would be refused.
What they can miss: nothing; both are for tensors that nobody else has. Where that is not possible (torch.func, forward
mode, subclasses of Tensor, converted outputs), rows are copied. Cost: no memory except the first row.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from remat.frameworks.torch.internals.functorch import in_forward_mode, in_transform
from remat.pytree import Leaf

__all__ = ["on_storage_of", "prepend", "separate"]


def prepend(first: Leaf, rows: Tensor) -> Tensor:
    """The rows with `first` added in front, in their own memory if that has room for it."""
    first = torch.as_tensor(first)
    if _has_room(rows) and first.dtype == rows.dtype and first.device == rows.device:
        result: Tensor = _PutFirst.apply(first, rows)  # type: ignore[no-untyped-call]
        return result
    return torch.cat([first.unsqueeze(0), rows])


def separate(rows: Tensor) -> Sequence[Tensor]:
    """The rows of a tensor one by one, so that writing into one does not change another."""
    if _is_plain(rows) and rows.requires_grad:
        result: tuple[Tensor, ...] = _Separate.apply(rows)  # type: ignore[no-untyped-call]
        return result
    return [row.clone() for row in rows]


def _is_plain(rows: Tensor) -> bool:
    return type(rows) is Tensor and rows.is_contiguous() and not in_transform() and not in_forward_mode()


def on_storage_of(rows: Tensor, offset: int, shape: tuple[int, ...]) -> Tensor:
    """A tensor on the same storage that is not a view for autograd, so that it has its own version counter."""
    tensor: Tensor = torch.empty(0, dtype=rows.dtype, device=rows.device)
    tensor.set_(rows.untyped_storage(), offset, shape)  # type: ignore[call-overload]
    return tensor


def _has_room(rows: Tensor) -> bool:
    """Whether exactly one row lies before these in their storage."""
    if not _is_plain(rows) or not rows.numel():
        return False
    row = rows[0].numel()
    return rows.storage_offset() == row and rows.untyped_storage().nbytes() == (rows.numel() + row) * rows.itemsize


class _PutFirst(torch.autograd.Function):
    """All rows of a storage, after writing the first."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, rows: Tensor) -> Tensor:
        """The tensor of all rows, which is not a view of `rows`; nobody else has these."""
        whole = on_storage_of(rows, 0, (len(rows) + 1, *rows.shape[1:]))
        whole[0] = first  # bumps only the version of `whole`: to autograd `rows` has not changed
        return whole

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """The first row of the cotangent, and the others, as views."""
        return cotangent[0], cotangent[1:]


class _Separate(torch.autograd.Function):
    """The rows of a tensor, each as a separate tensor on the same storage."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> tuple[Tensor, ...]:
        """The rows of a tensor that nobody else has."""
        ctx.set_materialize_grads(False)  # an unused row needs no zeros
        ctx.like = rows.shape, rows.dtype, rows.device
        size = rows.numel() // max(1, len(rows))
        return tuple(
            on_storage_of(rows, int(rows.storage_offset()) + i * size, rows.shape[1:]) for i in range(len(rows))
        )

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Tensor | None:
        """The cotangents as rows, zeros where there is none."""
        if all(each is None for each in cotangents):
            return None
        shape, dtype, device = ctx.like
        zeros = torch.zeros(shape[1:], dtype=dtype, device=device)
        return torch.stack([zeros if each is None else each for each in cotangents])

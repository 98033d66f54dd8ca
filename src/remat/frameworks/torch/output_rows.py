"""The stacked outputs of the older loops as their callers have them, without a copy.

`prepend` puts the initial value before them, for `binomial_checkpoint`. Rule: they were allocated with room for one
more row before the first (`LoopRequest.spare_row`); it is written there, and the tensor of all rows is another one on
the same storage.
`separate` takes rows apart, for `checkpointed_loop`: each is a tensor with a version counter of its own, so that one
can be written into while another one is needed for a backward; rows that are views would be refused there.
What they can miss: nothing; both are for tensors that nobody else has. Where these cannot be used so (torch.func,
forward mode, subclasses of Tensor, outputs that were converted) rows are copied. Cost: no memory but the first row.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from remat.frameworks.torch.functorch import in_forward_mode, in_transform
from remat.pytree import Leaf

__all__ = ["on_storage_of", "prepend", "separate"]


def prepend(first: Leaf, rows: Tensor) -> Tensor:
    """A tensor with one more row, the first: in the memory of the others where that has room for it."""
    first = torch.as_tensor(first)
    if _has_room(rows) and first.dtype == rows.dtype and first.device == rows.device:
        result: Tensor = _PutFirst.apply(first, rows)  # type: ignore[no-untyped-call]
        return result
    return torch.cat([first.unsqueeze(0), rows])


def separate(rows: Tensor) -> Sequence[Tensor]:
    """The rows of a tensor one by one: to write into one changes no other."""
    if _is_plain(rows) and rows.requires_grad:
        result: tuple[Tensor, ...] = _Separate.apply(rows)  # type: ignore[no-untyped-call]
        return result
    return [row.clone() for row in rows]


def _is_plain(rows: Tensor) -> bool:
    return type(rows) is Tensor and rows.is_contiguous() and not in_transform() and not in_forward_mode()


def on_storage_of(rows: Tensor, offset: int, shape: tuple[int, ...]) -> Tensor:
    """A tensor on the same storage. It is no view for autograd: its version counter is its own."""
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
    """All rows of a storage, with the first one written."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, rows: Tensor) -> Tensor:
        """The tensor of all rows. It is no view of `rows`, which nobody else has."""
        whole = on_storage_of(rows, 0, (len(rows) + 1, *rows.shape[1:]))
        whole[0] = first  # in the version counter of `whole` alone: to autograd `rows` has not changed
        return whole

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """The first row of the cotangent, and the others, as views."""
        return cotangent[0], cotangent[1:]


class _Separate(torch.autograd.Function):
    """The rows of a tensor, each as a tensor of its own on the same storage."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> tuple[Tensor, ...]:
        """The rows. Nobody else has the tensor that they were."""
        ctx.set_materialize_grads(False)  # a row that is not used needs no zeros
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

"""The initial value of a loop as the first row of its outputs, for `binomial_checkpoint`.

Rule: the outputs were allocated with room for one more row before the first (`LoopRequest.spare_row`); it is written
there, and the tensor of all rows is another one on the same storage. What it can miss: nothing; where there is no such
room (torch.func, forward mode, subclasses of Tensor, outputs that were converted) the rows are copied by `torch.cat`.
Cost: one row. A cotangent is passed on in two views.
"""

import torch
from torch import Tensor

from remat.frameworks.torch.functorch import in_forward_mode, in_transform
from remat.pytree import Leaf

__all__ = ["prepend"]


def prepend(first: Leaf, rows: Tensor) -> Tensor:
    """A tensor with one more row, the first: in the memory of the others where that has room for it."""
    first = torch.as_tensor(first)
    if _has_room(rows) and first.dtype == rows.dtype and first.device == rows.device:
        result: Tensor = _PutFirst.apply(first, rows)  # type: ignore[no-untyped-call]
        return result
    return torch.cat([first.unsqueeze(0), rows])


def _has_room(rows: Tensor) -> bool:
    """Whether exactly one row lies before these in their storage."""
    if type(rows) is not Tensor or in_transform() or in_forward_mode() or not rows.is_contiguous() or not rows.numel():
        return False
    row = rows[0].numel()
    return rows.storage_offset() == row and rows.untyped_storage().nbytes() == (rows.numel() + row) * rows.itemsize


class _PutFirst(torch.autograd.Function):
    """All rows of a storage, with the first one written."""

    @staticmethod
    def forward(ctx: object, first: Tensor, rows: Tensor) -> Tensor:
        """The tensor of all rows. It is no view of `rows`, which nobody else has."""
        shape = (len(rows) + 1, *rows.shape[1:])
        whole: Tensor = torch.empty(0, dtype=rows.dtype, device=rows.device)
        whole.set_(rows.untyped_storage(), 0, shape)  # type: ignore[call-overload]
        whole[0] = first  # in the version counter of `whole` alone: to autograd `rows` has not changed
        return whole

    @staticmethod
    def backward(ctx: object, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """The first row of the cotangent, and the others, as views."""
        return cotangent[0], cotangent[1:]

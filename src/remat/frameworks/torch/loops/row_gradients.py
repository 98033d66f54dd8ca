"""The gradients of `xs`, written row by row while ranges are pulled back.

The rule: a row is written into the memory of its buffer, which begins with zeros. Of a DTensor that memory is the local
part, so the buffer is sharded in the same way as the gradient of a row, and never over steps: a row of a DTensor that
is sharded over steps is a copy, and writing into it would be lost. When all rows are written, the buffer is
redistributed to the placements of `xs`.

What it can miss: nothing. The cost: for `xs` sharded over steps, one exchange at the end of the reverse sweep, and
until then, if rows are replicated, memory for all rows in every process; for rows of other placements than the first,
one exchange for each of them.
"""

from typing import Any

from torch import Tensor

from remat.frameworks.torch.internals.storage import local_part
from remat.frameworks.torch.leaves import batched_zeros_like, by_step, zero_rows_like

__all__ = ["placed_like", "with_row"]


def with_row(rows: Any, i: int, gradient: Any, leaf: Tensor, batch: int | None) -> Any:
    """The gradients of all rows of `leaf`, with that of step i written; `rows` is None before the first of them."""
    if not (_is_dtensor(leaf) and _is_dtensor(gradient) and batch is None):
        rows = batched_zeros_like(leaf, batch) if rows is None else rows
        by_step(rows, batch)[i] = gradient
        return rows
    rows = zero_rows_like(gradient, len(leaf)) if rows is None else rows
    placements = [_of_row(each) for each in rows.placements]
    local_part(rows)[i] = local_part(gradient.redistribute(placements=placements))
    return rows


def placed_like(leaf: Any, rows: Any) -> Any:
    """The gradients of all rows as `leaf` is placed; what is not a DTensor, or None, as it is."""
    if rows is None or not (_is_dtensor(leaf) and _is_dtensor(rows)):
        return rows
    pairs = zip(leaf.placements, rows.placements, strict=True)
    # The gradient of terms of a sum is the same for each of them.
    return rows.redistribute(placements=[own if target.is_partial() else target for target, own in pairs])


def _of_row(placement: Any) -> Any:
    return type(placement)(placement.dim - 1) if placement.is_shard() else placement


def _is_dtensor(value: Any) -> bool:
    return hasattr(value, "placements")

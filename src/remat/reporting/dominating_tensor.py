"""The tip about a tensor that is more than half of what a backward needs."""

from collections.abc import Sequence

from remat.profiling.segment_contents import SavedTensor
from remat.units import bytes_text

__all__ = ["dominating_tensor"]


def dominating_tensor(tensors: Sequence[SavedTensor], total: int, of_what: str) -> list[str]:
    """A sentence about the largest tensor if it takes more than half of the `total` bytes; otherwise an empty list."""
    top = max(tensors, key=lambda tensor: tensor.bytes, default=None)
    if top is None or 2 * top.bytes <= total:
        return []
    where = f" at {top.line}" if top.line else ""
    return [
        f"One tensor is {top.bytes / total:.0%} of {of_what}: {top.op}{where}, {list(top.shape)} of {top.dtype}, "
        f"{bytes_text(top.bytes)}. Make it smaller, or recompute what makes it: remat.checkpoint(function, ...)."
    ]

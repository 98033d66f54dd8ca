"""In-place updates of plain programs as functions: they write into a copy, which autograd follows."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from remat.execute.rng_state import ReplayableState, global_rng_states
from remat.frameworks.torch.internals.functorch import in_forward_mode, in_transform
from remat.frameworks.torch.replay.replayable_state import global_generators
from remat.pytree import Leaf, PyTree

__all__ = [
    "integers",
    "is_concrete",
    "is_differentiating",
    "put_item",
    "random_states",
    "segment",
    "shares_memory",
    "unstack",
]


def is_differentiating() -> bool:
    """Whether autograd records what runs now, so that it may be differentiated."""
    if torch.is_inference_mode_enabled():
        return False
    return torch.is_grad_enabled() and not (in_forward_mode() and not in_transform())


def put_item(x: Tensor, index: object, value: Leaf) -> Tensor:
    """The tensor after `x[index] = value`, as a new one, so that kept states and leaves do not change."""
    if isinstance(x, np.ndarray):  # which holds numbers, beside tensors
        x = x.copy()
        x[index] = value
        return x
    new = x.clone()
    # With a tensor of indices PyTorch does not cast, as it does with a number.
    new[index] = value.to(new.dtype) if isinstance(value, Tensor) else value  # type: ignore[index]
    return new


def integers(numbers: range) -> Tensor:
    """A range as an input of a loop, on the CPU, where a step reads the numbers without synchronization."""
    return torch.arange(numbers.start, numbers.stop, numbers.step, device="cpu")


def random_states() -> list[ReplayableState]:
    """The global random generators that programs draw from."""
    return [*global_rng_states(), *global_generators()]


def is_concrete(arrays: Sequence[Leaf]) -> bool:
    """Whether Python can branch on these arrays: always, on PyTorch."""
    return True


def segment(
    function: Callable[..., list[Leaf]], arrays: Sequence[Leaf], again: Callable[..., list[Leaf]] | None = None
) -> list[Leaf]:
    """Call the function, without checkpointing: turns keep their tapes here, and loops are never unrolled."""
    return function(*arrays)


def tape_bytes(function: Callable[..., list[Leaf]], arrays: Sequence[Leaf]) -> int:
    """0: `segment` recomputes nothing, so there is no tape to measure."""
    return 0


def stays_within_bounds(
    step: Callable[[PyTree, PyTree], object], carry: PyTree, x: PyTree, ranges: Sequence[range | None]
) -> bool:
    """Whether the integers of a step stay within bounds: always, since here they are Python integers."""
    return True


def unstack(rows: Tensor) -> Sequence[Tensor]:
    """The rows of a tensor; autograd stacks their cotangents."""
    return rows.unbind()


def shares_memory(one: Leaf, other: Leaf) -> bool:
    """Whether two leaves are one object, or tensors that share storage."""
    if one is other:
        return True
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.device != other.device:
        return False
    return bool(one.numel() and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())

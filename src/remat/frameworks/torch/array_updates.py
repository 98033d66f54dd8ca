"""Tensors that plain programs update in place, made functional: a copy is written into, which autograd follows."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from remat.execute.rng_state import ReplayableState, global_rng_states
from remat.frameworks.torch.functorch import in_forward_mode, in_transform
from remat.frameworks.torch.replayable_state import global_generators
from remat.pytree import Leaf

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
    """Whether a gradient may be asked for of what runs now."""
    if torch.is_inference_mode_enabled():
        return False
    return torch.is_grad_enabled() and not (in_forward_mode() and not in_transform())


def put_item(x: Tensor, index: object, value: Leaf) -> Tensor:
    """The tensor after `x[index] = value`, as a new one: kept states and leaves stay as they are."""
    new = x.clone()
    new[index] = value  # type: ignore[index]
    return new


def integers(numbers: range) -> Tensor:
    """The numbers of a range as an input of a loop, on the CPU, where a step reads them without waiting."""
    return torch.arange(numbers.start, numbers.stop, numbers.step, device="cpu")


def random_states() -> list[ReplayableState]:
    """The global random generators that programs draw from."""
    return [*global_rng_states(), *global_generators()]


def is_concrete(arrays: Sequence[Leaf]) -> bool:
    """Whether Python may branch on these arrays, as it may here."""
    return True


def segment(
    function: Callable[..., list[Leaf]], arrays: Sequence[Leaf], again: Callable[..., list[Leaf]] | None = None
) -> list[Leaf]:
    """What a function returns; turns that run here keep what they record, and loops are never unrolled."""
    return function(*arrays)


def unstack(rows: Tensor) -> Sequence[Tensor]:
    """The rows of a tensor; their gradient is one stack of their cotangents."""
    return rows.unbind()


def shares_memory(one: Leaf, other: Leaf) -> bool:
    """Whether two leaves are one object, or tensors that share storage."""
    if one is other:
        return True
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.device != other.device:
        return False
    return bool(one.numel() and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())

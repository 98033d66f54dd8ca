"""requires_grad flags, hooks and versions of leaf tensors reached through closures, restored for recomputation.

A recomputed segment uses these leaves as they are, not copies. So their flags and hooks of the first run are restored
for that time, and a leaf that was written into since the first run is an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from remat.frameworks.torch.graph import backward_hooks, reachable_leaves, set_backward_hooks, version
from remat.frameworks.torch.saved_tensors import describe
from remat.segments import mutation_error

__all__ = ["raise_if_used", "restored_leaf_state"]


@contextmanager
def restored_leaf_state(before: Sequence[tuple[Tensor, bool, Mapping[int, Any]]]) -> Iterator[None]:
    """A block in which tensors have these flags, if they are leaves, and these hooks."""
    toggled = [tensor for tensor, required, _ in before if tensor.requires_grad != required and tensor.is_leaf]
    hooked = [(tensor, hooks) for tensor, required, hooks in before if required]
    hooks_now = [backward_hooks(tensor) for tensor, _ in hooked]
    try:
        for tensor in toggled:
            tensor.requires_grad_(not tensor.requires_grad)
        for tensor, hooks in hooked:
            set_backward_hooks(tensor, hooks)
        yield
    finally:
        for (tensor, _), hooks in zip(hooked, hooks_now, strict=True):
            set_backward_hooks(tensor, hooks)
        for tensor in toggled:
            tensor.requires_grad_(not tensor.requires_grad)


def raise_if_used(changed: Sequence[tuple[Tensor, int]], outputs: Sequence[Tensor], name: str) -> None:
    """Raise a StepError if outputs depend on a leaf that was written into since it had this version."""
    used = reachable_leaves(outputs)
    for tensor, before in changed:
        if id(tensor) in used:
            what = f"a parameter that it uses ({describe(tensor)}, version {before}, now {version(tensor)})"
            raise mutation_error(name, what, "since it was first run", "Call backward before it changes")

"""requires_grad flags, hooks and versions of leaf tensors reached through closures, restored for recomputation.

A recomputed segment uses these leaves as they are, not copies. So their flags and hooks of the first run are restored
for that time, and a leaf that was written into since the first run is an error.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

from torch import Tensor

from remat.frameworks.torch.graph import backward_hooks, reachable_leaves, set_backward_hooks, version
from remat.frameworks.torch.saved_tensors import describe
from remat.segments import mutation_error

__all__ = ["InputVersion", "LeafState", "raise_if_used", "restored_leaf_state"]


class LeafState:
    """Flags and hooks of leaf tensors when the segment was called, and their versions when it had returned."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self._required_grad = [tensor.requires_grad for tensor in tensors]
        self._hooks = [backward_hooks(tensor) for tensor in tensors]
        self._versions: list[tuple[Tensor, int]] = []

    def finish_forward(self) -> None:
        """Note the versions after the first run: the segment itself may write, later writes are an error."""
        pairs = zip(self.tensors, self._required_grad, strict=True)
        self._versions = [(tensor, version(tensor)) for tensor, required_grad in pairs if required_grad]

    def changed(self) -> list[tuple[Tensor, int]]:
        """The leaves that were written into since the first run, and their versions then."""
        return [(tensor, before) for tensor, before in self._versions if version(tensor) != before]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A block in which flags and hooks are as they were; hooks that are registered in it are removed after it."""
        with restored_leaf_state(list(zip(self.tensors, self._required_grad, self._hooks, strict=True))):
            yield


@contextmanager
def restored_leaf_state(before: Sequence[tuple[Tensor, bool, dict[int, Any]]]) -> Iterator[None]:
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


class InputVersion:
    """The version of an input without gradient, which only the segment itself may write into, in its first run."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version, self._writes = ref(tensor), version(tensor), False

    def finish_forward(self) -> None:
        """Note, after the first run, whether the segment wrote into it."""
        tensor = self._tensor()
        self._writes = tensor is not None and version(tensor) != self._version

    def check(self, name: str) -> None:
        """Raise a StepError if it was written into since the first run."""
        tensor = self._tensor()
        if tensor is not None and not self._writes and version(tensor) != self._version:
            what = f"one of its inputs (version {self._version}, now {version(tensor)})"
            raise mutation_error(name, what, "since it was first run")

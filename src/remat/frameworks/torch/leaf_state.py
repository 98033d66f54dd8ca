"""Tensors that a segment is not handed but finds, as they were when it was called: flags, hooks, how often written."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

from torch import Tensor

from remat.pytree import flatten
from remat.segments import mutation_error

__all__ = ["InputVersion", "LeafState", "reachable_leaves", "restored_leaf_state"]


class LeafState:
    """Leaves of the graph: whether they wanted a gradient, their hooks, and their versions when the segment had run."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self._wanted = [tensor.requires_grad for tensor in tensors]
        self._hooks = [dict(hooks) if (hooks := tensor._backward_hooks) else None for tensor in tensors]
        self._versions: list[tuple[Tensor, int]] = []

    def finish_forward(self) -> None:
        """The segment was run: those that are written into from now on are other ones."""
        pairs = zip(self.tensors, self._wanted, strict=True)
        self._versions = [(tensor, tensor._version) for tensor, wanted in pairs if wanted]

    def changed(self) -> list[tuple[Tensor, int]]:
        """Those that were written into since, and their versions then."""
        return [unpack_output for unpack_output in self._versions if unpack_output[0]._version != unpack_output[1]]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A block in which flags and hooks are as they were; hooks that are registered in it are forgotten."""
        with restored_leaf_state(list(zip(self.tensors, self._wanted, self._hooks, strict=True))):
            yield


@contextmanager
def restored_leaf_state(then: Sequence[tuple[Tensor, bool, dict[int, Any] | None]]) -> Iterator[None]:
    """A block in which leaves want gradients, and have hooks, as given."""
    toggled = [tensor for tensor, wanted, _ in then if tensor.requires_grad != wanted and tensor.is_leaf]
    hooked = [(tensor, hooks) for tensor, wanted, hooks in then if wanted]
    now = [dict(tensor._backward_hooks or ()) for tensor, _ in hooked]
    try:
        for tensor in toggled:
            tensor.requires_grad_(not tensor.requires_grad)
        for tensor, hooks in hooked:
            _put_hooks(tensor, hooks or {})
        yield
    finally:
        for (tensor, _), hooks in zip(hooked, now, strict=True):
            _put_hooks(tensor, hooks)
        for tensor in toggled:
            tensor.requires_grad_(not tensor.requires_grad)


def _put_hooks(tensor: Tensor, hooks: dict[int, Any]) -> None:
    held = tensor._backward_hooks
    if held is not None and (held or hooks):
        held.clear()
        held.update(hooks)


class InputVersion:
    """A tensor without gradient that a segment is handed: the segment may write into it, if only in its first run."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version, self._writes = ref(tensor), tensor._version, False

    def finish_forward(self) -> None:
        """The segment was run."""
        tensor = self._tensor()
        self._writes = tensor is not None and tensor._version != self._version

    def check(self, name: str) -> None:
        """Raise a StepError if others have written into it since."""
        tensor = self._tensor()
        if tensor is not None and not self._writes and tensor._version != self._version:
            what = f"one of its inputs (version {self._version}, now {tensor._version})"
            raise mutation_error(name, what, "since it was first run")


def reachable_leaves(out: Any) -> set[int]:
    """Which leaves, by their ids, results depend on."""
    nodes = [leaf.grad_fn for leaf in _tensors(out)]
    found = {id(leaf) for leaf in _tensors(out) if leaf.is_leaf}
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        external_edges = {after for after, _ in node.next_functions} - seen
        seen |= external_edges
        nodes += external_edges
    return found


def _tensors(out: Any) -> Iterable[Tensor]:
    return [leaf for leaf in flatten(out)[0] if isinstance(leaf, Tensor)]

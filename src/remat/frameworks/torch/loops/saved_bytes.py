"""Bytes that a recorded graph keeps alive, found by inspecting its nodes after they were recorded.

The rule: each storage of a tensor that a node has saved counts once, and so does the carry that the graph starts from;
storages that are alive without the graph (parameters, inputs) do not count. Steps run unchanged: hooks on saved tensors
could count too, but torch.func refuses to differentiate under them.

What it can miss: tensors that an autograd Function keeps in attributes of its context, what a segment in a step keeps
for its recomputation, and nodes of C++ extensions that do not expose what they save. Therefore `measure_step` uses the
memory meter's number if that is larger. The cost is about 2 us for each node, in loops that are measured or profiled.
"""

from collections.abc import Iterable, Iterator
from functools import cache

from torch import Tensor
from torch.autograd.graph import Node

from remat.frameworks.torch.internals.storage import is_dense, local_part, storage_id
from remat.frameworks.torch.leaves import nbytes

__all__ = ["packed_by_hooks", "saved_bytes", "saved_tensors_of", "storage_bytes"]


def saved_bytes(nodes: Iterable[Node], roots: Iterable[Tensor | None], persistent: Iterable[Tensor]) -> int:
    """The bytes that nodes and the roots of their graph keep alive, besides the memory of `persistent` tensors."""
    persistent_ids = {storage_id(tensor) for tensor in persistent if is_dense(tensor)}
    held: dict[int, int] = {}  # by storage
    for node in nodes:
        for tensor in saved_tensors_of(node):
            if is_dense(tensor) and storage_id(tensor) not in persistent_ids:
                held[storage_id(tensor)] = local_part(tensor).untyped_storage().nbytes()
    # Once the plan has dropped the state, only the tape keeps the carry that the graph starts from.
    held |= {storage_id(root): nbytes(root) for root in roots if root is not None}
    return sum(held.values())


def saved_tensors_of(node: Node) -> Iterator[Tensor]:
    """The tensors that a node has saved, without unpacking those that a hook has packed."""
    for name in _names(type(node)):
        try:
            yield from _tensors(node, name)
        except RuntimeError as error:  # a graph that the step has already pulled back holds nothing
            if "a second time" not in str(error):
                raise


def packed_by_hooks(node: Node) -> Iterator[object]:
    """What hooks have packed for a node, such as descriptions of how to rebuild a tensor."""
    for name in _names(type(node)):
        saved = getattr(node, name)
        packed = [getattr(one, "data", None) for one in (saved if isinstance(saved, tuple | list) else (saved,))]
        yield from (one for one in packed if one is not None and not isinstance(one, Tensor))


def _tensors(node: Node, name: str) -> Iterator[Tensor]:
    saved = getattr(node, name)
    for index, one in enumerate(saved if isinstance(saved, tuple | list) else (saved,)):
        # For a tensor packed by a hook, this is what the hook returned; unpacking it might recompute a segment.
        tensor = getattr(one, "data", None)
        if tensor is None:  # PyTorch 2.11 without a hook: unpacking recomputes nothing
            tensor = _unpacked(node, name, index)
        if isinstance(tensor, Tensor):
            yield tensor


def _unpacked(node: Node, name: str, index: int) -> object:
    """A saved tensor, the one at `index` if they are saved as a list; None if there is none."""
    public = name.removeprefix("_raw")  # without the underscore on nodes of users' Functions
    value = getattr(node, public, None) if hasattr(type(node), public) else getattr(node, public[1:], None)
    return value[index] if isinstance(value, tuple | list) and index < len(value) else value


@cache
def _names(node_type: type) -> tuple[str, ...]:
    """The attributes of a node type that hold saved tensors in packed form; they have no public names."""
    return tuple(name for name in dir(node_type) if name.startswith("_raw_saved_"))


def storage_bytes(tensors: Iterable[Tensor | None]) -> int:
    """The bytes of the storages of tensors, each once: an expanded tensor counts what its storage takes."""
    dense = {storage_id(tensor): tensor for tensor in tensors if tensor is not None and is_dense(tensor)}
    return sum(local_part(tensor).untyped_storage().nbytes() for tensor in dense.values())

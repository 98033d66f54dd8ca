"""What blocks of a model keep that are no segments, for a profile: found by looking at their graphs after they ran.

The rule: while a profile is open, each module of a `ModuleList` or `Sequential` that runs outside of segments, with
gradients, is a block; what the nodes between its results and its inputs have saved is what it keeps, each storage once,
without parameters. What it can miss: what is saved outside of blocks, and in nodes that do not show it. Nothing of the
program is changed: hooks on saved tensors would be refused by torch.func. Cost: a global hook on modules, and about
2 us a node.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.module import register_module_forward_hook

from remat.execute.recomputation import is_recomputing
from remat.frameworks.torch.leaves import tensors_in
from remat.frameworks.torch.saved_bytes import saved_tensors_of
from remat.frameworks.torch.segment_profile import path_in_container
from remat.frameworks.torch.storage import is_dense, local_part, storage_id
from remat.profiling.profiler import Profile, register_observer
from remat.profiling.segment_contents import SavedTensor, SegmentContents
from remat.profiling.source_location import definition_of
from remat.segments import nesting_depth

__all__ = ["observe"]

MOST_NODES = 20_000  # of one block


@contextmanager
def observe(profile: Profile) -> Iterator[None]:
    """A block in which the modules that are no segments tell the profile what they keep."""

    def after(module: nn.Module, args: Any, result: Any) -> None:
        if nesting_depth() or is_recomputing() or not torch.is_grad_enabled():
            return
        path = path_in_container(module)
        if path is not None:
            profile.add_kept(_contents(path, module, args, result), perf_counter())

    handle = register_module_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


def _contents(path: str, module: nn.Module, args: Any, result: Any) -> SegmentContents:
    """What the nodes between the inputs and the results of a module have saved."""
    inputs = tensors_in(args)
    behind = {tensor.grad_fn for tensor in inputs if tensor.grad_fn is not None}
    ready = [tensor.grad_fn for tensor in tensors_in(result) if tensor.grad_fn is not None]
    seen: set[Node] = set()
    known = {storage_id(each) for each in (*inputs, *module.parameters()) if is_dense(each)}
    tensors: dict[int, SavedTensor] = {}
    source = definition_of(module)
    while ready and len(seen) < MOST_NODES:
        node = ready.pop()
        if node in behind or node in seen:
            continue
        seen.add(node)
        ready += [each for each, _ in node.next_functions if each is not None]
        for tensor in saved_tensors_of(node):
            if is_dense(tensor) and storage_id(tensor) not in known and not _is_parameter(tensor):
                known.add(storage_id(tensor))
                size = local_part(tensor).untyped_storage().nbytes()
                op = node.name().rstrip("0123456789").removesuffix("Backward")
                dtype, line = str(tensor.dtype).removeprefix("torch."), "" if source is None else source.short
                tensors[storage_id(tensor)] = SavedTensor(
                    f"saved by {op}", tuple(tensor.shape), dtype, size, line, path
                )
    held = {storage_id(each): local_part(each).untyped_storage().nbytes() for each in inputs if is_dense(each)}
    return SegmentContents(path, sum(held.values()), sum(each.bytes for each in tensors.values()), (*tensors.values(),))


def _is_parameter(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad


register_observer(observe)

"""For profiles: what the blocks of a model that are not segments keep, read from their graphs after they ran.

The rule: while a profile is open, each module of a `ModuleList` or `Sequential` that runs with gradients, outside
segments, loops and transforms of torch.func, is a block. It keeps what the nodes between its results and its inputs
have saved, each storage once, without parameters. The lines of its ops are logged in its first run. What it can miss:
what is saved outside blocks, and in nodes that do not expose it. The program itself is not changed; hooks on saved
tensors are avoided, since torch.func refuses them. A hook on the node that made a block's input tells when the backward
has passed the block. The cost: two global module hooks, about 10 us a node, and that of line_log.py once per block.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from remat.execute.recomputation import is_recomputing
from remat.frameworks.torch.internals.functorch import in_transform
from remat.frameworks.torch.internals.graph import is_leaf_node, next_sequence_nr
from remat.frameworks.torch.internals.storage import is_dense, local_part, storage_id
from remat.frameworks.torch.leaves import tensors_in
from remat.frameworks.torch.loops.tape_contents import saved_tensors
from remat.frameworks.torch.models.block_stage import is_compiled
from remat.frameworks.torch.segments.segment_profile import path_in_container
from remat.profiling.line_log import LineLog
from remat.profiling.profiler import Profile, is_in_loop, register_observer
from remat.profiling.segment_contents import KeptBlock, SavedTensor, SegmentContents
from remat.profiling.source_location import definition_of
from remat.segments import nesting_depth

__all__ = ["observe"]

MOST_NODES = 20_000  # of one block


@dataclass(frozen=True)
class _Running:
    """A block that is running, and the log of its lines, which is that of the outermost running block."""

    module: nn.Module
    path: str
    log: LineLog


@dataclass
class _Observed(threading.local):
    """The running blocks of one thread, innermost last; and what each path's block kept in its first run."""

    running: list[_Running] = field(default_factory=list)
    kept: dict[str, tuple[SavedTensor, ...]] = field(default_factory=dict)

    def begin(self, module: nn.Module) -> None:
        inside = nesting_depth() or is_in_loop() or is_recomputing() or in_transform()
        path = None if inside or not torch.is_grad_enabled() else path_in_container(module)
        if path is None:
            return
        log = self.running[0].log if self.running else LineLog(next_sequence_nr)
        if not self.running and path not in self.kept and not is_compiled(module):
            log.begin()
        self.running.append(_Running(module, path, log))

    def end(self, module: nn.Module, args: Any, result: Any) -> SegmentContents | None:
        if not self.running or self.running[-1].module is not module:
            return None
        block = self.running.pop()
        if not self.running:
            block.log.end()
        contents = _contents(block, args, result)
        before = self.kept.setdefault(block.path, contents.tensors)
        if [replace(each, line="") for each in before] == [replace(each, line="") for each in contents.tensors]:
            contents = replace(contents, tensors=before)  # with the lines of the first run
        return contents


@contextmanager
def observe(profile: Profile) -> Iterator[None]:
    """A context in which the profile learns what modules that are not segments keep."""
    observed = _Observed()

    def before(module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():  # the compiler traces hooks, too; with this test it finds them empty
            observed.begin(module)

    def after(module: nn.Module, args: Any, result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        contents = observed.end(module, args, result)
        if contents is not None and result is not None:  # None after an error, too
            kept = profile.add_kept(contents, perf_counter())
            if kept is not None:
                _note_release(kept, args)

    handles = [
        register_module_forward_pre_hook(before),
        register_module_forward_hook(after, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note_release(kept: KeptBlock, args: Any) -> None:
    """Note when the backward has pulled a block back: it then goes on with the nodes that made the block's inputs."""

    def reached(gradients: Any) -> None:
        kept.release(perf_counter())

    for tensor in tensors_in(args):
        if tensor.grad_fn is not None:
            tensor.grad_fn.register_prehook(reached)


def _contents(block: _Running, args: Any, result: Any) -> SegmentContents:
    """The tensors that the nodes between the inputs and the results of a module have saved."""
    inputs = tensors_in(args)
    behind = {tensor.grad_fn for tensor in inputs if tensor.grad_fn is not None}
    ready = [tensor.grad_fn for tensor in tensors_in(result) if tensor.grad_fn is not None]
    seen: set[Node] = set()
    while ready and len(seen) < MOST_NODES:
        node = ready.pop()
        if node not in behind and node not in seen and not is_leaf_node(node):
            seen.add(node)
            ready += [each for each, _ in node.next_functions if each is not None]
    known = {storage_id(each) for each in (*inputs, *block.module.parameters()) if is_dense(each)}
    tensors = [*saved_tensors(seen, known, block.log, module=block.path)]
    source = definition_of(getattr(block.module, "_orig_mod", block.module))
    if source is not None:  # a tensor without a line (torch's own module, or under a debugger) gets the block's
        tensors = [each if each.line else replace(each, line=source.short) for each in tensors]
    held = {storage_id(each): local_part(each).untyped_storage().nbytes() for each in inputs if is_dense(each)}
    return SegmentContents(block.path, sum(held.values()), sum(each.bytes for each in tensors), (*tensors,))


register_observer(observe)

"""What is inside a recorded graph: the tensors that its nodes have saved, with the op and line that made each.

The rule: each storage that a node has saved is one entry, except parameters, inputs and whatever else lives anyway. The
op is the one whose result it is, looking through views; if the graph does not say, as for a mask, it is the op that
saved it. Nodes are numbered as they are created, and a log of lines by these numbers (line_log.py) has the line of
each.

What it can miss: what `saved_bytes` can miss. Cost: about 10 us for each node, for one step of a loop in a profile, and
for each block of a model that is kept.
"""

import sys
from collections.abc import Collection, Iterable, Iterator
from functools import cache

import torch
from torch import Tensor
from torch.autograd.graph import Node

from remat.frameworks.torch.internals.graph import is_leaf_node, next_sequence_nr, sequence_nr, view_base
from remat.frameworks.torch.internals.saved_tensor_hooks import without_saved_tensor_hooks
from remat.frameworks.torch.internals.storage import is_dense, local_part, storage_id
from remat.frameworks.torch.lineage.lineage_results import held_by
from remat.frameworks.torch.loops.saved_bytes import packed_by_hooks, saved_tensors_of
from remat.frameworks.torch.loops.tape import Tape
from remat.loops.step_runner import StepRunner
from remat.profiling.line_log import LineLog
from remat.profiling.segment_contents import SavedTensor
from remat.profiling.tape_contents import TapeContents

__all__ = ["TorchTapeListing", "looked_through", "op_name", "saved_tensors"]

VIEWS = (
    *("View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Expand", "Unsqueeze", "Squeeze", "Slice"),
    *("Select", "AsStrided", "Alias", "Unflatten", "SplitWithSizes", "Split", "Unbind"),
)


class TorchTapeListing:
    """Lists the tape of one step; `persistent` tensors are alive without it."""

    def __init__(self, runner: StepRunner, persistent: Iterable[Tensor]) -> None:
        self._log = log = LineLog(next_sequence_nr, lambda: runner.current_step)
        self.begin, self.end = log.begin, log.end
        self._persistent = {storage_id(tensor) for tensor in persistent if is_dense(tensor)}

    def contents(self, tape: Tape) -> TapeContents:
        """What the nodes of the logged step have saved, or of all steps if none was logged."""
        start, stop = self._log.start, self._log.stop
        nodes = [node for node in tape.seen.alive() if not is_leaf_node(node)]
        steps = tape.stop - tape.start
        if start is not None:
            nodes = [n for n in nodes if start <= sequence_nr(n) and (stop is None or sequence_nr(n) < stop)]
            steps = 1
        states = {storage_id(root) for root in tape.carry_in if is_dense(root)}
        return TapeContents.of(list(saved_tensors(nodes, self._persistent, self._log, states)), steps)


def saved_tensors(
    nodes: Iterable[Node], known: Collection[int], log: LineLog, states: Collection[int] = (), module: str = ""
) -> Iterator[SavedTensor]:
    """What nodes have saved, each storage once, except `known` ones and parameters."""
    since = log.start or 0
    found: dict[int, SavedTensor] = {}
    for node in sorted(nodes, key=sequence_nr):
        for tensor in saved_tensors_of(node):
            if not _is_new(tensor, known, found, states):
                continue
            made = node if tensor.grad_fn is None else looked_through(tensor.grad_fn)
            # A tensor of the state, or one made by an earlier step, is listed at the line that reads it.
            before = storage_id(tensor) in states or (tensor.grad_fn is not None and sequence_nr(made) < since)
            op = "the state before" if before else "a constant" if _is_constant(tensor) else op_name(made)
            found[storage_id(tensor)] = _entry(op, tensor, log.line(sequence_nr(node if before else made)), module)
        # Blocks of a planned model keep a part, from which the rest is recomputed.
        for tensor in (each for packed in packed_by_hooks(node) for each in held_by(packed)):
            if _is_new(tensor, known, found, states):
                found[storage_id(tensor)] = _entry(
                    f"kept for {op_name(node)}", tensor, log.line(sequence_nr(node)), module
                )
    yield from found.values()


def _is_new(tensor: Tensor, known: Collection[int], found: Collection[int], states: Collection[int]) -> bool:
    """Whether a tensor has memory of its own that is not listed yet, and is not a parameter."""
    if not is_dense(tensor) or storage_id(tensor) in known or storage_id(tensor) in found:
        return False
    base = view_base(tensor)
    return storage_id(tensor) in states or not (base.is_leaf and base.requires_grad)


def _entry(op: str, tensor: Tensor, line: str, module: str) -> SavedTensor:
    size, dtype = local_part(tensor).untyped_storage().nbytes(), str(tensor.dtype).removeprefix("torch.")
    return SavedTensor(op, tuple(tensor.shape), dtype, size, line, module)


def _is_constant(tensor: Tensor) -> bool:
    """Whether a tensor without a graph has owners other than a node; a mask that the step made has none."""
    return tensor.grad_fn is None and not tensor.requires_grad and sys.getrefcount(tensor) > _references_of_own()


@cache
def _references_of_own() -> int:
    """The reference count, in `_is_constant`, of a tensor that only a node refers to."""
    counts: list[int] = []
    with torch.enable_grad(), without_saved_tensor_hooks():  # a segment may be recorded now
        node = torch.ones((), requires_grad=True).mul(torch.ones(())).grad_fn
    assert node is not None
    for tensor in saved_tensors_of(node):
        _count(tensor, counts)
    return counts[0]


def _count(tensor: Tensor, counts: list[int]) -> None:
    counts.append(sys.getrefcount(tensor))  # called in the same way as `_is_constant`


def op_name(node: Node) -> str:
    """The name of an op, from that of its node."""
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")


def looked_through(node: Node) -> Node:
    """The node of the op that made a result, looking through views."""
    while op_name(node) in VIEWS:
        below = next((each for each, _ in node.next_functions if each is not None), None)
        if below is None or is_leaf_node(below):
            break
        node = below
    return node

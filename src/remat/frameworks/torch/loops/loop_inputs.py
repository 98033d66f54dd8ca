"""The inputs of a loop's node: tensors from outside that its steps use, and to which gradients must flow.

The rule: what a step *uses* is an input, not everything that it reaches. A recorded step shows this by the edges at
which its graph ends: leaves, and tensors that were made before it. For steps of the first sweep that run without a
graph, the tensors found by the search in closures (`candidates`) are watched (watch.py). So a tensor may become an
input in any step of the first sweep. A tensor that only shows up in a later sweep is an error, which names it.

Steps use these tensors as they are, and nothing is rebound: the engine stops at the edge of an input, even at that of a
non-leaf tensor, if no other input lies behind it. If one does (w and tanh(w @ x) are both used), there are two ways:

- a candidate is replaced by a detached root in all variables that refer to it, from the beginning (`rebound`);
- any other non-leaf tensor, such as one in a cache that a step has filled, is *blocked* while a range is pulled back:
  its node gets no gradient to pass on.

What it can miss: nothing silently. The cost: a walk through the graph of recorded steps, as often as
`TorchBackend._should_check_inputs` says. Once per call, if there are non-leaf candidates, the graphs behind them are
walked too, up to 1,000 nodes; beyond that, other inputs are assumed to lie behind the candidate.
"""

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

from torch import Tensor
from torch.autograd.graph import Node

from remat.frameworks.torch.internals.functorch import is_wrapped
from remat.frameworks.torch.internals.graph import (
    Edge,
    edge_of,
    edges_behind,
    is_forgotten_leaf,
    is_leaf_node,
    leaf_itself,
    leaf_of,
    next_sequence_nr,
    sequence_nr,
)
from remat.frameworks.torch.loops.tape import Stops, Tape, unknown_input_error
from remat.frameworks.torch.replay.tensor_state import Memory, memory_of
from remat.frameworks.torch.replay.watch import Watch

__all__ = ["LoopInputs", "with_others_behind"]


@dataclass(frozen=True)
class _Input:
    """A tensor that steps use or may use, and what they use in its place: itself, or a detached root if rebound."""

    tensor: Tensor
    root: Tensor
    capture_id: int = -1  # its index in the closure, -1 if it was not found there

    @classmethod
    def of(cls, tensor: Tensor, capture_id: int, *, rebound: bool) -> "_Input":
        return cls(tensor, tensor.detach().requires_grad_() if rebound else tensor, capture_id)


class LoopInputs:
    """The inputs of one loop, which grow until the first sweep is over."""

    def __init__(
        self,
        tensors: Sequence[Tensor] = (),
        capture_ids: Sequence[int] = (),
        rebound: Sequence[bool] = (),
        memory: Memory = (),
        *,
        closed: bool = False,
    ) -> None:
        self.closed = closed  # whether the first sweep is over, so that all inputs are known
        self.tensors: list[Tensor] = []
        self.roots: list[Tensor] = []  # every tape refers to this very list
        self.capture_ids: list[int] = []
        self.memory = memory  # where the first sweep has found them; empty while it runs
        self._indices: dict[Edge, int] = {}  # by edge of the root
        self._candidates: dict[int, _Input] = {}  # by id of the root: those not used so far
        self._made: dict[Edge, Tensor] = {}  # candidates that are not leaves, since their nodes do not refer to them
        self._behind: dict[Edge, frozenset[int] | None] | None = None  # see `_inputs_behind`
        self._leaves: list[Tensor] | None = None  # see `leaves_themselves`
        self._watch: Watch | None = None
        self._only_rebound = False
        self._first = next_sequence_nr()  # the nodes of the loop's own steps have this number or a higher one
        self.left_by_steps: list[Tensor] = []  # inputs that a step of the loop has made
        inputs = [
            _Input.of(tensor, capture_id, rebound=is_rebound)
            for tensor, capture_id, is_rebound in zip(tensors, capture_ids, rebound, strict=True)
        ]
        # What variables are bound to while steps run, by capture id. Variables that are not rebound are bound to their
        # values at the call, which they still have unless they were changed before the backward.
        self.bindings = {each.capture_id: each.root for each in inputs if each.capture_id >= 0}
        for each in inputs:
            self._add(each)

    @classmethod
    def among(cls, captured: Sequence[Tensor], rebound: Collection[int], others: Sequence[Tensor] = ()) -> "LoopInputs":
        """No inputs yet, only candidates: captured tensors, with detached roots for the `rebound` ones, and others."""
        self = cls()
        candidates = [_Input.of(tensor, k, rebound=k in rebound) for k, tensor in enumerate(captured)]
        self.bindings = {each.capture_id: each.root for each in candidates}
        candidates += [_Input(tensor, tensor) for tensor in others]
        self._candidates = {id(each.root): each for each in candidates}
        self._made = {edge_of(each.root): each.root for each in candidates if not each.root.is_leaf}
        return self

    def admit_captured(self, indices: Iterable[int]) -> None:
        """Make the captured tensors with these indices inputs, in this order, whether or not steps use them."""
        found = {each.capture_id: each for each in self._candidates.values()}
        for k in indices:
            self._add(self._candidates.pop(id(found[k].root)))

    def copy(self) -> "LoopInputs":
        """The same inputs and candidates, with the same roots, growing separately: for steps that are measured."""
        other = copy(self)
        other._own()
        return other

    def _own(self) -> None:
        """Stop sharing lists and dicts with another object; bindings never change."""
        self.tensors, self.roots, self.capture_ids = [*self.tensors], [*self.roots], [*self.capture_ids]
        self._indices, self._candidates, self._made = {**self._indices}, {**self._candidates}, {**self._made}
        self.left_by_steps, self._watch = [*self.left_by_steps], None

    @property
    def rebound(self) -> list[bool]:
        """By input: whether steps use a detached root in its place."""
        return [root is not tensor for tensor, root in zip(self.tensors, self.roots, strict=True)]

    @property
    def may_grow(self) -> bool:
        """Whether there are inputs, or tensors that may become inputs."""
        return bool(self.tensors or self._candidates)

    @property
    def made_edges(self) -> Collection[Edge]:
        """The edges of non-leaf inputs and candidates, at which the graph of a step ends.

        Sequence numbers do not show that such a tensor is older if it was made in another thread.
        """
        return {**self._made, **self._inputs_behind()}

    def admit(self, edges: Mapping[Edge, bool], steps: str) -> None:
        """Make the edges at which the graph of recorded steps ends inputs; the values say whether the edge is a leaf's.

        After the first sweep an unknown edge raises a StepError, since the loop's node cannot get another input.
        """
        for edge, is_leaf in edges.items():
            # A leaf that a step has created, to differentiate with respect to it, is not a parameter.
            if edge in self._indices or (is_leaf and is_forgotten_leaf(edge[0])):
                continue
            root = leaf_of(edge[0]) if is_leaf else self._made.get(edge)
            if self._only_rebound and id(root) not in self._candidates:
                continue
            root = _find_tensor(edge) if root is None else root
            # A tensor wrapped by a transform is nothing that plain autograd could differentiate with respect to.
            if self.closed or root is None or is_wrapped(root):
                raise unknown_input_error(edge[0], is_leaf, steps)
            # A tensor from before the loop may have a higher number if another thread made it.
            if not is_leaf and edge not in self._made and sequence_nr(edge[0]) >= self._first:
                self.left_by_steps.append(root)
            self._add(self._candidates.pop(id(root), _Input(root, root)))

    def admit_candidates(self) -> None:
        """Make all candidates inputs: if a step is compiled, nothing shows which of them it uses."""
        while self._candidates:
            self._add_new(self._candidates.pop(next(iter(self._candidates))))

    def keep_rebound(self) -> set[int]:
        """Allow only rebound tensors as inputs from now on, and return their capture ids.

        FSDP adds to `.grad` of all leaves that a range reaches, and replaces parameters itself.
        """
        self._only_rebound = True
        self._candidates = {key: each for key, each in self._candidates.items() if each.root is not each.tensor}
        return {each.capture_id for each in self._candidates.values()}

    def watch(self) -> None:
        """Watch the candidates not used so far, until the first sweep is over."""
        if self._watch is None and not self.closed and self._candidates:
            self._watch = Watch(each.root for each in self._candidates.values())

    @contextmanager
    def growing(self) -> Iterator[None]:
        """The context of the first sweep, after which the inputs no longer change."""
        try:
            yield
        finally:
            if self._watch is not None:
                self._watch.end()
        for root in () if self._watch is None else self._watch.used:
            candidate = self._candidates.pop(id(root), None)
            if candidate is not None:
                self._add_new(candidate)
        self._watch, self.closed = None, True
        self.memory = memory_of(self.roots)
        self._candidates.clear()
        self._made.clear()

    @property
    def dependent(self) -> bool:
        """Whether an input may lie behind another one."""
        return any(behind is None or behind for behind in self._inputs_behind().values())

    def stops(self, tape: Tape) -> Stops | None:
        """Where the backward of a range must stop, if not simply at all inputs.

        Inputs that the range does not use may lie behind one that it uses, or behind a non-leaf input inside it.
        """
        behind = self._inputs_behind()
        if not behind:  # the common case
            return None
        if not self.dependent and not any(sequence_nr(node) >= tape.number for node, _ in behind):
            return None
        used = tape.used_inputs(behind)
        indices = {self._indices[edge] for edge in used if edge in self._indices}
        made = {edge: behind[edge] for edge in used if edge in behind}
        blocked = [edge for edge, inputs in made.items() if inputs is None or inputs & indices]
        return Stops(frozenset(indices), tuple(blocked))

    def leaves_themselves(self) -> list[Tensor]:
        """The roots, each as the user's object, which has its hooks."""
        if self._leaves is None:
            self._leaves = [*map(leaf_itself, self.roots)]
        return self._leaves

    def _add_new(self, candidate: _Input) -> None:
        """Add a candidate, unless it is already an input as another object.

        What a checkpoint saves comes back as a new tensor with the old edge, which a step of an adjoint loop uses
        besides the old one. As two inputs, both would get the gradient of both.
        """
        if not candidate.root.requires_grad or edge_of(candidate.root) not in self._indices:
            self._add(candidate)

    def _add(self, new: _Input) -> None:
        self._behind = self._leaves = None
        if new.root.requires_grad:  # a parameter may have been frozen before the backward
            self._indices[edge_of(new.root)] = len(self.roots)
        self.tensors.append(new.tensor)
        self.roots.append(new.root)
        self.capture_ids.append(new.capture_id)

    def _inputs_behind(self) -> dict[Edge, frozenset[int] | None]:
        """By the edge of each non-leaf input: the inputs behind it, None if unknown."""
        if self._behind is None:
            made = [edge for edge in self._indices if not is_leaf_node(edge[0])]
            self._behind = {edge: self._indices_behind(edge[0]) for edge in made}
        return self._behind

    def _indices_behind(self, node: Node) -> frozenset[int] | None:
        """The inputs behind a node; None if there are too many nodes to find out."""
        edges = edges_behind(node)
        return None if edges is None else frozenset(self._indices[edge] for edge in edges if edge in self._indices)


def with_others_behind(tensors: Sequence[Tensor]) -> set[int]:
    """The indices of tensors that were computed from another one of them, or from too many nodes to find out."""
    made = {k: edge_of(tensor) for k, tensor in enumerate(tensors) if tensor.grad_fn is not None}
    known, leaves = {*made.values()}, {id(leaf_itself(tensor)) for tensor in tensors if made and tensor.is_leaf}

    def is_one(edge: Edge) -> bool:
        return edge in known or (is_leaf_node(edge[0]) and id(leaf_of(edge[0])) in leaves)

    behind = {k: edges_behind(node) for k, (node, _) in made.items()}
    return {k for k, edges in behind.items() if edges is None or any(map(is_one, edges))}


def _find_tensor(edge: Edge) -> Tensor | None:
    """The tensor with this gradient edge, which the search did not find, among all that Python's collector knows.

    It takes 0.5 s for a million objects, once for each tensor in a library's cache or in one that a step has filled.
    """
    for value in gc.get_objects():
        # By type: asking an object for its class may run its own code.
        if issubclass(type(value), Tensor) and value.grad_fn is edge[0] and value.output_nr == edge[1]:
            tensor: Tensor = value
            return tensor
    return None

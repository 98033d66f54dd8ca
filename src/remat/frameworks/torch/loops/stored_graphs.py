"""Tensors that steps store in lists, dicts and attributes, where their graphs end in a tape or are lost.

`execute/stored_values.py` has the part that all frameworks share.

The rule for the caller: a stored tensor whose graph ends in a tape is replaced by one with the same memory whose node
leads to all inputs of the loop and raises. A hook would not do: it would only run if `torch.autograd.grad` passes it on
the way to the tensors that it is asked for. Recomputed steps find the original tensor, in the contents of their time.

The same is done with a tensor of the caller's that steps have written into (`total += loss`).

Later steps that use such a tensor: left_by_steps.py. A tensor that is made once and cached is an input of the loop
instead (loop_inputs.py). The cost is a comparison of the contents after the first sweep.
"""

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Parameter

from remat.execute.python_state import Contents
from remat.execute.stored_values import StoredValues, raise_stored
from remat.frameworks.torch.internals.functorch import (
    below_transforms,
    below_vmap,
    outside_transforms,
    requires_grad_somewhere,
    with_batch_levels,
)
from remat.frameworks.torch.internals.graph import base_of, is_leaf_node, leaf_of, next_sequence_nr, sequence_nr
from remat.frameworks.torch.leaves import is_differentiable
from remat.frameworks.torch.loops.loop_inputs import LoopInputs
from remat.pytree import Leaf

__all__ = ["StoredGraphs", "guard_written", "has_escaped"]

MOST_NODES = 2_000  # to visit: they get Python objects, which the user's tensors then free by recursion


class StoredGraphs:
    """What the steps of one loop store while they run forward; `before` are the contents before the first step.

    `place` is the file and line of the step; `constants` are tensors without a graph that it reaches, and may write
    into.
    """

    def __init__(self, before: Contents, place: str, constants: Iterable[Tensor] = ()) -> None:
        self._before, self._place, self._number = before, place, next_sequence_nr()
        self._constants = [ref(tensor) for tensor in constants]
        self.written: Sequence[ReferenceType[Tensor]] = ()  # among these, after the first sweep

    def leave_steps(self, levels: Sequence[int]) -> None:
        """Rewrap stored tensors of a batch for the vmaps around the loop, since steps run in vmaps of their own."""
        stored = StoredValues(self._before)
        leaves = [leaf for group in stored.groups() for leaf in group]
        # Levels are mere numbers, which another transform may have by now: such a tensor must not be queried for
        # anything.
        pairs = [(id(leaf), leaf, with_batch_levels(leaf, levels)) for leaf in leaves] if levels else []
        stored.replace({key: new for key, leaf, new in pairs if new is not leaf})

    def guard(self, leaves_in: Sequence[Leaf], captured: Sequence[Tensor]) -> bool:
        """Make each stored tensor that depends on more than parameters and `captured` tensors raise if it is used.

        `leaves_in` are the other inputs of the loop, those of init and xs. Returns whether there are other stored
        tensors, which can be differentiated: their graphs may be part of those of tapes, which must then not be freed.
        """
        sources = list(filter(requires_grad_somewhere, (*leaves_in, *captured)))
        self._guard_written(sources, {id(tensor) for tensor in captured})
        stored = StoredValues(self._before)
        groups = stored.groups()
        made = [leaf for leaves in groups for leaf in leaves if self._has_graph(below_transforms(leaf))]
        given = {id(leaf) for leaf in (*leaves_in, *captured)}
        carries = [leaf for leaves in groups for leaf in leaves if id(leaf) not in given and _is_leaf_of_tape(leaf)]
        if not made and not carries:
            return False
        grad_fns = [below_transforms(leaf).grad_fn for leaf in made]  # steps run below torch.func transforms
        nodes = self._ending_in_tapes(grad_fns, {id(tensor) for tensor in captured})
        partial = {id(leaf): leaf for leaf, node in zip(made, grad_fns, strict=True) if node in nodes}
        partial |= {id(leaf): leaf for leaf in carries}
        for leaves in groups:
            numbers = [leaf for leaf in leaves if is_differentiable(leaf)]
            with_graph = [leaf for leaf in numbers if below_transforms(leaf).requires_grad]
            if 0 < len(with_graph) < len(numbers):  # steps without a tape have lost the graphs of the others
                partial |= {id(leaf): leaf for leaf in numbers}
        escaped = _Escaped.apply(self._place, [*partial.values()], *made, *sources) if partial else ()  # type: ignore[no-untyped-call]
        stored.replace(dict(zip(partial, escaped, strict=True)))
        return any(id(leaf) not in partial for leaf in made)

    def _guard_written(self, sources: Sequence[Tensor], known: set[int]) -> None:
        """Make each tensor that steps have written into, with a graph that ends in a tape, raise if it is used."""
        found = [tensor for each in self._constants if (tensor := each()) is not None and self._has_graph(tensor)]
        nodes = self._ending_in_tapes([tensor.grad_fn for tensor in found], known)
        self.written = [ref(tensor) for tensor in found if tensor.grad_fn in nodes]
        guard_written(self.written, sources, self._place)

    def cut_off(self, inputs: LoopInputs) -> frozenset[int]:
        """The inputs that a step of this loop has computed from its carry or from xs, for later steps."""
        known = {id(tensor) for tensor in inputs.tensors}
        nodes = self._ending_in_tapes([tensor.grad_fn for tensor in inputs.left_by_steps], known)
        return frozenset(k for k, tensor in enumerate(inputs.tensors) if tensor.grad_fn in nodes)

    def _has_graph(self, leaf: Leaf) -> bool:
        """Whether a leaf is a tensor with a graph that a step of this loop has made."""
        return isinstance(leaf, Tensor) and leaf.grad_fn is not None and self._is_inside(leaf.grad_fn)

    def _is_inside(self, node: Node) -> bool:
        """Whether a node was made by a step of this loop."""
        return not is_leaf_node(node) and sequence_nr(node) >= self._number

    def _ending_in_tapes(self, nodes: Sequence[Any], known: set[int]) -> set[Node]:
        """The nodes whose graphs reach a leaf that is neither a parameter nor known, and so is a leaf of a tape."""
        stack, seen = [*nodes], {*nodes}
        while stack:
            if len(seen) > MOST_NODES:  # so long a graph spans many steps
                return {*nodes}
            ends = [node for node, _ in stack.pop().next_functions if node is not None and node not in seen]
            inside = [node for node in ends if self._is_inside(node)]
            stack.extend(inside)
            seen.update(inside)
        found: set[Node] = set()
        for node in sorted(seen, key=sequence_nr):  # each after those that it depends on
            for end, _ in node.next_functions:
                if end in found or (end is not None and is_leaf_node(end) and not _is_known(leaf_of(end), known)):
                    found.add(node)
        return found


class _Escaped(torch.autograd.Function):
    """Tensors that were computed from these sources and stored in a container; their gradient is an error."""

    @staticmethod
    def vmap(
        info: Any, dims: Any, place: str, stored: list[Tensor], *sources: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        return _Escaped.apply(place, stored, *sources), tuple(dims[1])  # type: ignore[no-untyped-call]

    @staticmethod
    def forward(place: str, stored: list[Tensor], *sources: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.detach() for tensor in stored)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.place, ctx.count = inputs[0], len(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, ...]:
        if any(map(_counts, gradients)):
            raise_stored(ctx.place)
        return (None,) * int(ctx.count)  # a later loop has only reached the tensor, and replaced it


class _Written(torch.autograd.Function):
    """A tensor that steps have written into, with its numbers; its gradient is an error."""

    @staticmethod
    def forward(ctx: Any, place: str, tensor: Tensor, *sources: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(tensor)
        ctx.place, ctx.count = place, 2 + len(sources)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[None, ...]:
        if _counts(gradient):
            raise_stored(ctx.place)
        return (None,) * int(ctx.count)


def guard_written(tensors: Sequence[ReferenceType[Tensor]], sources: Sequence[Any], place: str) -> None:
    """Make tensors that steps have written into, first or in a recomputation, raise if they are differentiated."""
    for each in tensors:
        tensor = each()
        if tensor is not None and not isinstance(tensor.grad_fn, _Written._backward_cls):
            with torch.enable_grad():
                if base_of(tensor) is None:
                    tensor.detach_()  # so that the graph of a tape is freed
                _Written.apply(place, tensor, *filter(requires_grad_somewhere, sources))  # type: ignore[no-untyped-call]


def has_escaped(tensor: Tensor) -> bool:
    """Whether a tensor was stored by a step of a loop and raises; another loop may reach it without using it."""
    return isinstance(below_vmap(tensor).grad_fn, _Escaped._backward_cls)


def _counts(gradient: Tensor | None) -> bool:
    """Whether there is a gradient to be lost; torch.func transforms create zeros where there is none."""
    if gradient is None:
        return False
    with outside_transforms():
        return bool(below_transforms(gradient).any())


def _is_leaf_of_tape(leaf: Leaf) -> bool:
    """Whether a stored leaf is a carry as a recorded step was given it, where the graph of its range begins."""
    plain = below_transforms(leaf)
    return isinstance(plain, Tensor) and plain.requires_grad and plain.is_leaf and not isinstance(plain, Parameter)


def _is_known(leaf: Tensor, known: set[int]) -> bool:
    return isinstance(leaf, Parameter) or id(leaf) in known

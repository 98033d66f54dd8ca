"""Tensors that steps store in lists, dicts and attributes, instead of returning them, with a graph that ends in a tape.

The rule: a loss that a step appends to a list of the caller's is no output. Steps that advance without a tape store it
without a graph, and the graph of a recorded step ends where its range begins, so that its gradient would be a part of
the true one. To store such a tensor, for a log, is no error; to differentiate through it raises a StepError. So it is
replaced where it is stored, by a tensor of the same memory whose node leads to all inputs of the loop, and raises: a
hook would run only where `torch.autograd.grad` passes on its way to the tensors that it is asked for. Steps that are
run again find the tensor itself, in the contents of their time.

What it can miss: tensors in containers that the step does not reach when the loop is called (`nonlocal` variables,
objects with `__slots__`), other references to a stored tensor, and tensors that only steps without a tape have stored,
which require no gradient. The cost is a copy of the contents of the containers, and their comparison after the first
sweep.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Parameter

from remat.errors import StepError
from remat.execute.python_state import Container, Contents
from remat.frameworks.torch.graph import is_leaf_node, leaf_of, next_sequence_nr, sequence_nr
from remat.frameworks.torch.leaves import is_differentiable
from remat.frameworks.torch.loop_inputs import LoopInputs
from remat.pytree import LEAF, Leaf, flatten

__all__ = ["StoredGraphs"]

MOST_NODES = 2_000  # that are looked at: they get Python objects, which the user's tensors then free by recursion


class StoredGraphs:
    """Watches containers while the steps of one loop run forward, and guards what they have stored there."""

    def __init__(self, containers: Iterable[Container]) -> None:
        self._before = Contents.of(containers)
        self._number = next_sequence_nr()

    def guard(self, leaves_in: Iterable[Leaf], captured: Sequence[Tensor]) -> None:
        """Let every stored tensor raise that depends on more than parameters and `captured` tensors, if it is used.

        `leaves_in` are the other inputs of the loop, those of init and xs.
        """
        # The copy refers to the user's values, which must not live as long as the graph.
        before, self._before = self._before, Contents(())
        added = before.added()
        # Of a list all items are of one kind, of a dict (and of attributes) each by itself.
        kinds = [
            kind for container, items in added for kind in (zip(items) if isinstance(container, dict) else [items])
        ]
        stored = [flatten(kind)[0] for kind in kinds]
        made = [leaf for leaves in stored for leaf in leaves if self._has_graph(leaf)]
        if not made:
            return
        nodes = self._ending_in_tapes([leaf.grad_fn for leaf in made], {id(tensor) for tensor in captured})
        partial = {id(leaf): leaf for leaf in made if leaf.grad_fn in nodes}
        for leaves in stored:
            numbers = [leaf for leaf in leaves if is_differentiable(leaf)]
            with_graph = [leaf for leaf in numbers if leaf.requires_grad]
            if 0 < len(with_graph) < len(numbers):  # steps without a tape have lost the graphs of the others
                partial |= {id(leaf): leaf for leaf in numbers}
        sources = [each for each in (*leaves_in, *captured) if isinstance(each, Tensor) and each.requires_grad]
        escaped = _Escaped.apply([*partial.values()], *made, *sources) if partial else ()  # type: ignore[no-untyped-call]
        replacements = dict(zip(partial, escaped, strict=True))
        for container, items in added if replacements else ():
            _replace(container, replacements, {id(item) for item in items})

    def cut_off(self, inputs: LoopInputs) -> frozenset[int]:
        """The inputs that a step of this loop has computed from its carry or from xs, for those after it."""
        known = {id(tensor) for tensor in inputs.tensors}
        nodes = self._ending_in_tapes([tensor.grad_fn for tensor in inputs.left_by_steps], known)
        return frozenset(k for k, tensor in enumerate(inputs.tensors) if tensor.grad_fn in nodes)

    def _has_graph(self, leaf: Leaf) -> bool:
        """Whether a leaf is a tensor that a step of this loop has made, with a graph."""
        return isinstance(leaf, Tensor) and leaf.grad_fn is not None and self._is_inside(leaf.grad_fn)

    def _is_inside(self, node: Node) -> bool:
        """Whether a node was made by a step of this loop."""
        return not is_leaf_node(node) and sequence_nr(node) >= self._number

    def _ending_in_tapes(self, nodes: Sequence[Any], known: set[int]) -> set[Node]:
        """The nodes whose graphs reach a leaf that is neither a parameter nor known: a leaf of a tape."""
        stack, seen = [*nodes], {*nodes}
        while stack:
            if len(seen) > MOST_NODES:  # so long a graph is one of many steps
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
    """Tensors that were computed from these sources, and have left by a container; their gradient is an error."""

    @staticmethod
    def forward(ctx: Any, stored: list[Tensor], *sources: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.detach() for tensor in stored)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        raise StepError(
            "a tensor that a step of a loop stored in a list, a dict or an attribute is differentiated through; "
            "only what steps return has the gradient of the loop. Return it from the step as y: scan gives the "
            "y of all steps, stacked, to be summed up"
        )


def _is_known(leaf: Tensor, known: set[int]) -> bool:
    return isinstance(leaf, Parameter) or id(leaf) in known


def _replace(container: Container, replacements: Mapping[int, Tensor], items: set[int] | None = None) -> None:
    """Put the replacements of tensors into a container, or into those of its items that have these ids."""
    if isinstance(container, set):
        for item in [item for item in container if id(item) in replacements]:
            container.remove(item)
            container.add(replacements[id(item)])
        return
    for key, item in [*(container.items() if isinstance(container, dict) else enumerate(container))]:
        new = _replaced(item, replacements) if items is None or id(item) in items else item
        if new is not item:
            container[key] = new


def _replaced(value: Any, replacements: Mapping[int, Tensor]) -> Any:
    """A value with the replacements of tensors; only tuples are made anew, since others may refer to the rest."""
    if isinstance(value, Tensor):
        return replacements.get(id(value), value)
    contents = vars(value) if is_dataclass(value) and hasattr(value, "__dict__") else value
    if isinstance(contents, dict | list | deque):
        _replace(contents, replacements)
        return value
    leaves, tree = flatten(value, only=tuple)
    new = leaves if tree is LEAF else [_replaced(leaf, replacements) for leaf in leaves]
    return value if all(a is b for a, b in zip(leaves, new, strict=True)) else tree.unflatten(new)

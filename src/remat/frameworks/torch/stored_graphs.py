"""Tensors that steps store in lists, dicts and attributes, instead of returning them, with a graph that ends in a tape.

The rule: a loss that a step appends to a list of the caller's is no output. Steps that advance without a tape store it
without a graph, and the graph of a recorded step ends where its range begins, so that its gradient would be a part of
the true one. To store such a tensor, for a log, is no error; to differentiate through it raises a StepError.

What it can miss: tensors in containers that the step does not reach when the loop is called (`nonlocal` variables,
objects with `__slots__`), tensors that only steps without a tape have stored, which require no gradient, and tensors
that `torch.autograd.grad` does not pass, since it runs hooks only on the way to what it is asked for. The cost is a
copy of the contents of the containers, and their comparison after the first sweep.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.autograd.graph import Node
from torch.nn import Parameter

from remat.errors import StepError
from remat.execute.python_state import Container, Contents
from remat.frameworks.torch.graph import is_leaf_node, leaf_of, next_sequence_nr, sequence_nr

__all__ = ["StoredGraphs"]

MOST_NODES = 2_000  # that are looked at: they get Python objects, which the user's tensors then free by recursion


class StoredGraphs:
    """Watches containers while the steps of one loop run forward, and guards what they have stored there."""

    def __init__(self, containers: Iterable[Container]) -> None:
        self._before = Contents.of(containers)
        self._number = next_sequence_nr()
        self._pulling_back = False

    def guard(self, captured: Iterable[Tensor]) -> None:
        """Let every stored tensor raise that depends on more than parameters and `captured` tensors, if it is used."""
        # The copy refers to the user's values, which must not live as long as the graph.
        before, self._before = self._before, Contents(())
        nodes = [
            (leaf, leaf.grad_fn) for leaf in before.added() if isinstance(leaf, Tensor) and leaf.grad_fn is not None
        ]
        made = [(leaf, node) for leaf, node in nodes if self._is_inside(node)]
        partial = self._ending_in_tapes([node for _, node in made], {id(tensor) for tensor in captured})
        for leaf, node in made:
            if node in partial:
                leaf.register_hook(self._refuse)  # type: ignore[no-untyped-call]

    def _is_inside(self, node: Node) -> bool:
        """Whether a node was made by a step of this loop."""
        return not is_leaf_node(node) and sequence_nr(node) >= self._number

    def _ending_in_tapes(self, nodes: Sequence[Node], known: set[int]) -> set[Node]:
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

    @contextmanager
    def pulling_back(self) -> Iterator[None]:
        """A block in which the loop differentiates through its own tapes, where stored tensors may have a part."""
        self._pulling_back = True
        try:
            yield
        finally:
            self._pulling_back = False

    def _refuse(self, gradient: Tensor) -> None:
        if not self._pulling_back:
            raise StepError(
                "a tensor that a step of a loop stored in a list, a dict or an attribute is differentiated through; "
                "only what steps return has the gradient of the loop. Return it from the step as y: scan gives the "
                "y of all steps, stacked, to be summed up"
            )


def _is_known(leaf: Tensor, known: set[int]) -> bool:
    return isinstance(leaf, Parameter) or id(leaf) in known

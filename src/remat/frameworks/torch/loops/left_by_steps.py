"""Finds tensors by which gradients would flow from step to step besides the carry, and raises: they would be lost.

The rule: a step may leave tensors in lists, dicts and attributes, and later steps may use them. If a step that is
recorded leaves one with a graph in some place, gradients flow through that place in a plain loop. Here they end where a
range begins: steps without a tape have left a tensor without a graph, and a recorded carry is the root of another tape.
So a recorded range raises a StepError if its results depend on such a tensor from a place with graphs. To see this, the
tensor requires a gradient meanwhile. A place of which no recorded step has shown yet whether it gets graphs is
remembered if a range uses a tensor from it, until the step that fills it is recorded: at the latest in the reverse
sweep. What is detached, a running mean or a cache of constants, never has a graph, and is no error.

What it can miss: tensors in places that steps empty again before the next recorded range, and in containers that only
objects with `__slots__` hold. The cost: nothing if the steps that the first sweep records leave no tensors; else each
range compares the contents of all containers twice.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from weakref import ReferenceType, ref

from torch import Tensor
from torch.nn import Parameter

from remat.closures.new_contents import leaves_by_place
from remat.errors import StepError
from remat.execute.python_state import Contents, Place
from remat.frameworks.torch.internals.functorch import below_transforms
from remat.frameworks.torch.internals.graph import Edge, is_leaf_node, leaf_of, next_sequence_nr, sequence_nr
from remat.frameworks.torch.leaves import is_differentiable
from remat.frameworks.torch.loops.tape import Tape
from remat.frameworks.torch.replay.watch import Watch

__all__ = ["LeftBySteps"]


class LeftBySteps:
    """What the steps of one loop leave for later ones besides the carry; `before` are the contents at the call.

    Steps that are only measured lose no gradients, so nothing of theirs is `refused`.
    """

    def __init__(self, before: Contents, *, refused: bool = True) -> None:
        self._before, self._number, self._refused = before, next_sequence_nr(), refused
        self._any = False  # whether a step of the first sweep has left a tensor
        self._with_graphs: set[Place] = set()
        self._used: dict[Place, Tensor] = {}  # from which ranges used a tensor without a graph
        self._roots: dict[int, ReferenceType[Tensor]] = {}  # of tapes, that were left there

    @contextmanager
    def used_by(self, tape: Tape, again: bool) -> Iterator[Mapping[int, Tensor]]:
        """A context that records a range; yields the tensors on which its results must not depend, by id.

        `again` says that its steps ran before.
        """
        if not self._refused or (again and not self._any):
            yield {}
            return
        left = self._left()
        own = {id(root) for root in tape.roots}
        cut_off = {id(leaf): leaf for place, leaf in left if self._is_cut_off(place, leaf) and id(leaf) not in own}
        watch = Watch((leaf for _, leaf in left if id(leaf) not in cut_off and not leaf.requires_grad), flowing=True)
        changed = [leaf for leaf in cut_off.values() if not leaf.requires_grad]
        try:
            for leaf in changed:
                leaf.requires_grad_()
            yield cut_off
        finally:
            watch.end()
            for leaf in changed:
                leaf.requires_grad_(False)
        used = {id(tensor) for tensor in watch.used}
        self._used |= {place: leaf for place, leaf in left if id(leaf) in used}
        self.note(tape)

    def refuse(self, reached: Iterable[Edge], cut_off: Mapping[int, Tensor], steps: str) -> None:
        """Raise a StepError if one of the edges that a range reaches is that of a tensor that is cut off."""
        for node, _ in reached if cut_off else ():
            if is_leaf_node(node) and id(leaf_of(node)) in cut_off:
                raise lost_gradient(leaf_of(node), steps)

    def note(self, tape: Tape) -> None:
        """Note in which places the steps of a recorded range have left tensors with a graph."""
        left = self._left()
        self._any = self._any or bool(left)
        roots = {id(root) for root in (*tape.carry_in, *(each for row in tape.xs for each in row)) if root is not None}
        self._roots |= {id(leaf): ref(leaf) for _, leaf in left if id(leaf) in roots}
        self._with_graphs |= {place for place, leaf in left if id(leaf) in roots or self._has_graph(leaf)}
        for place in self._used.keys() & self._with_graphs:
            raise lost_gradient(self._used[place], "a step")

    def _left(self) -> list[tuple[Place, Tensor]]:
        found = [(place, leaf) for place, leaf in leaves_by_place(self._before) if is_differentiable(leaf)]
        return [(place, leaf) for place, leaf in found if not isinstance(leaf, Parameter)]

    def _is_cut_off(self, place: Place, leaf: Tensor) -> bool:
        if not leaf.requires_grad:
            return leaf.is_leaf and place in self._with_graphs
        root = self._roots.get(id(leaf))
        return root is not None and root() is leaf

    def _has_graph(self, leaf: Tensor) -> bool:
        node = below_transforms(leaf).grad_fn
        return node is not None and sequence_nr(node) >= self._number


def lost_gradient(tensor: Tensor, steps: str) -> StepError:
    """The error for a tensor that an earlier step has left for later ones."""
    return StepError(
        f"{steps} uses a tensor of shape {list(tensor.shape)} that an earlier step has left in an attribute or a "
        "container: its gradient would be lost there. Pass it through the carry, or detach it if it should have none"
    )

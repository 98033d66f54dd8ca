"""Finds tensors by which gradients would flow from step to step besides the carry, and raises: they would be lost.

The rule: a step may leave tensors in lists, dicts and attributes, and later steps may use them. If a step that is
recorded leaves one with a graph in some place, gradients flow through that place in a plain loop. Here they end where a
range begins: steps without a tape have left a tensor without a graph, and a recorded carry is the root of another tape.
So a recorded range raises a StepError if its results depend on such a tensor from a place with graphs. To see this, the
tensor has a graph meanwhile. A place of which no recorded step has shown yet whether it gets graphs is
remembered if a range uses a tensor from it, until the step that fills it is recorded: at the latest in the reverse
sweep. What is detached, a running mean or a cache of constants, never has a graph, and is no error.

What it can miss: tensors in places that steps empty again before the next recorded range, and in containers that only
new objects with `__slots__` hold. The cost: nothing if the steps that the first sweep records leave no tensors; else
each range compares the contents of all containers twice.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.nn import Parameter

from remat.closures.new_contents import leaves_by_place
from remat.errors import StepError
from remat.execute.python_state import Contents, Place
from remat.frameworks.torch.internals.functorch import below_transforms
from remat.frameworks.torch.internals.graph import (
    Edge,
    base_of,
    is_leaf_node,
    leaf_of,
    next_sequence_nr,
    sequence_nr,
    version_preserved,
)
from remat.frameworks.torch.leaves import is_differentiable
from remat.frameworks.torch.loops.loop_inputs import LoopInputs
from remat.frameworks.torch.loops.tape import Tape
from remat.frameworks.torch.replay.watch import Watch

__all__ = ["LeftBySteps"]


class LeftBySteps:
    """What the steps of one loop leave for later ones besides the carry; `before` are the contents at the call.

    Steps that are only measured lose no gradients, so nothing of theirs is `refused`.
    """

    def __init__(self, before: Contents, *, under_functorch: bool = False, refused: bool = True) -> None:
        self._before, self._number = before, next_sequence_nr()
        self._under_functorch, self._refused = under_functorch, refused
        self._any = False  # whether a step of the first sweep has left a tensor
        self._with_graphs: set[Place] = set()
        self._used: dict[Place, Tensor] = {}  # from which ranges used a tensor without a graph
        self._roots: dict[int, ReferenceType[Tensor]] = {}  # of tapes, that were left there

    @contextmanager
    def used_by(self, tape: Tape, again: bool, inputs: LoopInputs) -> Iterator[Mapping[int, Tensor]]:
        """A context that records a range; yields the tensors on which its results must not depend, by id of a leaf.

        `again` says that its steps ran before.
        """
        # In a transform, all that a loop inside of the step reaches seems to be used.
        is_unclear = self._under_functorch and not inputs.left_by_steps
        if not self._refused or is_unclear or (again and not self._any):
            yield {}
            return
        left = self._left()
        own = {id(root) for root in tape.roots}
        cut_off = {id(leaf): leaf for _, leaf in left if self._is_foreign_root(leaf) and id(leaf) not in own}
        bare = [(place, leaf) for place, leaf in left if not leaf.requires_grad]
        # No transform allows a tensor to require a gradient; there, whatever is used counts as used by a result.
        lost = {id(x): x for place, x in bare if place in self._with_graphs and x.is_leaf and not self._under_functorch}
        watch = Watch((leaf for _, leaf in bare if id(leaf) not in lost), flowing=True)
        try:
            with _requiring_grad(lost.values()) as leaves:
                yield cut_off | dict(zip(map(id, leaves), lost.values(), strict=True))
        finally:
            watch.end()
        used = {id(tensor) for tensor in watch.used}
        self._used |= {place: leaf for place, leaf in left if id(leaf) in used}
        self.note(tape)

    def refuse(self, reached: Iterable[Edge], cut_off: Mapping[int, Tensor], steps: str) -> None:
        """Raise a StepError if one of the edges that a range reaches is that of a tensor that is cut off."""
        for node, _ in reached if cut_off else ():
            if is_leaf_node(node) and id(leaf_of(node)) in cut_off:
                raise lost_gradient(cut_off[id(leaf_of(node))], steps)

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

    def _is_foreign_root(self, leaf: Tensor) -> bool:
        root = self._roots.get(id(leaf))
        return root is not None and root() is leaf

    def _has_graph(self, leaf: Tensor) -> bool:
        node = below_transforms(leaf).grad_fn
        return node is not None and sequence_nr(node) >= self._number


@contextmanager
def _requiring_grad(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """A context in which these tensors require a gradient; yields the leaves of their graphs.

    Each gets a node, since steps may write into a tensor that is no leaf. Writing into a view made without a graph is
    an error, so views become leaves.
    """
    pairs = []
    for tensor in tensors:
        leaf = tensor.requires_grad_() if base_of(tensor) is not None else torch.ones((), requires_grad=True)
        if leaf is not tensor:
            with torch.enable_grad(), version_preserved(tensor):
                _Source.apply(tensor, leaf)  # type: ignore[no-untyped-call]
        pairs.append((tensor, leaf))
    try:
        yield [leaf for _, leaf in pairs]
    finally:
        for tensor, leaf in pairs:
            if leaf is tensor:
                tensor.requires_grad_(False)
            elif isinstance(tensor.grad_fn, _Source._backward_cls):  # steps have not written into it
                tensor.detach_()


class _Source(torch.autograd.Function):
    """A tensor as it is, with a node that leads to a leaf; its gradient is an error, before it is asked for."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, leaf: Tensor) -> Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None


def lost_gradient(tensor: Tensor, steps: str) -> StepError:
    """The error for a tensor that an earlier step has left for later ones."""
    return StepError(
        f"{steps} uses a tensor of shape {list(tensor.shape)} that an earlier step has left in an attribute or a "
        "container: its gradient would be lost there. Pass it through the carry, or detach it if it should have none"
    )

"""Tapes on PyTorch: the graph of a recorded range of steps, pulled back by one call of the engine."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from remat.errors import StepError
from remat.execute.rng_state import ReplayableState
from remat.execute.state_replay import exchanged
from remat.frameworks.torch.internals.graph import (
    Edge,
    edge_of,
    engine_gradients,
    external_edges,
    gradient_edge,
    gradients_blocked,
    leaf_of,
    own_hooks_suspended,
)
from remat.frameworks.torch.internals.seen_nodes import SeenNodes
from remat.frameworks.torch.loops.untouched_leaves import without_unused
from remat.pytree import Leaf

__all__ = [
    "OutputEdges",
    "Stops",
    "Tape",
    "accumulate_grads",
    "output_edges",
    "requiring_grad",
    "root_gradients",
    "seed_accumulators",
    "tape_vjp",
    "unknown_input_error",
]


@dataclass(slots=True)
class Tape:
    """A recorded range: the leaves of its graph, and the gradient edges of its results; None where not active."""

    start: int
    stop: int
    number: int  # the nodes of its graph have higher sequence numbers
    carry_in: list[Any]
    captured: list[Tensor]  # the roots of the loop's inputs, in their own list, which grows in the first sweep
    inactive: Sequence[Any] = ()  # roots of carry leaves that turned out not to be active
    unwanted: Collection[int] = ()  # indices of captured leaves whose gradients are not requested
    xs: list[list[Any]] = field(default_factory=list)  # by step, then by leaf
    ys: list[Sequence[Any]] = field(default_factory=list)
    carry_out: list[Any] = field(default_factory=list)
    seen: SeenNodes = field(default_factory=SeenNodes)  # the nodes of its graph that were visited
    # Captured tensors that its graph refers to and steps write into, with their values after the range.
    saved_values: list[tuple[ReplayableState, Any]] = field(default_factory=list)

    def __del__(self) -> None:
        # Release results before the graph, last ones first: see `SeenNodes`, which is freed after this.
        self.carry_out.clear()
        while self.ys:
            self.ys.pop()

    @property
    def roots(self) -> list[Any]:
        """All leaves of the graph: carry, captured tensors, inputs of each step."""
        return [*self.carry_in, *self.captured, *(root for row in self.xs for root in row)]

    @property
    def steps_text(self) -> str:
        """Its steps, as errors name them."""
        last = self.stop - 1
        return f"step {last}" if self.start == last else f"one of the steps {self.start} to {last}"

    def as_recorded(self) -> AbstractContextManager[None]:
        """A context in which tensors that its graph refers to have the values of the recorded steps."""
        return exchanged(self.saved_values) if self.saved_values else nullcontext()

    def end_with(self, carry_out: list[GradientEdge | None]) -> None:
        """Set the edges of the last carry."""
        self.carry_out = carry_out

    def extend(self, stop: int) -> None:
        """Extend the range to another step."""
        self.stop = stop

    def deactivate(self, active: Sequence[bool]) -> None:
        """Request no gradients of inactive carry leaves; their roots are still known as such."""
        self.inactive = self.carry_in
        self.carry_in = [root if is_active else None for root, is_active in zip(self.carry_in, active, strict=True)]

    def want(self, carry: Sequence[bool], xs: Sequence[bool], captured: Sequence[bool]) -> None:
        """Request no gradients of leaves of the first carry, of xs and of captured tensors whose flag is False."""
        if self.start == 0 and not all(carry):
            self.deactivate(carry)
        if not all(xs):
            self.xs = [[root if on else None for root, on in zip(row, xs, strict=True)] for row in self.xs]
        # The engine stops at a non-leaf tensor only if its gradient is requested.
        if not all(captured):
            pairs = zip(captured, self.captured, strict=False)  # the last flag may be that of sharded parameters
            self.unwanted = {k for k, (on, root) in enumerate(pairs) if not on and root.is_leaf}

    def look_at_graph(
        self, results: Sequence[GradientEdge | None] = (), stops: Collection[Edge] = ()
    ) -> dict[Edge, bool]:
        """The edges by which its graph reaches older tensors and leaves, True for leaves; adds all its nodes to `seen`.

        `results` are those of a range that has not registered its own yet. The graph also ends at `stops`.
        """
        results = results or [*self.carry_out, *(edge for row in self.ys for edge in row)]
        edges = ((edge.node, edge.output_nr) for edge in results if edge is not None)
        visited: set[Node] = set()
        outside = external_edges(edges, self.number, visited, stops)
        self.seen.nodes.update(visited)
        return outside

    def used_inputs(self, stops: Collection[Edge] = ()) -> dict[Edge, bool]:
        """The edges by which its graph reaches anything but its carry and its inputs."""
        return self.take_reached(self.look_at_graph(stops=stops))[0]

    def take_reached(self, outside: dict[Edge, bool]) -> tuple[dict[Edge, bool], list[bool], list[bool]]:
        """These edges without those of its carry and inputs, and which leaves of carry and inputs were among them."""

        def take(root: Tensor | None) -> bool:
            return root is not None and outside.pop(edge_of(root), None) is not None

        carry = [take(root) for root in self.carry_in]
        rows = [[take(root) for root in row] for row in self.xs]
        for root in self.inactive:
            take(root)
        return outside, carry, [any(column) for column in zip(*rows, strict=True)]


def requiring_grad(roots: Sequence[Leaf]) -> list[Tensor | None]:
    """The tensors that require a gradient, with None in place of all others."""
    return [root if isinstance(root, Tensor) and root.requires_grad else None for root in roots]


def output_edges(leaves: Sequence[Leaf]) -> list[GradientEdge | None]:
    """The gradient edges of leaves, by which cotangents enter the graph; None for leaves without a graph."""
    return [gradient_edge(leaf) if isinstance(leaf, Tensor) and leaf.requires_grad else None for leaf in leaves]


class Stops(NamedTuple):
    """Where the backward of a range ends among the inputs of the loop."""

    used: frozenset[int]  # the inputs that the range uses; others may lie behind these
    blocked: tuple[Edge, ...]  # non-leaf inputs with others behind them, where the engine would not stop otherwise


class OutputEdges:
    """The gradient edges at which a backward starts, with their cotangents; if `batched`, many cotangents for each.

    With `keep` the graph behind them is not freed, because others use it too.
    """

    def __init__(self, *, batched: bool = False, keep: bool = False) -> None:
        self.edges: list[Any] = []
        self.cotangents: list[Any] = []
        self.batched, self.keep = batched, keep

    def add(self, edge: Any, cotangent: Any) -> None:
        """Add an edge, unless it or its cotangent is None."""
        if edge is not None and cotangent is not None:
            self.edges.append(edge)
            self.cotangents.append(cotangent)

    def clear(self) -> None:
        """Forget all edges."""
        self.edges.clear()
        self.cotangents.clear()


class _SeedGradients(torch.autograd.Function):
    """Feeds the running gradients of captured tensors into the engine, so that it adds to them in plain-loop order.

    Sums of floats depend on the order of additions. In a plain loop the engine adds the terms of a parameter step by
    step, from the last step to the first: ((g_n + g_n-1) + g_n-2) + …. If every range were summed separately and then
    added to the running sum, the order, and hence the last bits, would differ. Therefore the running sum enters the
    backward of the next range as the first term of each captured tensor.

    The node runs first (its sequence number is the highest) and clears the list, which has the only references to the
    sums: the engine then accumulates into them in place, as in a plain loop.
    """

    @staticmethod
    def forward(ctx: Any, sums: list[Any], *tensors: Tensor) -> Tensor:
        ctx.sums = sums
        return tensors[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        sums = ctx.sums
        gradients = tuple(sums)
        sums.clear()
        return None, *gradients


def seed_accumulators(
    edges: OutputEdges, captured: Sequence[Tensor], sums: list[Any], stops: Stops | None = None
) -> None:
    """Make the next backward add to the running sums of captured tensors, which are taken out of the list `sums`."""
    # A parameter may have been frozen since: as in plain autograd, it then gets no gradient.
    used = [k for k, root in enumerate(captured) if root.requires_grad and (stops is None or k in stops.used)]
    seeds = [sums[k] for k in used]
    if all(total is None for total in seeds):
        return
    for k in used:
        sums[k] = None
    # A node runs on one device and its gradients are not mapped; otherwise each sum is its own seed.
    if edges.batched or len({captured[k].device for k in used}) > 1:
        for k, total in zip(used, seeds, strict=True):
            edges.add(gradient_edge(captured[k]), total)
        return
    with torch.enable_grad():
        zero = _SeedGradients.apply(seeds, *[captured[k] for k in used])  # type: ignore[no-untyped-call]
    edges.add(gradient_edge(zero), zero.detach())


def tape_vjp(edges: OutputEdges, tape: Tape, hooked: Sequence[Tensor], stops: Stops | None = None) -> list[Any]:
    """The gradients of the roots of a tape, None where there is none; hooks of `hooked` tensors are suspended."""
    unwanted = tape.unwanted
    captured = [root if root.requires_grad and k not in unwanted else None for k, root in enumerate(tape.captured)]
    if stops is not None:
        captured = [root if k in stops.used else None for k, root in enumerate(captured)]
    roots = [*tape.carry_in, *captured, *(root for row in tape.xs for root in row)]
    return root_gradients(edges, roots, hooked, () if stops is None else stops.blocked)


def root_gradients(
    edges: OutputEdges,
    roots: Sequence[Tensor | None],
    hooked: Sequence[Tensor],
    blocked: Sequence[Edge],
    *,
    create: bool = False,
) -> list[Any]:
    """The gradients of roots by one call of the engine, None where there is none; with `create`, they have a graph."""
    leaves = [root for root in roots if root is not None]
    if not edges.edges or not leaves:
        return [None] * len(roots)
    # A blocked node is visited and would be freed, but the caller's backward still has to go through it.
    keep = edges.keep or bool(blocked) or create
    with own_hooks_suspended(hooked), gradients_blocked(blocked) if blocked else nullcontext():
        vjp = _batched_gradients if edges.batched else engine_gradients
        gradients = iter(without_unused(vjp(edges.edges, leaves, edges.cotangents, keep=keep, create=create)))
    edges.clear()  # the tape is the last to refer to its graph
    return [None if root is None else next(gradients) for root in roots]


def _batched_gradients(
    outputs: Sequence[GradientEdge], inputs: Sequence[Tensor], cotangents: Sequence[Tensor], *, keep: bool, create: bool
) -> tuple[Tensor | None, ...]:
    """`engine_gradients` for many cotangents of each output, in axis 0 like the gradients."""
    found: list[Any] = []

    def pull_back(bars: list[Tensor]) -> list[Tensor]:
        found[:] = engine_gradients(outputs, inputs, bars, keep=keep, create=create)
        return [gradient for gradient in found if gradient is not None]  # vmap returns only tensors

    gradients = iter(torch.func.vmap(pull_back)(list(cotangents)))
    return tuple(None if gradient is None else next(gradients) for gradient in found)


def accumulate_grads(edges: OutputEdges, tape: Tape) -> list[Any]:
    """The gradients of the roots by `backward`, which also accumulates into `.grad` of all parameters that it reaches.

    FSDP reduces gradients of sharded parameters only in this way. Captured tensors accumulate too, in place.
    """
    if edges.edges:
        torch.autograd.backward(edges.edges, edges.cotangents)
    edges.clear()
    return [None if root is None else root.grad for root in tape.roots]


def unknown_input_error(node: Any, is_leaf: bool, steps: str) -> StepError:
    """The error for a captured tensor that closure conversion did not find."""
    if is_leaf:
        what = f"a parameter of shape {list(leaf_of(node).shape)} that"
        advice = ". A parameter that a step makes when it first runs has to be made before the loop"
    else:
        what, advice = f"a tensor that {node.name()} made and that", ""
    return StepError(
        f"{steps} used {what} was not found in what the step closes over, so its gradient would be "
        "lost. Pass it through init or xs, or let the step close over it, or over the module that has it: closures, "
        f"partials, attributes, items of lists and dicts, and globals are searched{advice}"
    )

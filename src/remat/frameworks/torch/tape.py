"""Tapes of PyTorch: the graph of a recorded range of steps, its pullback by one call of the engine, its saved bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from remat.errors import StepError
from remat.frameworks.torch.fsdp import end_backward
from remat.frameworks.torch.graph import external_edges, gradient_edge, hooks_suspended, leaf_of
from remat.frameworks.torch.seen_nodes import SeenNodes

__all__ = [
    "FirstStep",
    "OutputEdges",
    "Tape",
    "accumulate_grads",
    "check_inputs_known",
    "requiring_grad",
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
    captured: list[Tensor]
    xs: list[list[Any]] = field(default_factory=list)  # by step, then by leaf
    ys: list[list[Any]] = field(default_factory=list)
    carry_out: list[Any] = field(default_factory=list)
    seen: SeenNodes = field(default_factory=SeenNodes)  # the nodes of its graph that were looked at

    def look_at_graph(self, results: Sequence[GradientEdge | None] = ()) -> dict[tuple[Node, int], bool]:
        """The edges by which its graph reaches older tensors and leaves, True for leaves; `seen` has all its nodes.

        `results` are those of a range that has not registered its own yet.
        """
        edges = results or [*self.carry_out, *(edge for row in self.ys for edge in row)]
        return external_edges([edge.node for edge in edges if edge is not None], self.number, self.seen.nodes)

    def __del__(self) -> None:
        # Results before the graph, and the last ones first: see `SeenNodes`, which is freed after this.
        self.carry_out.clear()
        while self.ys:
            self.ys.pop()

    @property
    def roots(self) -> list[Any]:
        """All leaves of the graph: carry, captured tensors, inputs of each step."""
        return [*self.carry_in, *self.captured, *(root for row in self.xs for root in row)]


def requiring_grad(roots: Sequence[Any]) -> list[Any]:
    """The tensors that require a gradient, None for all others."""
    return [root if isinstance(root, Tensor) and root.requires_grad else None for root in roots]


@dataclass
class FirstStep:
    """The first step, recorded before there is a plan, and its results, with which the first sweep begins."""

    tape: Tape
    carry: Any
    y: Any
    tape_bytes: int = 0  # if they were counted
    allocated: int = 0  # bytes that the step allocated, freed or not, if they were counted


class OutputEdges:
    """The gradient edges at which a backward starts, with the cotangents there."""

    def __init__(self) -> None:
        self.edges: list[Any] = []
        self.cotangents: list[Any] = []

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
    step, from the last step to the first: ((g_n + g_n-1) + g_n-2) + …. If every range were summed by itself, and then
    added to the running sum, the order would be another one, and so would be the last bits. Therefore the running sum
    enters the backward of the next range as the first term of each captured tensor.

    The node runs first (its sequence number is the highest) and clears the list, which has the only references to the
    sums: the engine then accumulates into them in place, as it does in a plain loop.
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


def seed_accumulators(edges: OutputEdges, captured: Sequence[Tensor], sums: list[Any]) -> None:
    """Let the next backward add to the running sums of captured tensors, which are taken out of the list `sums`."""
    if all(total is None for total in sums):
        return
    if len({tensor.device for tensor in captured}) > 1:  # a node runs on one device, so each sum is its own seed
        for tensor, total in zip(captured, sums, strict=True):
            edges.add(gradient_edge(tensor), total)
        return
    seeds = list(sums)
    sums[:] = [None] * len(sums)
    with torch.enable_grad():
        zero = _SeedGradients.apply(seeds, *captured)  # type: ignore[no-untyped-call]
    edges.add(gradient_edge(zero), zero.detach())


def tape_vjp(edges: OutputEdges, tape: Tape) -> list[Any]:
    """The gradients of the roots by one call of the engine, None for those without; hooks of captured tensors wait."""
    roots = tape.roots
    leaves = [root for root in roots if root is not None]
    if not edges.edges or not leaves:
        return [None] * len(roots)
    with hooks_suspended(tape.captured):
        gradients = iter(torch.autograd.grad(edges.edges, leaves, edges.cotangents, allow_unused=True))
    edges.clear()  # the tape is the last to refer to its graph
    return [None if root is None else next(gradients) for root in roots]


def accumulate_grads(edges: OutputEdges, tape: Tape, fsdp_modules: Sequence[Any]) -> list[Any]:
    """The gradients of the roots by a `backward`, which also accumulates into `.grad` of all parameters it reaches.

    FSDP reduces gradients of sharded parameters only in this way. Captured tensors accumulate too, in place.
    """
    if edges.edges:
        torch.autograd.backward(edges.edges, edges.cotangents)
    edges.clear()
    for module in fsdp_modules:
        end_backward(module)
    return [None if root is None else root.grad for root in tape.roots]


def check_inputs_known(tape: Tape) -> None:
    """Raise a StepError if the steps of a tape use a tensor that requires a gradient and is not one of its roots."""
    roots = {gradient_edge(root) for root in tape.roots if root is not None}
    for (node, output), is_leaf in tape.look_at_graph().items():
        if GradientEdge(node, output) not in roots:
            raise unknown_input_error(node, is_leaf, f"one of the steps {tape.start} to {tape.stop - 1}")


def unknown_input_error(node: Any, is_leaf: bool, steps: str) -> StepError:
    """The error for a captured tensor that closure conversion did not find."""
    what = f"a parameter of shape {list(leaf_of(node).shape)}" if is_leaf else f"a tensor that {node.name()} made"
    return StepError(
        f"{steps} used {what} and that was not found in what the step closes over, so its gradient would be "
        "lost. Pass it through init or xs, or let the step close over it, or over the module that has it: closures, "
        "partials, attributes, items of lists and dicts, and globals are searched"
    )

"""Tapes of PyTorch: the graph of a recorded range of steps, its pullback by one call of the engine, and its bytes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from remat.errors import StepError
from remat.frameworks.torch.fsdp import end_backward
from remat.frameworks.torch.graph import external_edges, gradient_edge, hooks_suspended, leaf_of
from remat.frameworks.torch.storage import StorageBytes, storage_id

__all__ = [
    "FirstStep",
    "OutputEdges",
    "Tape",
    "accumulate_grads",
    "check_inputs_known",
    "count_saved_bytes",
    "pull",
    "seed_accumulators",
    "unknown_input_error",
]


@dataclass(slots=True)
class Tape:
    """A recorded range: the leaves of its graph, and the gradient edges of its results; None where none flows."""

    start: int
    stop: int
    carry_in: list[Any]
    captured: list[Tensor]
    xs: list[list[Any]] = field(default_factory=list)  # by step, then by leaf
    ys: list[list[Any]] = field(default_factory=list)
    carry_out: list[Any] = field(default_factory=list)
    bytes: int = 0

    @property
    def roots(self) -> list[Any]:
        """All leaves of the graph: carry, captured tensors, inputs of each step."""
        return [*self.carry_in, *self.captured, *(root for row in self.xs for root in row)]


@dataclass
class FirstStep:
    """The first step, recorded before anything is planned, and its results: the first sweep begins with them."""

    tape: Tape
    carry: Any
    y: Any
    number: int  # its nodes have higher sequence numbers


class OutputEdges:
    """The gradient edges at which a backward starts, with the cotangents there."""

    def __init__(self) -> None:
        self.edges: list[Any] = []
        self.cotangents: list[Any] = []

    def add(self, edge: Any, bar: Any) -> None:
        """Add an edge, unless it or its cotangent is None."""
        if edge is not None and bar is not None:
            self.edges.append(edge)
            self.cotangents.append(bar)


class _SeedGradients(torch.autograd.Function):
    """Feeds the running gradients of captured tensors into the engine, which adds to them in the plain loop's order.

    The node gives away its only references to the sums, so that the engine may accumulate in place.
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


def seed_accumulators(ends: OutputEdges, captured: Sequence[Tensor], sums: list[Any]) -> None:
    """Let the gradients of captured tensors start with their running sums, which are taken out of the list."""
    if all(total is None for total in sums):
        return
    if len({tensor.device for tensor in captured}) > 1:  # a node belongs to one device
        for tensor, total in zip(captured, sums, strict=True):
            ends.add(gradient_edge(tensor), total)
        return
    seeds = list(sums)
    sums[:] = [None] * len(sums)
    with torch.enable_grad():
        end = _SeedGradients.apply(seeds, *captured)  # type: ignore[no-untyped-call]
    ends.add(gradient_edge(end), end.detach())


def pull(ends: OutputEdges, tape: Tape) -> list[Any]:
    """The gradients of the roots by one call of the engine, None for those without; captured tensors run no hooks."""
    roots = tape.roots
    leaves = [root for root in roots if root is not None]
    if not ends.edges or not leaves:
        return [None] * len(roots)
    with hooks_suspended(tape.captured):
        gradients = iter(torch.autograd.grad(ends.edges, leaves, ends.cotangents, allow_unused=True))
    return [None if root is None else next(gradients) for root in roots]


def accumulate_grads(ends: OutputEdges, tape: Tape, fsdp_modules: Sequence[Any]) -> list[Any]:
    """The gradients of the roots by a `backward`, which also accumulates into `.grad` of all parameters it reaches.

    FSDP reduces gradients of sharded parameters only in this way. Captured tensors accumulate too, in place.
    """
    if ends.edges:
        torch.autograd.backward(ends.edges, ends.cotangents)
    for module in fsdp_modules:
        end_backward(module)
    return [None if root is None else root.grad for root in tape.roots]


def check_inputs_known(tape: Tape, number: int) -> None:
    """Raise a StepError if the steps of a tape use a tensor that requires a gradient and is not one of its roots."""
    ends = [end.node for end in (*tape.carry_out, *(end for row in tape.ys for end in row)) if end is not None]
    roots = {gradient_edge(root) for root in tape.roots if root is not None}
    for (node, output), is_leaf in external_edges(ends, number).items():
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


@contextmanager
def count_saved_bytes(carry: Sequence[Any], persistent: Sequence[Tensor]) -> Iterator[Callable[[], int]]:
    """A block that records a tape from a carry; yields a function that says how many bytes the tape keeps alive.

    The carry counts, `persistent` tensors do not, and each storage counts once.
    """
    live_anyway = {storage_id(tensor) for tensor in persistent}
    saved = StorageBytes(carry)
    del carry

    def pack(tensor: Tensor) -> Tensor:
        if storage_id(tensor) not in live_anyway:
            saved.add(tensor)
        return tensor.detach()  # a result that its own node saves would otherwise keep that node alive by a cycle

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved.total

"""Tapes of PyTorch: the graph of a recorded range, pulled back by one call of the engine, and its weight in bytes."""

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
    """A recorded range: what went in, and where gradients come in for what came out; None where none flows."""

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
        """All that went in."""
        return [*self.carry_in, *self.captured, *(root for row in self.xs for root in row)]


@dataclass
class FirstStep:
    """The first step, recorded before anything is planned: how it behaves, and its results, for when it is its turn."""

    tape: Tape
    carry: Any
    y: Any
    number: int  # the least of its nodes' numbers


class OutputEdges:
    """Where gradients come into a graph, with the gradients."""

    def __init__(self) -> None:
        self.edges: list[Any] = []
        self.cotangents_of_outputs: list[Any] = []

    def add(self, edge: Any, bar: Any) -> None:
        """One more, if there is something to add."""
        if edge is not None and bar is not None:
            self.edges.append(edge)
            self.cotangents_of_outputs.append(bar)


class _SeedGradients(torch.autograd.Function):
    """A node that gives sums of gradients to the tensors they belong to, and nobody holds them meanwhile.

    So the engine adds to them in place, and goes on where the range after this one ended.
    """

    @staticmethod
    def forward(ctx: Any, sums: list[Any], *tensors: Tensor) -> Tensor:
        ctx.sums = sums
        return tensors[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        sums = ctx.sums
        found = tuple(sums)
        sums.clear()
        return None, *found


def seed_accumulators(ends: OutputEdges, captured: Sequence[Tensor], sums: list[Any]) -> None:
    """Let the gradients of captured tensors begin with their sums, which are taken away from the list."""
    if all(total is None for total in sums):
        return
    if len({tensor.device for tensor in captured}) > 1:  # a node belongs to one device
        for tensor, total in zip(captured, sums, strict=True):
            ends.add(gradient_edge(tensor), total)
        return
    given = list(sums)
    sums[:] = [None] * len(sums)
    with torch.enable_grad():
        end = _SeedGradients.apply(given, *captured)  # type: ignore[no-untyped-call]
    ends.add(gradient_edge(end), end.detach())


def pull(ends: OutputEdges, tape: Tape) -> list[Any]:
    """The gradients of roots by one call of the engine, None for those without; hooks of captured tensors rest."""
    roots = tape.roots
    wanted = [root for root in roots if root is not None]
    if not ends.edges or not wanted:
        return [None] * len(roots)
    with hooks_suspended(tape.captured):
        found = iter(torch.autograd.grad(ends.edges, wanted, ends.cotangents_of_outputs, allow_unused=True))
    return [None if root is None else next(found) for root in roots]


def accumulate_grads(ends: OutputEdges, tape: Tape, fsdp_modules: Sequence[Any]) -> list[Any]:
    """The gradients of roots by one call of the engine that also adds to the gradients of all parameters it meets.

    Modules that FSDP has sharded gather theirs in this way only. Captured tensors add up too, in place.
    """
    if ends.edges:
        torch.autograd.backward(ends.edges, ends.cotangents_of_outputs)
    for module in fsdp_modules:
        end_backward(module)
    return [None if root is None else root.grad for root in tape.roots]


def check_inputs_known(tape: Tape, number: int) -> None:
    """Raise a StepError if the steps of a tape use a tensor that wants a gradient and that is not known."""
    ends = [end.node for end in (*tape.carry_out, *(end for row in tape.ys for end in row)) if end is not None]
    known = {gradient_edge(root) for root in tape.roots if root is not None}
    for (node, output), is_leaf in external_edges(ends, number).items():
        if GradientEdge(node, output) not in known:
            raise unknown_input_error(node, is_leaf, f"one of the steps {tape.start} to {tape.stop - 1}")


def unknown_input_error(node: Any, is_leaf: bool, steps: str) -> StepError:
    """What to say of a captured tensor that was not found."""
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

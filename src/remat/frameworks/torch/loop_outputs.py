"""What a loop gives: tensors, through some of which gradients flow, and numbers beside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.backend import TorchBackend
from remat.frameworks.torch.storage import storage_id

__all__ = ["LoopOutputs", "clone_aliases"]


@dataclass
class LoopOutputs:
    """What a loop gives beside its tensors: which leaves of the last carry and of the outputs these are."""

    numbers: list[Any]  # leaves, with None for each tensor
    flows: list[bool]
    carry_size: int
    outputs: Any

    @classmethod
    def of(cls, backend: TorchBackend, carry: Any, given: Sequence[Any]) -> "tuple[LoopOutputs, tuple[Tensor, ...]]":
        """The results of verbs that have run, and their tensors; what is in the memory of something given is copied."""
        runner, flows = backend.runner, backend.activity
        backend.output_flows()
        there = {_memory(leaf) for leaf in given}
        leaves = []
        for leaf in runner.tree.flatten_like(carry, "carry"):
            memory = _memory(leaf)
            leaves.append(leaf.clone() if memory in there and memory is not None else leaf)
            there.add(memory)
        flowing = [flow and leaf_ops.flows(leaf) for flow, leaf in zip(flows.carry, leaves, strict=True)]
        every = [*leaves, *runner.outputs.leaves]
        numbers = [None if isinstance(leaf, Tensor) else leaf for leaf in every]
        tensors = tuple(leaf for leaf in every if isinstance(leaf, Tensor))
        backend.release_outputs()
        return cls(numbers, [*flowing, *flows.ys], len(leaves), runner.outputs.tree), tensors

    def tensor_flows(self) -> list[bool]:
        """Whether a gradient flows, for each of the leaves that are tensors."""
        return [flow for number, flow in zip(self.numbers, self.flows, strict=True) if number is None]

    def with_arrays(self, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """All leaves, of the carry and of the outputs, with these for the tensors."""
        rest = iter(tensors)
        found = [next(rest) if number is None else number for number in self.numbers]
        return found[: self.carry_size], found[self.carry_size :]

    def expand_cotangents(self, cotangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Cotangents of all leaves, of the carry and of the outputs; None where there is none."""
        rest = iter(cotangents)
        expanded = [next(rest) if number is None else None for number in self.numbers]
        expanded = [part if flow else None for part, flow in zip(expanded, self.flows, strict=True)]
        return expanded[: self.carry_size], expanded[self.carry_size :]


def _memory(leaf: Any) -> int | None:
    return storage_id(leaf) if isinstance(leaf, Tensor) and leaf.numel() else None


def clone_aliases(found: Sequence[Any], given: Sequence[Any]) -> tuple[Any, ...]:
    """What a function returns, with copies for what was given to it: autograd takes such a thing for its own view."""
    there = {id(arg) for arg in given if arg is not None}
    return tuple(part.clone() if id(part) in there else part for part in found)

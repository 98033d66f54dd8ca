"""The results of a loop: tensors, which go through the autograd Function, and Python numbers, which do not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.internals.storage import storage_id
from remat.frameworks.torch.leaves import TensorSpec
from remat.frameworks.torch.loops.backend import TorchBackend

__all__ = ["LoopOutputs", "clone_aliases"]


@dataclass
class LoopOutputs:
    """Where the tensors of a loop's results belong among the leaves of the last carry and the outputs."""

    numbers: list[Any]  # all leaves, with None in place of each tensor
    active: list[bool]  # by leaf: whether it depends on a tensor that requires a gradient
    carry_specs: list[TensorSpec]  # of the last carry: a number in the first carry may have become a tensor
    outputs: Any  # the structure of the outputs
    output_specs: list[TensorSpec]  # of the outputs of one step

    @property
    def carry_size(self) -> int:
        """The number of leaves of the carry."""
        return len(self.carry_specs)

    @classmethod
    def of(cls, backend: TorchBackend, carry: Any, inputs: Sequence[Any]) -> "tuple[LoopOutputs, tuple[Tensor, ...]]":
        """The results of a finished loop, and their tensors.

        A carry leaf that shares memory with an input is cloned, as is one that shares it with an output as a kept
        state.
        """
        runner, activity = backend.runner, backend.tracker.close()
        occupied = {_memory(leaf) for leaf in (*inputs, *runner.outputs.leaves)}
        leaves = []
        for leaf in runner.tree.flatten_like(carry, "carry"):
            memory = _memory(leaf)
            if memory in occupied and memory is not None:
                leaf = leaf.clone()
            elif isinstance(leaf, Tensor):
                leaf = leaf.detach()  # a constant of the user's must not become part of a graph
            leaves.append(leaf)
            occupied.add(memory)
        at_end = backend.flow.active_at_end(runner.outputs_written, activity.carry)
        carry_active = [
            active and leaf_ops.is_differentiable(leaf) for active, leaf in zip(at_end, leaves, strict=True)
        ]
        all_leaves = [*leaves, *runner.outputs.leaves]
        numbers = [None if isinstance(leaf, Tensor) else leaf for leaf in all_leaves]
        tensors = tuple(leaf for leaf in all_leaves if isinstance(leaf, Tensor))
        backend.release_outputs()
        active, outputs = [*carry_active, *activity.ys], runner.outputs
        return cls(numbers, active, runner.specs, outputs.tree, outputs.specs), tensors

    def tensor_activity(self) -> list[bool]:
        """For each leaf that is a tensor, whether it is active."""
        return [active for number, active in zip(self.numbers, self.active, strict=True) if number is None]

    def with_arrays(self, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """All leaves of the carry and of the outputs, with these tensors in their places."""
        rest = iter(tensors)
        leaves = [next(rest) if number is None else number for number in self.numbers]
        return leaves[: self.carry_size], leaves[self.carry_size :]

    def expand_cotangents(self, cotangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The cotangents of all leaves of carry and outputs, from those of the tensors; None where there is none."""
        rest = iter(cotangents)
        expanded = [next(rest) if number is None else None for number in self.numbers]
        expanded = [bar if active else None for bar, active in zip(expanded, self.active, strict=True)]
        return expanded[: self.carry_size], expanded[self.carry_size :]


def _memory(leaf: Any) -> int | None:
    """The identity of the memory of a leaf; None if it has none."""
    return storage_id(leaf) if isinstance(leaf, Tensor) and leaf.numel() else None


def clone_aliases(outputs: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a Function, cloned where they are inputs, since autograd would return a view of the input."""
    input_ids = {id(arg) for arg in inputs if arg is not None}
    return tuple(output.clone() if id(output) in input_ids else output for output in outputs)

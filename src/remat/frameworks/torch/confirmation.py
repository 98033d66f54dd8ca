"""Whether a saved tensor that did not repeat is work space: a suspicion is confirmed before anything is raised.

The rule: what counts is whether results, and the float values that the backward uses, repeat. A saved tensor of floats
whose fingerprint differs is an error at once. One of integers may be a buffer in which nothing but a part has a meaning
(oneDNN's reserve of an LSTM, cuDNN's seeds without dropout), and one of new floats may be the noise of nn.RReLU, which
is saved before it is drawn. So the segment is run twice more, to its end: the outputs must be those of the first run,
and both runs must have the same gradients. A mask or a table of indices, which is the same in these two runs and was
another one in the first, is an error, too.

What it can miss: bytes, or one or two integers, that were others in the first run alone and that gradients depend on,
though no output does. The cost: nothing without a suspicion, but for fingerprints of the outputs of functions that save
such tensors; two runs and two backwards with one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from remat.frameworks.torch.graph import external_edges, next_sequence_nr
from remat.frameworks.torch.leaves import device_fingerprint, is_differentiable
from remat.frameworks.torch.saved_tensors import SavedTensorMeta, describe, tolerated_difference
from remat.frameworks.torch.seen_nodes import SeenNodes
from remat.pytree import flatten
from remat.segments import raise_nondeterministic

__all__ = ["CompleteRun", "confirm_work_space", "output_fingerprints"]

_SEEDS = 2  # integers: a seed and an offset


@dataclass(frozen=True)
class CompleteRun:
    """One run of a segment to its end: its outputs, its gradients, and the saved tensors that are under suspicion.

    `noise` are the indices of those that an operator fills after saving them.
    """

    outputs: Sequence[Tensor]
    gradients: Sequence[Tensor | None]
    saved: dict[int, Tensor]
    noise: set[int]

    @classmethod
    def of(cls, run: Callable[[], Any], roots: Sequence[Tensor], suspects: Sequence[int]) -> "CompleteRun":
        """Run a function, and its backward by `roots`."""
        saved: dict[int, Tensor] = {}
        addresses: dict[int, int] = {}
        count = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            if count in suspects:
                saved[count], addresses[count] = tensor.detach().clone(), tensor.data_ptr()
            count += 1
            return tensor

        # Nodes of this run are told from older ones by their numbers, which only grow.
        start = next_sequence_nr()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = [leaf for leaf in flatten(run())[0] if is_differentiable(leaf)]
        ends = [output for output in outputs if output.requires_grad]
        # By address, since what `pack` was given is another object for the same memory.
        drawn = {noise.data_ptr() for noise in _noise_in(ends, start)}
        noise = {index for index, address in addresses.items() if address in drawn}
        gradients = torch.autograd.grad(ends, roots, [torch.ones_like(end) for end in ends], allow_unused=True)
        return cls(outputs, gradients, saved, noise)


def _noise_in(ends: Sequence[Tensor], start: int) -> list[Tensor]:
    """The noise that nodes of this graph have saved, of all nodes with a number of `start` or more."""
    seen = SeenNodes()
    external_edges([(end.grad_fn, 0) for end in ends if end.grad_fn is not None], start, seen.nodes)
    return [node._saved_noise for node in seen.nodes if hasattr(node, "_saved_noise")]


def output_fingerprints(out: Any) -> list[Tensor]:
    """The fingerprints of the float tensors that a function has returned."""
    return [device_fingerprint(leaf) for leaf in flatten(out)[0] if is_differentiable(leaf)]


def confirm_work_space(
    name: str,
    metas: Sequence[SavedTensorMeta],
    suspects: Sequence[tuple[int, float]],
    outputs: Sequence[Tensor],
    run: Callable[[], CompleteRun],
) -> None:
    """Raise a DeterminismError for the first suspect (its index and difference) that is no work space.

    `outputs` are the fingerprints of the first run's outputs.
    """
    # Two more runs, since tensors of the first one are gone, and only its fingerprints are left to compare with.
    first, second = run(), run()
    repeats = len(first.outputs) == len(outputs) and not any(
        tolerated_difference(tensor, device_fingerprint(tensor), before)
        for tensor, before in zip(first.outputs, outputs, strict=True)
    )
    repeats = repeats and all(map(_same, first.gradients, second.gradients))
    for index, difference in suspects:
        tensor = first.saved[index]
        is_value = tensor.dtype is not torch.uint8 and tensor.numel() > _SEEDS and index not in first.noise
        if not repeats or (is_value and torch.equal(tensor, second.saved[index])):
            raise_nondeterministic(
                name,
                f"tensor {index} of the {len(metas)} that it saves for its backward, {describe(tensor)}, "
                f"was another one by {difference:.1g} of its size",
            )


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return not tolerated_difference(first, device_fingerprint(first), device_fingerprint(second))

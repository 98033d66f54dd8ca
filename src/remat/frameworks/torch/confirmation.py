"""Whether a saved tensor that did not repeat is work space: a suspicion is confirmed before anything is raised.

The rule: what counts is whether results, and the float values that the backward uses, repeat. A saved tensor of floats
whose fingerprint differs is an error at once. One of integers may be a buffer in which nothing but a part has a meaning
(oneDNN's reserve of an LSTM, cuDNN's seeds without dropout), and one of new floats may be the noise of nn.RReLU, which
is saved before it is drawn, and in eval never is. So the segment is run twice more, to its end: the outputs must be
those of the first run, and both runs must have the same gradients. A mask or a table of indices, or floats, which are
the same in these two runs and were others in the first, are an error, too; but not floats that are filled after they
were saved, or that no gradient depends on: a third run saves other numbers in their place.

What it can miss: bytes, or one or two integers, that were others in the first run alone and that gradients depend on,
though no output does. The cost: nothing without a suspicion, but for fingerprints of the outputs of functions that save
such tensors; two runs and two backwards with one, or three.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from remat.frameworks.torch.leaves import device_fingerprint, is_differentiable
from remat.frameworks.torch.saved_tensors import raise_difference, tolerated_difference
from remat.pytree import flatten

__all__ = ["CompleteRun", "confirm_work_space", "output_fingerprints"]

_SEEDS = 2  # integers: a seed and an offset


@dataclass(frozen=True)
class CompleteRun:
    """One run of a segment to its end: its outputs, its gradients, and the saved tensors that are under suspicion.

    `noise` are the indices of those that an operator fills after saving them, without a new version.
    """

    outputs: Sequence[Tensor]
    gradients: Sequence[Tensor | None]
    saved: dict[int, Tensor]
    noise: set[int]

    @classmethod
    def of(
        cls,
        run: Callable[[], Any],
        roots: Sequence[Tensor],
        suspects: Sequence[int],
        uncounted: Container[int],
        replaced: bool,
    ) -> "CompleteRun":
        """Run a function, and its backward by `roots`; `replaced`: with other numbers in suspects of floats.

        Suspects have their indices among the saved tensors without those that have an id in `uncounted`, parameters.
        """
        saved: dict[int, Tensor] = {}
        originals: dict[int, Tensor] = {}
        count = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            if id(tensor) in uncounted:
                return tensor
            index = count
            count += 1
            if index in suspects:
                saved[index], originals[index] = tensor.detach().clone(), tensor.detach()
                if replaced and tensor.is_floating_point():
                    return torch.full_like(tensor, 0.75).detach()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = [leaf for leaf in flatten(run())[0] if is_differentiable(leaf)]
        ends = [output for output in outputs if output.requires_grad]
        # By their bytes, since these operators count no version.
        noise = {index for index, tensor in originals.items() if not _identical(tensor, saved[index])}
        gradients = torch.autograd.grad(ends, roots, [torch.ones_like(end) for end in ends], allow_unused=True)
        return cls(outputs, gradients, saved, noise)


def _identical(tensor: Tensor, other: Tensor) -> bool:
    return torch.equal(tensor.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))  # nan is nan


def output_fingerprints(out: Any) -> list[Tensor]:
    """The fingerprints of the float tensors that a function has returned."""
    return [device_fingerprint(leaf) for leaf in flatten(out)[0] if is_differentiable(leaf)]


def confirm_work_space(
    name: str,
    count: int,
    suspects: Sequence[tuple[int, float]],
    outputs: Sequence[Tensor],
    run: Callable[[bool], CompleteRun],
) -> None:
    """Raise a DeterminismError for the first suspect (its index of `count`, and difference) that is no work space.

    `outputs` are the fingerprints of the first run's outputs; `run` runs the segment again, with the argument True
    so that suspects of floats are replaced by others.
    """
    # Two more runs, since tensors of the first one are gone, and only its fingerprints are left to compare with.
    first, second = run(False), run(False)
    repeats = len(first.outputs) == len(outputs) and not any(
        tolerated_difference(tensor, device_fingerprint(tensor), before)
        for tensor, before in zip(first.outputs, outputs, strict=True)
    )
    repeats = repeats and all(map(_same, first.gradients, second.gradients))
    for index, difference in suspects:
        tensor = first.saved[index]
        is_value = tensor.dtype is not torch.uint8 and tensor.numel() > _SEEDS and index not in first.noise
        is_value = is_value and torch.equal(tensor, second.saved[index])
        if is_value and repeats and tensor.is_floating_point():
            is_value = not all(map(_same, first.gradients, run(True).gradients))
        if not repeats or is_value:
            raise_difference(name, index, count, tensor, difference)


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return not tolerated_difference(first, device_fingerprint(first), device_fingerprint(second))

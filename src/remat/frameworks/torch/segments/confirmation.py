"""Decides whether a saved tensor that did not repeat is mere workspace, before an error is raised.

The rule: what counts is whether the results, and the float values that the backward uses, repeat. A saved float tensor
whose fingerprint differs is usually an error at once. Two kinds of tensors are only suspects: an integer tensor may be
a buffer of which only a part has a meaning (oneDNN's reserve of an LSTM, cuDNN's seeds without dropout), and a new
float tensor may be the noise of nn.RReLU, which is saved before it is drawn, and in eval mode is never drawn. For such
a suspect the segment is run twice more, to its end: the outputs must be those of the first run, and both runs must have
the same gradients. A mask, a table of indices or a float tensor that is the same in these two runs, but was different
in the first, is an error too. Not so floats that are filled after being saved, or on which no gradient depends: a third
run, which saves other numbers in their place, shows the latter.

What it can miss: bytes, or one or two integers, that differed in the first run only and that gradients depend on, but
no output does. The cost: without a suspect, only fingerprints of the outputs of functions that save such tensors; with
one, two or three runs and backwards.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from remat.frameworks.torch.leaves import device_fingerprint, is_differentiable
from remat.frameworks.torch.segments.saved_tensors import raise_difference, tolerated_difference
from remat.pytree import flatten

__all__ = ["CompleteRun", "confirm_work_space", "output_fingerprints"]

_SEEDS = 2  # integers: a seed and an offset


@dataclass(frozen=True)
class CompleteRun:
    """One complete run of a segment: its outputs, its gradients, and the saved tensors under suspicion.

    `noise` are the indices of tensors that an operator fills after saving them, without a new version.
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
        """Run a function and its backward to `roots`; if `replaced`, save other numbers for float suspects.

        The indices of suspects count all saved tensors except those whose id is in `uncounted`, which are parameters.
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
        # Compare bytes, since these operators do not bump the version.
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
    """Raise a DeterminismError for the first suspect (index among `count` tensors, difference) that is not workspace.

    `outputs` are the fingerprints of the first run's outputs. `run` runs the segment again; with the argument True,
    other numbers are saved for float suspects.
    """
    # Two more runs, since the tensors of the first are gone, and only its fingerprints remain to compare with.
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

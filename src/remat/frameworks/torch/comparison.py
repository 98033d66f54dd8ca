"""The comparison of what steps return when they run again (`loops/compared_results.py`), by fingerprints of tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from remat.frameworks.torch.leaves import device_fingerprint, quick_fingerprint, row_fingerprints, with_finite_numbers
from remat.loops.compared_results import ComparedResults
from remat.loops.step_runner import StepRunner
from remat.pytree import PyTree

__all__ = ["ComparedTensors"]


class ComparedTensors(ComparedResults):
    """The part of a backend that compares what its runner returns."""

    def __init__(self, runner: StepRunner) -> None:
        super().__init__(runner, _TensorFingerprints())

    def device_fingerprint(self, state: PyTree, *, of_sizes: bool = False) -> list[Tensor]:
        """Fingerprints on the device for each leaf of the carry and of the output of the last step."""
        leaves = map(with_finite_numbers, self.runner.observed(state))
        return [device_fingerprint(leaf, of_sizes=of_sizes) for leaf in leaves]

    def recorded_at_first(self, start: int, stop: int) -> int:
        """1 if a step of this range was recorded in the first sweep (`advance` has probes), and may have rounded so."""
        following = 1 << (start - 1).bit_length() if start else 0
        return int(following < stop)


class _TensorFingerprints:
    """Fingerprints that stay on the device until they are compared."""

    of = staticmethod(quick_fingerprint)
    noted = staticmethod(device_fingerprint)
    rows = staticmethod(row_fingerprints)

    def on_host(self, noted: Sequence[Sequence[Tensor]]) -> list[list[float]]:
        """The numbers, by one synchronization with each device."""
        columns = [torch.stack(column).tolist() for column in zip(*noted, strict=True)]
        return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in noted]

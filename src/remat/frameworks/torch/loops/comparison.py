"""Compares the results of recomputed steps (`loops/compared_results.py`) by fingerprints of tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from remat.execute.determinism import DeterminismCheck
from remat.frameworks.torch.leaves import (
    device_fingerprint,
    is_on_host,
    quick_fingerprint,
    row_fingerprints,
    with_finite_numbers,
)
from remat.loops.compared_results import ComparedResults, Fingerprints
from remat.loops.step_runner import StepRunner
from remat.pytree import Leaf, PyTree

__all__ = ["ComparedTensors", "DeviceDeterminismCheck"]

MOST = 128  # the most states with a fingerprint on the device


class ComparedTensors(ComparedResults):
    """The part of a backend that compares what its runner returns."""

    def __init__(self, runner: StepRunner) -> None:
        super().__init__(runner, _FINGERPRINTS)

    def device_fingerprint(self, state: PyTree, *, of_sizes: bool = False) -> Tensor:
        """Fingerprints of each leaf of the carry and of the last step's output, as one tensor on the device."""
        leaves = map(with_finite_numbers, self.runner.observed(state))
        numbers = [device_fingerprint(leaf, of_sizes=of_sizes) for leaf in leaves]
        device = next((number.device for number in numbers if number.device.type != "cpu"), torch.device("cpu"))
        return torch.stack([number.to(device, non_blocking=True) for number in numbers])

    def recorded_at_first(self, start: int, stop: int) -> int:
        """1 if a step of this range was a recorded probe of the first sweep, and may have rounded differently."""
        following = 1 << (start - 1).bit_length() if start else 0
        return int(following < stop)


def _on_host(noted: Sequence[Sequence[Tensor | float]]) -> list[list[float]]:
    """Fingerprints as numbers, with one synchronization for each device."""
    columns = [
        torch.stack(column).tolist() if all(isinstance(each, Tensor) for each in column) else [*map(float, column)]
        for column in zip(*noted, strict=True)
    ]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in noted]


def _noted(leaf: Leaf) -> Tensor | float:
    """The fingerprint of a leaf, without waiting for its device."""
    # On the host, NumPy takes half the time of PyTorch's operators, and there is one for each output recorded again.
    return device_fingerprint(leaf) if isinstance(leaf, Tensor) and not is_on_host(leaf) else quick_fingerprint(leaf)


# Fingerprints stay on the device until they are compared.
_FINGERPRINTS = Fingerprints(quick_fingerprint, _noted, _on_host, row_fingerprints)


class DeviceDeterminismCheck(DeterminismCheck):
    """Compares fingerprints at the end of the reverse sweep: comparing at once would wait for the device each time."""

    def __init__(self, units: int | None) -> None:
        super().__init__(units, MOST)
        self.stride, self._width = 1 if units is None else -(-units // MOST), 1
        self._numbers = []  # one tensor for each state, in place of its numbers
        self._seen: set[int] = set()  # one comparison per position is enough, and takes little memory on the device
        self._recomputed: list[tuple[int, int, Tensor]] = []

    def fingerprint(self, backend: Any, state: PyTree) -> list[Tensor]:
        """The fingerprint of a state, on the device."""
        return [backend.device_fingerprint(state)]

    def fingerprint_at(self, position: int) -> Tensor | None:
        """The fingerprint of the state at that position, or None."""
        found = super().fingerprint_at(position)
        return found[0] if found and isinstance(found[0], Tensor) else None

    def may_differ(self, position: int, backend: Any, state: PyTree) -> bool:
        """Whether a state differs from that of the first sweep; this synchronizes with the device."""
        expected = self.fingerprint_at(position)
        return expected is not None and backend.mismatch(state, expected.tolist(), recorded=0) is not None

    def compare(self, position: int, backend: Any, state: PyTree, *, recorded: int) -> None:
        """Store the fingerprints of a recomputed state and of the first one, to be compared by `finish`."""
        expected = self.fingerprint_at(position)
        # A run without a tape confirms a suspicion, which the first comparison of the position does not settle.
        if expected is not None and (position not in self._seen or not recorded):
            self._seen.add(position)
            now, sizes = backend.device_fingerprint(state), backend.device_fingerprint(state, of_sizes=True)
            self._recomputed.append((position, recorded, torch.stack([now, expected, sizes])))

    def finish(self, backend: Any) -> None:
        """Raise a DeterminismError if a state is not what the first sweep saw at that position."""
        rows = torch.stack([row for *_, row in self._recomputed]).tolist() if self._recomputed else []
        for (position, recorded, _), (now, expected, sizes) in zip(self._recomputed, rows, strict=True):
            mismatch = backend.describe_mismatch(now, expected, sizes, recorded)
            if mismatch is not None:
                self.raise_mismatch(mismatch, position)

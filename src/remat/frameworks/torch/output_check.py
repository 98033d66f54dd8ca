"""The comparison of outputs inside of recorded ranges, which the comparison of states does not see.

The rule: the output of a step that is recorded again must be what the first sweep wrote into its row. Recorded steps
may round otherwise than plain ones (fused kernels, compiled steps), and chaos amplifies that from step to step: a
difference beyond that raises a DeterminismError, a smaller one is a suspicion. Then the range is run again without a
tape, as the first sweep ran it, and its outputs must be equal.

What it can miss: what fingerprints miss (`execute/fingerprint.py`), outputs whose rows are not kept, and rows with nan
or inf. The cost: 16 bytes for each row, one pass over the outputs at the turn, and one product for each output that is
recorded again in a range of several steps; one synchronization with the device for each such range.
"""

from collections.abc import Callable, Sequence
from math import inf, prod

import torch
from torch import Tensor

from remat.execute.determinism import DeterminismCheck
from remat.execute.fingerprint import LOOSE, relative_difference, tolerance_of
from remat.frameworks.torch.leaves import TensorSpec, device_fingerprint, row_fingerprints
from remat.loops.stacked_values import Outputs
from remat.pytree import Leaf

__all__ = ["OutputCheck", "largest_element", "noise_of"]

NOISE = 64.0  # rounding errors, in units of eps, that an element of a step's results may have


def largest_element(sizes: Sequence[float], specs: Sequence[TensorSpec]) -> float:
    """The mean size of an element, in the floating leaf where it is largest; `sizes` are fingerprints of sizes."""
    means = (size / max(1, prod(spec.shape)) for size, spec in zip(sizes, specs, strict=False) if spec.differentiable)
    return max((mean for mean in means if mean < inf), default=0.0)


def noise_of(spec: TensorSpec, largest: float, recorded: int) -> float:
    """The difference of a leaf that rounding explains if it was computed from elements of this size.

    A leaf that cancels, as the mean of a layer norm, is nothing but rounding errors of what it was computed from.
    """
    growth = max(1.0, tolerance_of(spec.eps, recorded) / tolerance_of(spec.eps, 1))
    return NOISE * spec.eps * growth * largest * prod(spec.shape) if spec.differentiable else 0.0


class OutputCheck:
    """The fingerprints of the outputs that the first sweep has written."""

    def __init__(self, outputs: Outputs) -> None:
        self._names, self._row_of = outputs.names, outputs.row_of
        self._specs = [TensorSpec(tuple(leaf.shape[1:]), leaf.dtype) for leaf in outputs.leaves]
        self._rows = [row_fingerprints(leaf) for leaf in outputs.leaves]  # two numbers a row: of it, and of its sizes
        self._numbers: list[list[list[float]]] = []  # the same on the host, once they are needed
        self._noted: list[tuple[int, list[Tensor]]] = []
        self._largest = 0.0  # the mean size of an element of the carry at the end of that range, if it is needed
        self.suspicious: set[int] = set()  # steps of the last recorded range

    def note(self, i: int, leaves: Sequence[Leaf]) -> None:
        """Take the fingerprints of the output of step i, to be compared when its range is recorded."""
        self._noted.append((i, [device_fingerprint(leaf) for leaf in leaves]))

    def compare(self, start: int, largest: Callable[[], float]) -> None:
        """Compare what was noted in a recorded range; where rounding may explain a difference, it is a suspicion.

        `largest` is the mean size of an element of the carry.
        """
        noted, self._noted, self.suspicious = self._noted, [], set()
        on_host = _on_host([row for _, row in noted])
        for i, numbers in zip((i for i, _ in noted), on_host, strict=True):
            if not self.suspicious and self._differs(i, numbers):
                self._largest = largest()
            if self._raise_if_different(i, numbers, recorded=i - start + 1):
                self.suspicious.add(i)

    def confirm(self, i: int, leaves: Sequence[Leaf], *, recorded: int) -> None:
        """Compare the output of a step that was suspicious and has now run without a tape."""
        self._raise_if_different(i, [float(device_fingerprint(leaf)) for leaf in leaves], recorded=recorded)

    def _raise_if_different(self, i: int, numbers: Sequence[float], *, recorded: int) -> bool:
        """Whether an output differs, though not beyond what rounding explains after so many recorded steps."""
        if not self._differs(i, numbers):
            return False
        rows = self._written(i)
        largest = max(largest_element([size for _, size in rows], self._specs), self._largest)
        for number, (written, size), spec, name in zip(numbers, rows, self._specs, self._names, strict=True):
            tolerance = tolerance_of(spec.eps, recorded)
            difference = relative_difference(number, written, size, tolerance, noise_of(spec, largest, recorded))
            if difference and tolerance < LOOSE:
                DeterminismCheck.raise_mismatch(f"{name} was another one by {difference:.1g} of its size", i + 1)
        return True

    def _differs(self, i: int, numbers: Sequence[float]) -> bool:
        """Whether an output differs by more than equal runs do."""
        return any(
            relative_difference(number, written, size, tolerance_of(spec.eps, 0))
            for number, (written, size), spec in zip(numbers, self._written(i), self._specs, strict=True)
        )

    def _written(self, i: int) -> list[list[float]]:
        """For each leaf of the output of step i, the fingerprint that was written and that of its sizes."""
        self._numbers = self._numbers or [rows.tolist() for rows in self._rows]
        row = self._row_of(i)
        assert row is not None
        return [rows[row] for rows in self._numbers]


def _on_host(rows: Sequence[Sequence[Tensor]]) -> list[list[float]]:
    """The numbers, by one synchronization with each device."""
    columns = [torch.stack(column).tolist() for column in zip(*rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in rows]

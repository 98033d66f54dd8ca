"""The comparison of outputs inside of recorded ranges, which the comparison of states does not see.

The rule: the output of a step that is recorded again must be what the first sweep wrote into its row. Recorded steps
may round otherwise than plain ones (fused kernels, compiled steps), and chaos amplifies that from step to step: a
difference beyond that raises a DeterminismError, a smaller one is a suspicion. Then the range is run again without a
tape, as the first sweep ran it, and its outputs must be equal.

What it can miss: what fingerprints miss (`execute/fingerprint.py`), outputs whose rows are not kept, and rows with nan
or inf. The cost: 16 bytes for each row, one pass over the outputs at the turn, and one product for each output that is
recorded again in a range of several steps; one synchronization with the device for each such range.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from remat.execute.determinism import DeterminismCheck
from remat.execute.fingerprint import relative_difference
from remat.frameworks.torch.leaves import device_fingerprint, eps_of, row_fingerprints
from remat.loops.stacked_values import Outputs
from remat.pytree import Leaf

__all__ = ["LOOSE", "OutputCheck", "tolerance_of"]

LOOSE = 0.1  # not compared from this tolerance on: over a long range a chaotic step amplifies rounding to any size


def tolerance_of(eps: float, recorded: int) -> float:
    """The relative difference that rounding explains after so many recorded steps."""
    return float(eps ** (0.5 / recorded if recorded else 0.75))


class OutputCheck:
    """The fingerprints of the outputs that the first sweep has written."""

    def __init__(self, outputs: Outputs) -> None:
        self._names, self._row_of = outputs.names, outputs.row_of
        self._eps = [eps_of(leaf.dtype) for leaf in outputs.leaves]
        self._rows = [row_fingerprints(leaf) for leaf in outputs.leaves]  # two numbers a row: of it, and of its sizes
        self._numbers: list[list[list[float]]] = []  # the same on the host, once they are needed
        self._noted: list[tuple[int, list[Tensor]]] = []
        self.suspicious: set[int] = set()  # steps of the last recorded range

    def note(self, i: int, leaves: Sequence[Leaf]) -> None:
        """Take the fingerprints of the output of step i, to be compared when its range is recorded."""
        self._noted.append((i, [device_fingerprint(leaf) for leaf in leaves]))

    def compare(self, start: int) -> None:
        """Compare what was noted in a recorded range; where rounding may explain a difference, it is a suspicion."""
        noted, self._noted, self.suspicious = self._noted, [], set()
        for i, numbers in zip((i for i, _ in noted), _on_host([row for _, row in noted]), strict=True):
            if self._raise_if_different(i, numbers, recorded=i - start + 1):
                self.suspicious.add(i)

    def confirm(self, i: int, leaves: Sequence[Leaf]) -> None:
        """Compare the output of a step that was suspicious and has now run without a tape."""
        self._raise_if_different(i, [float(device_fingerprint(leaf)) for leaf in leaves], recorded=0)

    def _raise_if_different(self, i: int, numbers: Sequence[float], *, recorded: int) -> bool:
        """Whether an output differs, though not beyond what rounding explains after so many recorded steps."""
        self._numbers = self._numbers or [rows.tolist() for rows in self._rows]
        row, differs = self._row_of(i), False
        assert row is not None
        for number, rows, eps, name in zip(numbers, self._numbers, self._eps, self._names, strict=True):
            written, size = rows[row]
            difference = relative_difference(number, written, size, tolerance_of(eps, 0))
            if difference > (loose := tolerance_of(eps, recorded)) and loose < LOOSE:
                DeterminismCheck.raise_mismatch(f"{name} was another one by {difference:.1g} of its size", i + 1)
            differs = differs or difference > 0
        return differs


def _on_host(rows: Sequence[Sequence[Tensor]]) -> list[list[float]]:
    """The numbers, by one synchronization with each device."""
    columns = [torch.stack(column).tolist() for column in zip(*rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in rows]

"""The comparison of recomputed results: the outputs of every step that is recorded again, and the result of step 0.

The rule: an output must be what the first sweep wrote into its row, and step 0 must give the same whenever it is run,
so that a step which was moved on by measuring it is found out even if no state is computed twice. States are compared
by `execute/determinism.py`. A recorded step may round otherwise than a plain one, and over several steps chaos
amplifies that, so a difference beyond rounding but within what chaos explains is only a suspicion: then the steps up
to there are run again without a tape, as the first sweep ran them, and what they return must be equal.

What it can miss: what fingerprints miss (`execute/fingerprint.py`), outputs whose rows are not kept, and what a user's
`vjp=` computes by itself.

The cost: 8 bytes for each row, and a fingerprint, some 3 us, for each output that is recorded again.
"""

from collections.abc import Sequence

import numpy as np

from remat.execute.determinism import DeterminismCheck
from remat.execute.fingerprint import LOOSE, row_fingerprints, tolerance_of
from remat.frameworks.numpy.leaves import ArraySpec, fingerprint, mismatch
from remat.loops.stacked_values import Outputs
from remat.pytree import Leaf

__all__ = ["FirstStep", "OutputCheck"]


class FirstStep:
    """The fingerprints of what step 0 returned when it was first run."""

    def __init__(self) -> None:
        self._expected: list[float] | None = None

    def compare(self, leaves: Sequence[Leaf], names: Sequence[str], specs: Sequence[ArraySpec]) -> None:
        """Raise a DeterminismError if it returns something else now."""
        with np.errstate(all="ignore"):
            if self._expected is None:
                self._expected = [fingerprint(leaf) for leaf in leaves]
                return
            # Not strict: names and specs go on with outputs that are not kept.
            for leaf, name, spec, expected in zip(leaves, names, specs, self._expected, strict=False):
                _raise_if(mismatch(leaf, expected, tolerance_of(spec.eps)), name, 0)


class OutputCheck:
    """The fingerprints of the outputs that the first sweep has written."""

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self._suspicious: list[int] = []
        with np.errstate(all="ignore"):
            self._rows = [row_fingerprints(leaf) for leaf in outputs.leaves]

    def compare(self, i: int, values: Sequence[Leaf], *, recorded: int) -> None:
        """Compare the output of step i, after so many recorded steps; a difference that these may explain is noted."""
        row = self._outputs.row_of(i)
        with np.errstate(all="ignore"):
            for value, rows, name, spec in zip(
                values, self._rows, self._outputs.names, self._outputs.specs, strict=True
            ):
                if fingerprint(value) == rows[row]:  # nearly always: the same functions of NumPy have run
                    continue
                difference, loose = mismatch(value, rows[row], tolerance_of(spec.eps)), tolerance_of(spec.eps, recorded)
                if difference > loose and loose < LOOSE:
                    _raise_if(difference, name, i)
                elif difference and i not in self._suspicious:
                    self._suspicious.append(i)

    def take_suspicious(self) -> list[int]:
        """The steps whose outputs differ by what rounding may explain, since this was asked last."""
        suspicious, self._suspicious = self._suspicious, []
        return suspicious


def _raise_if(difference: float, name: str, i: int) -> None:
    if difference:
        DeterminismCheck.raise_mismatch(f"{name} was another one by {difference:.1g} of its size", i + 1)

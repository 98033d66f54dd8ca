"""The comparison of recomputed results with the first ones: states at some positions, outputs of recorded ranges.

The rule: a recomputed state must have the fingerprint of the first one, and the output of a recorded step that of the
row that the first sweep wrote. Recorded steps may round differently than plain ones (fused kernels, compiled steps),
and chaos amplifies that from step to step: a difference beyond that raises a DeterminismError; a smaller difference of
an output is a suspicion. Then the interpreter recomputes the range without a tape, as the first sweep ran it, and its
outputs must be equal.

What it can miss: what fingerprints miss (`execute/fingerprint.py`), and outputs whose rows are not kept. The cost: 16
bytes for each row, one pass over the outputs at the turn, a fingerprint for each recorded output in a range of several
steps, and one synchronization with the device for each such range.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf, prod
from typing import Any, NamedTuple

from remat.execute.determinism import DeterminismCheck
from remat.execute.fingerprint import LOOSE, other_values, relative_difference, tolerance_of
from remat.loops.stacked_values import Outputs
from remat.loops.step_runner import StepRunner, unpack_output
from remat.pytree import Leaf, PyTree

__all__ = ["ComparedResults", "Fingerprints", "checking"]

NOISE = 64.0  # the rounding error, in units of eps, that an element of a step's results may have
Step = Callable[[PyTree, PyTree], PyTree]


class Fingerprints(NamedTuple):
    """A framework's functions for fingerprints."""

    of: Callable[..., float]  # the fingerprint of a leaf; with `of_sizes`, of its absolute values
    noted: Callable[[Leaf], Any]  # the fingerprint of a leaf, left on its device so that nothing waits for it
    on_host: Callable[[Sequence[Sequence[Any]]], list[list[float]]]  # results of `noted` as numbers
    rows: Callable[[Leaf], Any]  # each row's fingerprint and that of its absolute values; `tolist` makes pairs


class OutputCheck:
    """The fingerprints of the outputs that the first sweep has written."""

    def __init__(self, outputs: Outputs, fingerprints: Fingerprints) -> None:
        self._names, self._row_of = outputs.names, outputs.row_of
        # The specs of the written rows: a Python number has another precision than the row that holds it.
        pairs = zip(outputs.leaves, outputs.names, strict=True)
        self._specs = [outputs.leaf_ops.spec_of(leaf[0], name) for leaf, name in pairs if len(leaf)]
        self._fingerprints = fingerprints
        self._rows = [fingerprints.rows(leaf) for leaf in outputs.leaves]
        self._numbers: list[list[list[float]]] = []  # `_rows` on the host, once they are needed
        self._noted: list[tuple[int, list[Any]]] = []
        self._largest = 0.0  # the mean absolute element of the carry at the end of the last range, if it is needed
        self.suspicious: set[int] = set()  # steps of the last recorded range

    def note(self, i: int, leaves: Sequence[Leaf]) -> None:
        """Take the fingerprints of the output of step i, for `compare` at the end of its range."""
        self._noted.append((i, [self._fingerprints.noted(leaf) for leaf in leaves]))

    def compare(self, start: int, largest: Callable[[], float]) -> None:
        """Compare the noted outputs of a recorded range; a difference that rounding may explain is a suspicion.

        `largest` returns the mean absolute element of the carry.
        """
        noted, self._noted, self.suspicious = self._noted, [], set()
        on_host = self._fingerprints.on_host([row for _, row in noted])
        for i, numbers in zip((i for i, _ in noted), on_host, strict=True):
            if not self.suspicious and self._differs(i, numbers):
                self._largest = largest()
            if self._raise_if_different(i, numbers, recorded=i - start + 1):
                self.suspicious.add(i)

    def confirm(self, i: int, leaves: Sequence[Leaf], *, recorded: int) -> None:
        """Compare the output of a suspicious step, which has now run without a tape."""
        self.suspicious.remove(i)
        numbers = self._fingerprints.on_host([[self._fingerprints.noted(leaf) for leaf in leaves]])[0]
        self._raise_if_different(i, numbers, recorded=recorded)

    def _raise_if_different(self, i: int, numbers: Sequence[float], *, recorded: int) -> bool:
        """Whether an output differs within rounding after this many recorded steps; beyond it, a DeterminismError."""
        if not self._differs(i, numbers):
            return False
        rows = self._written(i)
        largest = max(_largest_element([size for _, size in rows], self._specs), self._largest)
        written, sizes = zip(*rows, strict=True)
        difference = _difference(numbers, written, sizes, self._names, self._specs, largest, recorded)
        if difference is not None:
            DeterminismCheck.raise_mismatch(difference, i + 1)
        return True

    def _differs(self, i: int, numbers: Sequence[float]) -> bool:
        """Whether an output differs by more than two runs of the same program may."""
        return any(
            relative_difference(number, written, size, tolerance_of(spec.eps, 0))
            for number, (written, size), spec in zip(numbers, self._written(i), self._specs, strict=True)
        )

    def _written(self, i: int) -> list[list[float]]:
        """For each leaf of the written output of step i, its fingerprint and that of its absolute values."""
        self._numbers = self._numbers or [rows.tolist() for rows in self._rows]
        row = self._row_of(i)
        assert row is not None
        return [rows[row] for rows in self._numbers]


class ComparedResults:
    """The part of a backend that compares recomputed results with the first ones."""

    def __init__(self, runner: StepRunner, fingerprints: Fingerprints) -> None:
        self.runner, self._fingerprints = runner, fingerprints
        self.output_check: OutputCheck | None = None  # from the turn on, if outputs are compared

    def remember_outputs(self) -> None:
        """From now on, compare the outputs of recorded steps with those that the first sweep wrote."""
        if self.runner.outputs.leaves:
            self.output_check = OutputCheck(self.runner.outputs, self._fingerprints)

    def note_output(self, i: int, stop: int, leaves: Sequence[Leaf]) -> None:
        """Note the output of step i, in a range recorded up to `stop`, for `compare_outputs`."""
        # The last output of a range is compared together with its state, unless only some outputs are kept.
        if self.output_check is not None and (i < stop - 1 or self.runner.outputs.rows is not None):
            self.output_check.note(i, leaves)

    def compare_outputs(self, start: int, carry: Sequence[Leaf]) -> None:
        """Compare the noted outputs of a range that was recorded from `start` up to this carry."""
        if self.output_check is not None:
            self.output_check.compare(start, partial(self._largest_of, carry))

    def fingerprint(self, state: PyTree, *, of_sizes: bool = False) -> list[float]:
        """A fingerprint for each leaf of the carry and of the output of the last step."""
        return [self._fingerprints.of(leaf, of_sizes=of_sizes) for leaf in self.runner.observed(state)]

    def mismatch(self, state: PyTree, expected: Sequence[float], *, recorded: int) -> str | None:
        """A description of the first leaf whose fingerprint differs beyond rounding, or None.

        While outputs of a range are suspicious, no state at its end is accepted.
        """
        if recorded == 0 and self.output_check is not None and self.output_check.suspicious:
            return f"the output of step {min(self.output_check.suspicious)} had other values"
        now = self.fingerprint(state)
        if now == list(expected):
            return None
        return self.describe_mismatch(now, expected, self.fingerprint(state, of_sizes=True), recorded)

    def describe_mismatch(
        self, now: Sequence[float], expected: Sequence[float], sizes: Sequence[float], recorded: int
    ) -> str | None:
        """The same from fingerprints; `sizes` are those of the absolute values."""
        outputs = self.runner.outputs
        names = (self.runner.names + outputs.names)[: len(now)]
        specs = (self.runner.specs + outputs.specs)[: len(now)]
        return _difference(now, expected, sizes, names, specs, _largest_element(sizes, specs), recorded)

    def recorded_at_first(self, start: int, stop: int) -> int:
        """The number of steps in this range that may have rounded differently when they first ran: none."""
        return 0

    def confirming_outputs(self, step: Step, start: int) -> Step:
        """The step for a run without a tape, which compares outputs that were suspicious when they were recorded."""
        if self.output_check is None or not self.output_check.suspicious:
            return step
        return checking(step, self.runner, partial(self._confirm_output, start))

    def _confirm_output(self, start: int, carry: PyTree, y: PyTree) -> None:
        check, outputs, i = self.output_check, self.runner.outputs, self.runner.current_step
        if check is not None and outputs.tree is not None and i in check.suspicious:
            check.confirm(i, outputs.tree.flatten_like(y, "y"), recorded=self.recorded_at_first(start, i + 1))

    def _largest_of(self, carry: Sequence[Leaf]) -> float:
        """The mean absolute element, in the leaf of a carry where that is largest."""
        return _largest_element([self._fingerprints.of(leaf, of_sizes=True) for leaf in carry], self.runner.specs)


def checking(step: Step, runner: StepRunner, check: Callable[[PyTree, PyTree], None]) -> Step:
    """The step, which calls `check` with each carry and output that it returns."""

    def checked(carry: PyTree, x: PyTree) -> PyTree:
        out = step(carry, x)
        check(*unpack_output(runner.leaf_ops, out, runner.current_step))
        return out

    return checked


def _difference(
    now: Sequence[float],
    expected: Sequence[float],
    sizes: Sequence[float],
    names: Sequence[str],
    specs: Sequence[Any],
    largest: float,
    recorded: int,
) -> str | None:
    """A description of the first leaf that differs beyond rounding; `largest` is the scale of the step's inputs."""
    for number, before, size, name, spec in zip(now, expected, sizes, names, specs, strict=True):
        tolerance = tolerance_of(spec.eps, recorded)
        difference = relative_difference(number, before, size, tolerance, _noise_of(spec, largest, recorded))
        if difference and tolerance < LOOSE:
            return f"{name} {other_values(difference)}"
    return None


def _largest_element(sizes: Sequence[float], specs: Sequence[Any]) -> float:
    """The mean absolute element, in the floating leaf where that is largest, from fingerprints of absolute values."""
    means = (size / max(1, prod(spec.shape)) for size, spec in zip(sizes, specs, strict=False) if spec.differentiable)
    return max((mean for mean in means if mean < inf), default=0.0)


def _noise_of(spec: Any, largest: float, recorded: int) -> float:
    """The difference that rounding can explain in a leaf computed from elements as large as `largest`.

    A leaf whose terms cancel, such as the mean after a layer norm, consists of rounding errors of its inputs only.
    """
    growth = max(1.0, tolerance_of(spec.eps, recorded) / tolerance_of(spec.eps, 1))
    return NOISE * spec.eps * growth * largest * prod(spec.shape) if spec.differentiable else 0.0

"""The comparison of what steps return when they run again: states at some positions, outputs of recorded ranges.

In: carries, and the outputs of the last step, of one backend. Out: their fingerprints, and what differs in words.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from remat.execute.fingerprint import LOOSE, relative_difference, tolerance_of
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.leaves import device_fingerprint, quick_fingerprint, with_finite_numbers
from remat.frameworks.torch.output_check import OutputCheck, largest_element, noise_of
from remat.loops.step_runner import StepRunner, unpack_output

__all__ = ["ComparedResults", "checking"]


class ComparedResults:
    """The part of a backend that compares what its runner returns."""

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner
        self.output_check: OutputCheck | None = None  # from the turn on, if outputs are compared

    def remember_outputs(self) -> None:
        """Compare the outputs of steps that are recorded from now on with those that are written."""
        if self.runner.outputs.leaves:
            self.output_check = OutputCheck(self.runner.outputs)

    def device_fingerprint(self, state: Any, *, of_sizes: bool = False) -> list[Tensor]:
        """Fingerprints on the device for each leaf of the carry and of the output of the last step."""
        leaves = map(with_finite_numbers, self.runner.observed(state))
        return [device_fingerprint(leaf, of_sizes=of_sizes) for leaf in leaves]

    def fingerprint(self, state: Any, *, of_sizes: bool = False) -> list[float]:
        """A fingerprint for each leaf of the carry and of the output of the last step."""
        return [quick_fingerprint(leaf, of_sizes=of_sizes) for leaf in self.runner.observed(state)]

    def mismatch(self, state: Any, expected: Sequence[float], *, recorded: int) -> str | None:
        """A description of the first leaf whose fingerprint differs beyond rounding, or None.

        After a suspicion about the outputs of a range, no state at its end is accepted before that is confirmed.
        """
        if recorded == 0 and self.output_check is not None and self.output_check.suspicious:
            return f"the output of step {min(self.output_check.suspicious)} was another one"
        now = self.fingerprint(state)
        if now == list(expected):
            return None
        return self.describe_mismatch(now, expected, self.fingerprint(state, of_sizes=True), recorded)

    def describe_mismatch(
        self, now: Sequence[float], expected: Sequence[float], sizes: Sequence[float], recorded: int
    ) -> str | None:
        """The same, from fingerprints (`sizes`: of absolute values); recorded steps may round differently."""
        outputs = self.runner.outputs
        names = (self.runner.names + outputs.names)[: len(now)]
        specs = (self.runner.specs + outputs.specs)[: len(now)]
        largest = largest_element(sizes, specs)
        for number, before, size, name, spec in zip(now, expected, sizes, names, specs, strict=True):
            tolerance = tolerance_of(spec.eps, recorded)
            noise = noise_of(spec, largest, recorded)
            difference = relative_difference(number, before, size, tolerance, noise)
            if difference and tolerance < LOOSE:
                return f"{name} was another one by {difference:.1g} of its size"
        return None

    def recorded_at_first(self, start: int, stop: int) -> int:
        """1 if a step of this range was recorded in the first sweep (`advance` has probes), and may have rounded so."""
        following = 1 << (start - 1).bit_length() if start else 0
        return int(following < stop)

    def largest_element(self, carry: Sequence[Any]) -> float:
        """The mean size of an element, in the leaf of a carry where it is largest."""
        return largest_element([quick_fingerprint(leaf, of_sizes=True) for leaf in carry], self.runner.specs)

    def confirming_outputs(self, step: Callable[[Any, Any], Any], start: int) -> Callable[[Any, Any], Any]:
        """The step as it runs without a tape; outputs that were suspicious when they were recorded are compared."""
        if self.output_check is None or not self.output_check.suspicious:
            return step
        return checking(step, self.runner, partial(self._confirm_output, start))

    def _confirm_output(self, start: int, carry: Any, y: Any) -> None:
        """Compare an output that was suspicious when it was recorded."""
        check, outputs, i = self.output_check, self.runner.outputs, self.runner.current_step
        if check is not None and outputs.tree is not None and i in check.suspicious:
            check.suspicious.remove(i)
            check.confirm(i, outputs.tree.flatten_like(y, "y"), recorded=self.recorded_at_first(start, i + 1))


def checking(
    step: Callable[[Any, Any], Any], runner: StepRunner, check: Callable[[Any, Any], None]
) -> Callable[[Any, Any], Any]:
    """The step, with a check of the carry and the output that it returns after each call."""

    def checked(carry: Any, x: Any) -> Any:
        out = step(carry, x)
        check(*unpack_output(leaf_ops, out, runner.current_step))
        return out

    return checked

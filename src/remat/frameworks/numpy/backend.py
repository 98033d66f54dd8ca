"""The verbs of NumPy that both ways of recording share: advancing on plain arrays, copying, weighing, comparing.

A state is the carry as the step takes and returns it. Gradients of inputs and captured values are gathered here.
`recorded.py` records by autograd, `adjoint.py` pulls back by the user's own adjoint.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from autograd.extend import vspace

from remat.errors import StepError
from remat.execute.gradients import Gradients
from remat.execute.rng_state import ReplayableState, global_rng_states
from remat.frameworks.numpy.converted_step import ConvertedStep
from remat.frameworks.numpy.leaves import fingerprint, frozen_copy, mismatch, nbytes, readonly_view
from remat.frameworks.numpy.meter import NumpyMeter
from remat.frameworks.numpy.tape import Sum, Tape, tape_size
from remat.loops.step_runner import StepRunner

LOOSE = 0.1  # a tolerance that says nothing: over a long recorded range, chaos makes anything of a rounding error

__all__ = ["GradientMask", "NumpyBackend", "is_readonly_error", "step_mutation_error"]


class NumpyBackend(ABC):
    """What both ways of recording share: advancing, copying, weighing and comparing states."""

    def __init__(self, step: ConvertedStep, runner: StepRunner, captured: list[Any], wanted: "GradientMask") -> None:
        self.step, self.runner, self.captured, self.needs_grad = step, runner, captured, wanted
        self.partial_tape: Any = None  # a tape that is being recorded
        self.writes = False  # whether the step was seen to write into its carry
        self._tried = False  # whether a step was run on plain arrays

    @property
    def replayable_states(self) -> Sequence[ReplayableState]:
        """Private random generators that the step draws from."""
        return self.step.replayable_states

    def advance(self, state: Any, start: int, stop: int) -> Any:
        """The carry after steps start..stop-1."""
        if self.runner.tree.mutable:  # the step may change the container; what is kept is not to change with it
            state = self.runner.tree.map(lambda leaf: leaf, state)
        while not self._tried and start < stop:
            state, start = self._try(state, start)
        if start == stop:
            return state
        try:
            if self.writes:
                return self._advance_writing(state, start, stop)
            with self.step.rebind(self.captured) as step:
                try:
                    carry = [self.runner.run(step, state, start, start + 1)]
                except ValueError as error:
                    if not is_readonly_error(error):
                        raise
                    self.writes = True
                else:
                    del state  # what was given is not held while the other steps run
                    return self.runner.run(step, carry.pop(), start + 1, stop)
            # A kept state is read-only, so it has not changed yet; begin again in the way that allows for writing.
            return self._advance_writing(state, start, stop)
        except ValueError as error:
            if is_readonly_error(error):
                raise step_mutation_error(error, self.runner.current_step) from error
            raise

    def _try(self, state: Any, start: int) -> tuple[Any, int]:
        """Run a first step with care: see whether it writes into its carry, and set random numbers back if so."""
        self._tried = True
        outside = [(source, source.get()) for source in (*global_rng_states(), *self.replayable_states)]
        try:
            with self.step.rebind(self.captured) as step:
                return self.runner.run(step, self._protected(state), start, start + 1), start + 1
        except ValueError as error:
            if not is_readonly_error(error):
                raise
        self.writes = True
        for source, mark in outside:
            source.set(mark)
        return state, start

    @abstractmethod
    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Any]:
        """The carry after steps start..stop-1, and their tape."""

    def new_gradients(self, carry: list[Any], outputs: Sequence[Any], xs: Sequence[Any]) -> Gradients:
        """The gradients at the turn: cotangents of the last carry and of the outputs, zeros for the rest."""
        rows = [vspace(leaf).zeros() if wanted else None for leaf, wanted in zip(xs, self.needs_grad.xs, strict=True)]
        sums: list[Sum] = [None] * len(self.captured)
        return Gradients(carry, outputs if any(part is not None for part in outputs) else (), rows, sums)

    @abstractmethod
    def pull_back(self, tape: Any, gradients: Gradients) -> Gradients:
        """The gradients before the tape's steps."""

    @abstractmethod
    def _advance_writing(self, state: Any, start: int, stop: int) -> Any:
        """Advance a step that writes into its carry, so that it does what it does when it is recorded."""

    def _protected(self, state: Any) -> Any:
        return self.runner.tree.map(readonly_view, state)

    def copy(self, state: Any) -> Any:
        """A private copy of a carry, which no step can write into."""
        return self.runner.tree.map(frozen_copy, state)

    def size(self, value: Any) -> int:
        """Bytes of a carry, a tape or a cotangent."""
        if isinstance(value, Tape):
            return tape_size(value, [*self.captured, *self.runner.inputs.leaves])
        return sum(map(nbytes, self.runner.tree.flatten_like(value, "carry")))

    def persistent_bytes(self, gradients: Gradients | None) -> dict[str, int]:
        """Bytes of the inputs, of what is captured, of the outputs, and of the gradients of inputs and captured."""
        arrays = [] if gradients is None else [*gradients.xs, *(total[0] for total in gradients.captured if total)]
        parts = {
            "inputs": self.runner.inputs.leaves,
            "parameters and what else is captured": self.captured,
            "outputs": self.runner.outputs.leaves,
            "gradients": [leaf for leaf in arrays if leaf is not None],
        }
        return {name: sum(map(nbytes, leaves)) for name, leaves in parts.items() if leaves}

    def failed_at(self) -> tuple[int, int]:
        """The step at which an error was raised, and the bytes of the tape up to it."""
        tape, self.partial_tape = self.partial_tape, None
        return self.runner.current_step, 0 if tape is None else self.size(tape)

    def meter(self) -> NumpyMeter:
        """Tracemalloc."""
        return NumpyMeter()

    def fingerprint(self, state: Any) -> list[float]:
        """A number for each leaf of the carry, and of the output that the last step put out with it."""
        with np.errstate(all="ignore"):
            return [fingerprint(leaf) for leaf in self.runner.observed(state)]

    def mismatch(self, state: Any, noted: Sequence[float], *, recorded: int) -> str | None:
        """The leaf that is not what was summed up, and by how much."""
        if self.fingerprint(state) == list(noted):
            return None
        leaves, outputs = self.runner.observed(state), self.runner.outputs
        names = (self.runner.names + outputs.names)[: len(leaves)]
        specs = (self.runner.specs + outputs.specs)[: len(leaves)]
        with np.errstate(all="ignore"):
            for leaf, name, spec, number in zip(leaves, names, specs, noted, strict=True):
                tolerance = spec.eps ** (0.5 / recorded if recorded else 0.75)
                difference = mismatch(leaf, number, tolerance)
                if difference and tolerance < LOOSE:
                    return f"{name} was another one by {difference:.1g} of its size"
        return None

    def _output_cotangents(self, cotangents: Sequence[Any], i: int) -> list[Any] | None:
        """The cotangents of the output of step i by leaf, or None if it has none."""
        row = self.runner.outputs.row_of(i)
        if row is None or not cotangents:
            return None
        return [None if cotangent is None else cotangent[row] for cotangent in cotangents]


class GradientMask:
    """Which inputs of the loop want a gradient: leaves of xs, captured values. The carry always does."""

    def __init__(self, xs: Sequence[bool], captured: Sequence[bool]) -> None:
        self.xs, self.captured = list(xs), list(captured)


def step_mutation_error(error: ValueError, i: int) -> StepError:
    """What to say of a step that writes where it must not."""
    return StepError(
        f"step {i} writes into an array that it must not change ({error}): its input x, or a carry that is kept to be "
        "used again. Make a new array instead, as in h = h + dh for h += dh"
    )


def is_readonly_error(error: ValueError) -> bool:
    """Whether NumPy, or what takes its buffers, complains of an array that cannot be written into."""
    return bool(re.search(r"(array|destination) is read-only$", str(error)))

"""The part of NumPy's backend that autograd and a user's VJP share: advancing on plain arrays, copies, bytes, checks.

A state is the carry as the step takes and returns it. Recording and pulling back are in `autograd_backend.py` and
`custom_vjp_backend.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from autograd.extend import vspace

from remat.execute.determinism import DeterminismCheck
from remat.execute.fingerprint import row_fingerprints
from remat.execute.gradients import Gradients
from remat.execute.rng_state import ReplayableState
from remat.frameworks.numpy.captured_state import CapturedStep
from remat.frameworks.numpy.leaves import fingerprint, nbytes
from remat.frameworks.numpy.meter import NumpyMeter
from remat.frameworks.numpy.protection import (
    NotAsAutograd,
    StepMode,
    copier,
    is_readonly_error,
    mutation_message,
    readonly_view,
)
from remat.frameworks.numpy.tape import RecordedRange, Sum, tape_size
from remat.loops.compared_results import ComparedResults, Fingerprints
from remat.loops.stacked_values import SeparateRows
from remat.loops.step_runner import StepRunner
from remat.profiling.tape_contents import TapeListing
from remat.pytree import Leaf, PyTree

__all__ = ["FirstStep", "GradientMask", "NumpyBackend"]


@dataclass(frozen=True)
class GradientMask:
    """Which leaves of the carry and of xs and which captured values are traced; a carry always needs gradients."""

    carry: Sequence[bool]
    xs: Sequence[bool]
    captured: Sequence[bool]


class FirstStep:
    """The fingerprints of step 0's results when it first ran, whether to be measured or not."""

    def __init__(self) -> None:
        self._numbers: list[float] | None = None

    def expected(self, numbers: list[float]) -> list[float]:
        """The fingerprints passed in the first call; later calls return the same."""
        if self._numbers is None:
            self._numbers = numbers
        return self._numbers


_FINGERPRINTS = Fingerprints(fingerprint, fingerprint, lambda noted: [*map(list, noted)], row_fingerprints)


class NumpyBackend(ComparedResults, ABC):
    """Runs the steps of one loop on plain arrays; subclasses record them and pull them back.

    `mode` says what a step may do with its carry (protection.py).
    """

    def __init__(
        self,
        step: CapturedStep,
        runner: StepRunner,
        captured: Sequence[Leaf],
        needs_grad: GradientMask,
        *,
        mode: StepMode = StepMode.PLAIN,
        first_step: FirstStep | None = None,
    ) -> None:
        super().__init__(runner, _FINGERPRINTS)
        self.step, self.needs_grad, self.mode = step, needs_grad, mode
        # Read-only, since these are the caller's arrays: `r = b; r -= x` must not write into them.
        self.captured = [readonly_view(value) for value in captured]
        self.first_step = first_step
        self.partial_tape: PyTree = None  # the tape of a range whose recording has not ended, for `failed_at`
        self.shared_outputs: set[int] = set()  # leaves of the outputs whose rows are kept states

    @property
    def replayable_states(self) -> Sequence[ReplayableState]:
        """What the step changes besides its carry: private random generators, Python contents, small arrays."""
        return self.step.replayable_states

    def active(self) -> list[bool]:
        """Which leaves of the last carry may depend on a differentiated value."""
        return [True] * len(self.runner.specs)

    def advance(self, state: PyTree, start: int, stop: int) -> PyTree:
        """The carry after steps start..stop-1."""
        states = [state]
        del state  # so that `run` has the only reference, and frees the first carry before later steps run
        try:
            with self.step.rebind(self.captured) as step:
                after = self.runner.run(self.confirming_outputs(step, start), states.pop(), start, stop)
        except ValueError as error:
            if is_readonly_error(error):
                raise NotAsAutograd(mutation_message(error, self.runner.current_step)) from error
            raise
        # The first sweep stops after step 0, where the first fingerprint is taken.
        if stop == 1:
            self.compare_first(self.runner.tree.flatten_like(after, "carry"))
        return after

    def compare_first(self, leaves: Sequence[Leaf]) -> None:
        """Compare step 0's result, these leaves of the carry and the last output, with that of its first run."""
        if self.first_step is None:
            return
        leaves = [*leaves, *self.runner.observed_outputs()]
        now = [fingerprint(leaf) for leaf in leaves]
        expected = self.first_step.expected(now)
        if now != expected:
            sizes = [fingerprint(leaf, of_sizes=True) for leaf in leaves]
            difference = self.describe_mismatch(now, expected, sizes, 0)
            if difference is not None:
                DeterminismCheck.raise_mismatch(difference, 1)

    @abstractmethod
    def record(self, state: PyTree, start: int, stop: int) -> tuple[PyTree, PyTree]:
        """The carry after steps start..stop-1, and their tape."""

    def new_gradients(self, carry: list[Leaf], outputs: Sequence[Leaf], xs: Sequence[Leaf]) -> Gradients:
        """The gradients at the turn: cotangents of the last carry and of the outputs, zeros for the rest."""
        rows = [vspace(leaf).zeros() if needed else None for leaf, needed in zip(xs, self.needs_grad.xs, strict=True)]
        sums: list[Sum] = [None] * len(self.captured)
        return Gradients(carry, outputs if any(bar is not None for bar in outputs) else (), rows, sums)

    @abstractmethod
    def pull_back(self, tape: PyTree, gradients: Gradients) -> Gradients:
        """The gradients before the tape's steps."""

    def copy(self, state: PyTree) -> PyTree:
        """A private copy of a carry, which no step can write into.

        A leaf that is also an output of its step is not held twice: its copy is the output's row. Under autograd the
        outputs are boxed, so nobody can write into them; `shared_outputs` lists those that must not change.
        """
        runner = self.runner
        rows = self._rows_of_last_output()
        leaves, frozen_copy = runner.tree.flatten_like(state, "carry"), copier(writable=False)
        return runner.tree.unflatten([rows[id(leaf)] if id(leaf) in rows else frozen_copy(leaf) for leaf in leaves])

    def seal(self, state: PyTree) -> tuple[()]:
        """An empty seal: nobody can write into kept states, not even those in outputs, which are boxed."""
        return ()

    def _rows_of_last_output(self) -> dict[int, Leaf]:
        """The rows that hold the output of the last step, by the id of the array that the step returned."""
        runner, outputs = self.runner, self.runner.outputs
        row = outputs.row_of(runner.current_step)
        if row is None or outputs.tree is None or runner.current_step >= runner.outputs_written:
            return {}
        rows = {}
        for j, leaf in enumerate(outputs.tree.flatten_like(runner.last_output, "y")):
            if isinstance(leaf, np.ndarray) and leaf.ndim and outputs.specs[j].differentiable:
                stored = outputs.leaves[j][row]
                if np.array_equal(stored, leaf):  # False if there is a nan: then the leaf is copied
                    rows[id(leaf)] = readonly_view(stored)
                    self.shared_outputs.add(j)
        return rows

    def size(self, value: Leaf) -> int:
        """Bytes of a carry, a tape or a cotangent."""
        if isinstance(value, RecordedRange):
            return tape_size(value, self.shared_arrays())
        return sum(map(nbytes, self.runner.tree.flatten_like(value, "carry")))

    def shared_arrays(self) -> list[Leaf]:
        """Arrays that are alive without any tape."""
        inputs = [leaf.rows if isinstance(leaf, SeparateRows) else (leaf,) for leaf in self.runner.inputs.leaves]
        # Outputs are included, since kept states may be rows of them, and these are not part of a tape.
        return [*self.captured, *chain(*inputs), *self.runner.outputs.leaves]

    def tape_listing(self) -> TapeListing | None:
        """None: only autograd's tapes are listed; the tape of a user's VJP has nothing but states."""
        return None

    def persistent_bytes(self, gradients: Gradients | None) -> dict[str, int]:
        """Bytes of the inputs, captured values and outputs, and of the gradients of inputs and captured values."""
        arrays = [] if gradients is None else [*gradients.xs, *(total[0] for total in gradients.captured if total)]
        leaves_by_name = {
            "inputs": self.runner.inputs.leaves,
            "parameters and what else is captured": self.captured,
            "outputs": self.runner.outputs.leaves,
            "gradients": [leaf for leaf in arrays if leaf is not None],
            "cotangents of outputs": [] if gradients is None else [bar for bar in gradients.outputs if bar is not None],
        }
        return {name: sum(map(nbytes, leaves)) for name, leaves in leaves_by_name.items() if leaves}

    def failed_at(self) -> tuple[int, int]:
        """The step at which an error was raised, and the bytes of the tape up to it."""
        tape, self.partial_tape = self.partial_tape, None
        return self.runner.current_step, 0 if tape is None else self.size(tape)

    def meter(self) -> NumpyMeter:
        """A meter of Python's allocations, by tracemalloc."""
        return NumpyMeter()

    def _output_cotangents(self, cotangents: Sequence[Leaf], i: int) -> list[Leaf] | None:
        """The cotangents of the output of step i by leaf; None if it has no output, or there are no cotangents."""
        row = self.runner.outputs.row_of(i)
        if row is None or not cotangents:
            return None
        return [None if cotangent is None else cotangent[row] for cotangent in cotangents]

"""The verbs of PyTorch: steps are advanced without gradients, recorded as one graph a range, pulled back in one call.

A state is the carry as the step takes and returns it, of tensors outside of any graph. Gradients of inputs and captured
tensors are gathered here: sums go on from range to range in the order in which the plain loop would have added them.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from remat.errors import StepError
from remat.execute.fingerprint import relative_difference
from remat.execute.gradients import Gradients
from remat.execute.recomputation import recomputing
from remat.execute.rng_state import ReplayableState
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.analyzed_step import AnalyzedStep
from remat.frameworks.torch.graph import gradient_edge, next_sequence_nr, version
from remat.frameworks.torch.leaves import (
    copy_tensor,
    detached,
    device_fingerprint,
    nbytes,
    quick_fingerprint,
    require_grad_roots,
)
from remat.frameworks.torch.meter import meter_for
from remat.frameworks.torch.tape import (
    FirstStep,
    OutputEdges,
    Tape,
    accumulate_grads,
    check_inputs_known,
    count_saved_bytes,
    pull,
    seed_accumulators,
)
from remat.loops.step_runner import StepRunner, unpack_output

__all__ = ["TorchBackend"]

LOOSE = 0.1  # a tolerance that says nothing: over a long recorded range, chaos makes anything of a rounding error


class TorchBackend:
    """Runs and records the steps of one loop."""

    def __init__(self, step: AnalyzedStep, runner: StepRunner, captured: Sequence[Tensor]) -> None:
        self.step, self.runner, self.captured, self.activity = step, runner, list(captured), step.activity
        self.replayable_states: Sequence[ReplayableState] = step.replayable_states
        self.first_step: FirstStep | None = None
        self.steps: int | None = None  # in all; known at the turn
        self.fake_captured: Sequence[Tensor] = ()  # for captured tensors, where fake ones are used
        self.first = False  # whether the first sweep of a call is run
        self.counting_bytes = False  # whether tapes are weighed while they are recorded
        self.output_bytes = 0  # bytes of the outputs
        self._nodes = 0  # of a step's graph

    def advance(self, state: Any, start: int, stop: int) -> Any:
        """The carry after steps start..stop-1."""
        if self.first_step is not None and start == 0:
            first_step, self.first_step, start = self.first_step, None, 1
            state = self.runner.tree.map(detached, first_step.carry)
            self._write_output(0, first_step.y)
            del first_step
        states = [state]
        del state
        while start < stop and start >= self.runner.outputs_written and start & (start - 1) == 0:
            # The first steps, at powers of two, are recorded for nothing: a cache that they fill from what wants a
            # gradient then holds something that is found out, and not tensors that would lose it.
            states.append(self.record(states.pop(), start, start + 1)[0])
            start += 1
        if start == stop:
            return states.pop()
        if self.runner.tree.mutable:  # the step may change the container; what is kept is not to change with it
            states = [self.runner.tree.map(lambda leaf: leaf, states.pop())]
        probe = 1 << (start - 1).bit_length() if start >= self.runner.outputs_written else stop
        if probe < stop:
            states.append(self.advance(states.pop(), start, probe))
            return self.advance(states.pop(), probe, stop)
        given = self._input_versions(states[0])
        with self.step.autocast.active(grad=False), self.step.rebind(self.captured) as step:
            seen = (
                self._checking_aliases(step)
                if self.activity.aliases and self.first and start >= self.runner.outputs_written
                else step
            )
            after = self.runner.run(seen, states.pop(), start, stop)
        self._check_inputs_unchanged(given, start, stop)
        return self.runner.tree.map(detached, after)

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Tape]:
        """The carry after steps start..stop-1, and the graph of all of them."""
        runner = self.runner
        given = self._input_versions(state)
        first_step, self.first_step = self.first_step, None
        leaves = runner.tree.flatten_like(state, "carry")
        del state
        with ExitStack() as stack:
            stack.enter_context(recomputing(runner.outputs_written > start))
            stack.enter_context(self.step.autocast.active(grad=True))
            step = stack.enter_context(self.step.rebind(self.captured))
            saved_bytes = (
                stack.enter_context(count_saved_bytes(leaves, self._there()))
                if self.counting_bytes and not self.step.under_functorch
                else None
            )
            if first_step is not None and start == 0:
                tape, carry, number, done = first_step.tape, first_step.carry, first_step.number, 1
                self._register_output(tape, 0, first_step.y)
                tape.stop = stop
            else:
                number, done = next_sequence_nr(), start
                leaves = require_grad_roots(leaves, self.activity.carry)
                tape, carry = Tape(start, stop, _wanting(leaves), self.captured), runner.tree.unflatten(leaves)
            del leaves, first_step
            for i in range(done, stop):
                carry = self._record_step(step, carry, i, tape)
            tape.bytes += 0 if saved_bytes is None else saved_bytes()
        self._check_inputs_unchanged(given, start, stop)
        ends = runner.check_carry(carry, stop - 1)
        tape.carry_out = self._output_edges(ends, self.activity.carry, runner.names, stop - 1)
        if self._should_check_inputs(start, stop, next_sequence_nr() - number - 1) and not self.step.fsdp_modules:
            check_inputs_known(tape, number)
        return runner.tree.unflatten([detached(leaf) for leaf in ends]), tape

    def open(self, state: Any) -> FirstStep:
        """Record the first step by itself: nothing is planned yet, and what wants a gradient is not known."""
        runner, number = self.runner, next_sequence_nr()
        given = self._input_versions(state)
        with ExitStack() as stack:
            stack.enter_context(self.step.autocast.active(grad=True))
            step = stack.enter_context(self.step.rebind(self.captured))
            leaves = runner.tree.flatten_like(state, "carry")
            saved_bytes = (
                stack.enter_context(count_saved_bytes(leaves, self._there()))
                if self.counting_bytes and not self.step.under_functorch
                else None
            )
            leaves = require_grad_roots(leaves, self.activity.carry)
            tape = Tape(0, 1, _wanting(leaves), self.captured)
            carry, y = self._call_step(step, runner.tree.unflatten(leaves), 0, tape)
            tape.bytes = 0 if saved_bytes is None else saved_bytes()
        self._check_inputs_unchanged(given, 0, 1)
        runner.check_carry(carry, 0)
        if runner.outputs.row_of(0) is not None:
            runner.outputs.allocate(y, 0)
        return FirstStep(tape, carry, y, number)

    def _record_step(self, step: Any, carry: Any, i: int, tape: Tape) -> Any:
        carry, y = self._call_step(step, carry, i, tape)
        if not self.runner.matches(carry):
            self.runner.check_carry(carry, i)
        if self.activity.aliases and self.first and i >= self.runner.outputs_written:
            self._check_aliases(carry, y)
        self._register_output(tape, i, y)
        return carry

    def _call_step(self, step: Any, carry: Any, i: int, tape: Tape) -> tuple[Any, Any]:
        runner = self.runner
        runner.current_step = i
        if any(self.activity.xs):
            leaves = require_grad_roots([leaf[i] for leaf in runner.inputs.leaves], self.activity.xs)
            tape.xs.append(_wanting(leaves))
            x = runner.inputs.tree.unflatten(leaves)
        else:
            x = runner.inputs.row(i)
        try:
            out = step(carry, x)
            return out if type(out) is tuple and len(out) == 2 else unpack_output(leaf_ops, out, i)
        except RuntimeError as error:
            if "leaf Variable that requires grad is being used in an in-place" in str(error):
                raise step_mutation_error(f"step {i}", str(error)) from error
            runner.add_note(error, carry)
            raise
        except Exception as error:
            runner.add_note(error, carry)
            raise

    def _checking_aliases(self, step: Any) -> Any:
        def seeing(carry: Any, x: Any) -> Any:
            out = step(carry, x)
            self._check_aliases(*unpack_output(leaf_ops, out, self.runner.current_step))
            return out

        return seeing

    def _check_aliases(self, carry: Any, y: Any) -> None:
        """Forget that outputs are leaves of the carry, if in this step of the first sweep they are not."""
        assert self.runner.outputs.tree is not None
        outs, ys = self.runner.tree.flatten_like(carry, "carry"), self.runner.outputs.tree.flatten_like(y, "y")
        if any(ys[j] is not outs[k] for k, j in self.activity.aliases.items()):
            self.activity.aliases.clear()

    def _register_output(self, tape: Tape, i: int, y: Any) -> None:
        """Hold where the gradient of the output of step i comes in, and write the output if it is new."""
        outputs = self.runner.outputs
        if outputs.row_of(i) is None or outputs.is_empty(y):
            tape.ys.append([])
            self.runner.outputs_written = max(self.runner.outputs_written, i + 1)
            return
        if outputs.tree is None:
            outputs.allocate(y, i)
        tape.ys.append(self._output_edges(outputs.checked_leaves(y, i), self.output_flows(), outputs.names, i))
        self._write_output(i, y)

    def output_flows(self) -> list[bool]:
        """Through which outputs gradients flow; all that can, where the first step was not recorded to find out."""
        specs = self.runner.outputs.specs
        if len(self.activity.ys) != len(specs):
            self.activity.ys = [spec.differentiable for spec in specs]
        return self.activity.ys

    def _write_output(self, i: int, y: Any) -> None:
        """Write the output of step i if it is new; the last one is at hand to be compared."""
        runner, outputs = self.runner, self.runner.outputs
        if outputs.row_of(i) is not None and not outputs.is_empty(y):
            if i >= runner.outputs_written:
                with torch.no_grad():
                    outputs.write(i, y)
            assert outputs.tree is not None
            runner.last_output = outputs.tree.map(detached, y)
        runner.outputs_written = max(runner.outputs_written, i + 1)

    def new_gradients(self, carry: list[Any], outputs: Sequence[Any]) -> Gradients:
        """The gradients at the turn: cotangents of the last carry and of the outputs; None for all that follows."""
        outputs = outputs if any(part is not None for part in outputs) else ()
        return Gradients(carry, outputs, [None] * len(self.runner.inputs.leaves), [None] * len(self.captured))

    def pull_back(self, tape: Tape, gradients: Gradients) -> Gradients:
        """The gradients before the range; sums of captured tensors go on, rows of inputs are written."""
        outputs = gradients.outputs
        ends = OutputEdges()
        if not self.step.fsdp_modules:
            seed_accumulators(ends, tape.captured, gradients.captured)
        last, done = tape.stop - 1, set()
        if outputs:
            # The cotangent of an output that is a leaf of the carry is the first of those that this leaf gets in the
            # plain loop, so the range after it begins with it, and the one before leaves it out.
            for k, j in self.activity.aliases.items():
                if tape.start > 0 and tape.carry_in[k] is not None:
                    ends.add(gradient_edge(tape.carry_in[k]), self._output_cotangent(outputs, tape.start - 1, j))
            done = set(self.activity.aliases.values()) if tape.stop != self.steps else set()
            for i, row in enumerate(tape.ys, tape.start):
                for j, edge in enumerate(row):
                    if i != last or j not in done:
                        ends.add(edge, self._output_cotangent(outputs, i, j))
        for edge, bar in zip(tape.carry_out, gradients.carry, strict=True):
            ends.add(edge, bar)
        found = accumulate_grads(ends, tape, self.step.fsdp_modules) if self.step.fsdp_modules else pull(ends, tape)
        size, count = len(tape.carry_in), len(tape.captured)
        for k, gradient in enumerate(found[size : size + count]):
            gradients.captured[k] = gradients.captured[k] if gradient is None else gradient
        rows = iter(found[size + count :])
        for i, row in enumerate(tape.xs, tape.start):
            for k, gradient in enumerate([next(rows) for _ in row]):
                if gradient is not None:
                    if gradients.xs[k] is None:
                        gradients.xs[k] = torch.zeros_like(self.runner.inputs.leaves[k])
                    gradients.xs[k][i] = gradient
        return replace(gradients, carry=found[:size])

    def _output_cotangent(self, cotangents: Sequence[Any], i: int, j: int) -> Any:
        row = self.runner.outputs.row_of(i)
        return None if row is None or cotangents[j] is None else cotangents[j][row]

    def release_outputs(self) -> None:
        """The outputs are out; held here they would live as long as the graph that they belong to, and it with them."""
        self.output_bytes = sum(map(nbytes, self.runner.outputs.leaves))
        self.runner.outputs.leaves = []

    def copy(self, state: Any) -> Any:
        """A private copy of a carry."""
        return self.runner.tree.map(copy_tensor, state)

    def size(self, value: Any) -> int:
        """Bytes of a carry, a tape or a cotangent."""
        if isinstance(value, Tape):
            return value.bytes
        return sum(map(nbytes, self.runner.tree.flatten_like(value, "carry")))

    def persistent_bytes(self, gradients: Gradients | None) -> dict[str, int]:
        """Bytes of the inputs, of what is captured, of the outputs, and of the gradients of inputs and captured."""
        tensors = [] if gradients is None else [*gradients.xs, *gradients.captured]
        parts = {
            "inputs": self.runner.inputs.leaves,
            "parameters and what else is captured": self.captured,
            "gradients": [leaf for leaf in tensors if leaf is not None],
        }
        found = {name: sum(map(nbytes, leaves)) for name, leaves in parts.items() if leaves}
        return found | ({"outputs": self.output_bytes} if self.output_bytes else {})

    def failed_at(self) -> tuple[int, int]:
        """The step at which an error was raised; the tape up to it is gone with the error."""
        return self.runner.current_step, 0

    def meter(self) -> Any:
        """The meter of the device that the state is on."""
        there = [*self.captured, *self.runner.inputs.leaves]
        return meter_for([spec.device for spec in self.runner.specs if spec.device] + [t.device for t in there])

    def device_fingerprint(self, state: Any, *, of_sizes: bool = False) -> list[Tensor]:
        """A number on the device for each leaf of the carry, and of the output that the last step put out with it."""
        return [device_fingerprint(leaf, of_sizes=of_sizes) for leaf in self.runner.observed(state)]

    def fingerprint(self, state: Any) -> list[float]:
        """A number for each leaf of the carry, and of the output that the last step put out with it."""
        return [quick_fingerprint(leaf) for leaf in self.runner.observed(state)]

    def mismatch(self, state: Any, noted: Sequence[float], *, recorded: int) -> str | None:
        """The leaf that is not what was summed up, and by how much."""
        found = self.fingerprint(state)
        if found == list(noted):
            return None
        return self.describe_mismatch(
            found, noted, [float(n) for n in self.device_fingerprint(state, of_sizes=True)], recorded
        )

    def describe_mismatch(
        self, found: Sequence[float], noted: Sequence[float], sizes: Sequence[float], recorded: int
    ) -> str | None:
        """The leaf whose summary is another than was noted, and by how much."""
        outputs = self.runner.outputs
        names, specs = (
            (self.runner.names + outputs.names)[: len(found)],
            (self.runner.specs + outputs.specs)[: len(found)],
        )
        for now, before, size, name, spec in zip(found, noted, sizes, names, specs, strict=True):
            tolerance = spec.eps ** (0.5 / recorded if recorded else 0.75)
            difference = relative_difference(now, before, size, tolerance)
            if difference and tolerance < LOOSE:
                return f"{name} was another one by {difference:.1g} of its size"
        return None

    def _output_edges(self, leaves: Sequence[Any], flows: Sequence[bool], names: Sequence[str], i: int) -> list[Any]:
        """Where the gradients of leaves come into the graph; None for those that depend on nothing."""
        ends: list[Any] = []
        for leaf, flow, name in zip(leaves, flows, names, strict=True):
            wants = isinstance(leaf, Tensor) and leaf.requires_grad
            if wants and not flow:
                raise StepError(
                    f"gradients flow through {name} after step {i}, and did not after step 0: it depended on nothing "
                    "that requires a gradient there. Let it begin with requires_grad_()"
                )
            ends.append(gradient_edge(leaf) if wants else None)
        return ends

    def _input_versions(self, state: Any) -> list[tuple[Any, int]]:
        """What steps are given, and how often each tensor was written into; nothing is held here."""
        if self.step.under_functorch:
            return []
        given = (*self.runner.tree.flatten_like(state, "carry"), *self.runner.inputs.leaves)
        return [(ref(leaf), version(leaf)) for leaf in given if isinstance(leaf, Tensor)]

    def _check_inputs_unchanged(self, given: list[tuple[Any, int]], start: int, stop: int) -> None:
        """Raise a StepError if steps have written into what they were given."""
        for held, before in given:
            tensor = held()
            if tensor is not None and version(tensor) != before:
                steps = f"step {start}" if stop == start + 1 else f"one of the steps {start} to {stop - 1}"
                raise step_mutation_error(steps, f"a {leaf_ops.spec_of(tensor, 'tensor')} has changed")

    def _there(self) -> list[Tensor]:
        return [*self.captured, *self.fake_captured, *self.runner.inputs.leaves]

    def _should_check_inputs(self, start: int, stop: int, nodes: int) -> bool:
        """Whether the graph of these steps is to be looked at.

        It is near powers of two, where it has more or fewer nodes than such graphs had so far, and always where the
        step could reach more than it used at first.
        """
        usual = nodes == self._nodes * (stop - start)
        self._nodes = nodes // (stop - start)
        return (
            not usual or self.step.may_capture_more or start == 0 or (stop - 1).bit_length() != (start - 1).bit_length()
        )


def _wanting(roots: Sequence[Any]) -> list[Any]:
    return [root if isinstance(root, Tensor) and root.requires_grad else None for root in roots]


def step_mutation_error(steps: str, what: str) -> StepError:
    return StepError(
        f"{steps} writes into what it is given ({what}): its input x, or a carry that is kept to be used again. Make a "
        "new tensor instead, as in h = h + dh for h += dh"
    )

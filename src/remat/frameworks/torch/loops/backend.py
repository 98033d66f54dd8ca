"""The backend of PyTorch: steps advance without grad; a range is recorded as one graph and pulled back by one call.

A state is the carry as the step takes and returns it, with tensors detached from any graph. Gradients of captured
tensors are running sums, to which every range adds in the order of the plain loop.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from remat.execute.gradients import Gradients
from remat.execute.recomputation import recomputing
from remat.execute.rng_state import ReplayableState
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.internals.fsdp import end_backward
from remat.frameworks.torch.internals.functorch import HiddenTensorsRefused
from remat.frameworks.torch.internals.graph import gradient_edge, next_sequence_nr
from remat.frameworks.torch.internals.saved_tensor_hooks import saved_tensor_hooks_allowed
from remat.frameworks.torch.leaves import by_step, detached, nbytes, require_grad_roots
from remat.frameworks.torch.loops.activity import Activity, ActivityTracker
from remat.frameworks.torch.loops.analyzed_step import AnalyzedStep
from remat.frameworks.torch.loops.carry_hooks import CarryHooks, move_hooks, take_hooks
from remat.frameworks.torch.loops.comparison import ComparedTensors
from remat.frameworks.torch.loops.first_step import FirstStep
from remat.frameworks.torch.loops.gradient_flow import GradientFlow
from remat.frameworks.torch.loops.inner_gradients import GradModeTrial
from remat.frameworks.torch.loops.kept_rows import KeptRows
from remat.frameworks.torch.loops.loop_inputs import LoopInputs
from remat.frameworks.torch.loops.row_gradients import with_row
from remat.frameworks.torch.loops.saved_bytes import saved_bytes, storage_bytes
from remat.frameworks.torch.loops.saved_values import SavedValues
from remat.frameworks.torch.loops.tape import (
    OutputEdges,
    Stops,
    Tape,
    accumulate_grads,
    output_edges,
    requiring_grad,
    seed_accumulators,
    tape_vjp,
)
from remat.frameworks.torch.loops.tape_contents import TorchTapeListing
from remat.frameworks.torch.meter import allocations, meter_for
from remat.frameworks.torch.replay.input_versions import InputVersions, step_mutation_error
from remat.frameworks.torch.replay.tensor_state import in_memory
from remat.loops.step_runner import StepRunner, unpack_output
from remat.pytree import PyTree, flatten

__all__ = ["TorchBackend"]


class TorchBackend(ComparedTensors):
    """Runs, records and pulls back the steps of one loop.

    With `first_step`, which was recorded to find out what the loop depends on, the first sweep begins after it.
    """

    def __init__(
        self,
        step: AnalyzedStep,
        runner: StepRunner,
        inputs: LoopInputs,
        tracker: ActivityTracker,
        first_step: FirstStep | None = None,
        fsdp_modules: Sequence[Any] = (),
        *,
        measured: bool = False,
    ) -> None:
        super().__init__(runner)
        self.step, self.inputs, self.tracker = step, inputs, tracker
        # A measurement takes the size of a copy for the size of a state.
        kept_rows = KeptRows(runner, enabled=not step.under_functorch and not measured)
        self.copy, self.seal = kept_rows.copy, kept_rows.seal
        self.replayable_states: Sequence[ReplayableState] = step.replayable_states
        self.output_bytes = 0  # bytes of the outputs, once they are released
        self._first_step, self._fsdp_modules = first_step, fsdp_modules
        self._steps: int | None = None  # the length of the loop, known at the turn
        self._batch: int | None = None  # how many cotangents are pulled back at once, in axis 0; known at the turn
        self._accumulates = False  # whether ranges add to `.grad` of leaves, as FSDP requires
        # A context in which steps may contain segments, which torch.func does not allow where it records itself.
        self._segments_allowed = saved_tensor_hooks_allowed if step.under_functorch else nullcontext
        self._has_active_xs, self._nodes_per_step = any(tracker.activity.xs), 0  # nodes in the last recorded range
        self._saved_values = SavedValues(step.replayable_states)
        self._grad_mode = GradModeTrial(step, tracker)
        self.flow = GradientFlow()
        self._wanted: Sequence[Sequence[bool]] = ((), (), ())
        self._keep = False  # whether graphs of tapes are kept when they are pulled back
        self._carry_hooks: dict[int, CarryHooks] = {}  # by first step: of the range that was pulled back last

    @property
    def captured(self) -> list[Tensor]:
        """The roots of the loop's inputs."""
        return self.inputs.roots

    @property
    def activity(self) -> Activity:
        """Which leaves are active, as far as known."""
        return self.tracker.activity

    def advance(self, state: Any, start: int, stop: int) -> Any:
        """The carry after steps start..stop-1."""
        if self._first_step is not None and start == 0:
            state, start = self.runner.tree.map(detached, self._first_step.carry), 1
            self._write_output(0, self._first_step.y)
            self.flow.note(range(1), *self._first_step.reached)
            self._first_step = None
        states = [state]
        del state
        while start < stop and start >= self.runner.outputs_written and start & (start - 1) == 0:
            # Probes: in the first sweep steps 1, 2, 4, 8, … are recorded and their tapes dropped. A user's cache (a
            # memo, a cached_property) filled from a parameter under no_grad would silently cut the graph of every step
            # recorded later. If it is filled with grad enabled, its graph is older than such a step, so it becomes an
            # input. Powers of two catch caches that are filled late, at the cost of log2(n) records.
            states.append(self.record(states.pop(), start, start + 1)[0])
            start += 1
        if start == stop:
            return states.pop()
        if self.runner.tree.mutable:  # the step may change the container, which a kept state must not see
            states = [self.runner.tree.map(lambda leaf: leaf, states.pop())]
        probe = 1 << (start - 1).bit_length() if start >= self.runner.outputs_written else stop
        if probe < stop:
            states.append(self.advance(states.pop(), start, probe))
            return self.advance(states.pop(), probe, stop)
        return self._advance(states, start, stop)

    def _advance(self, states: list[Any], start: int, stop: int) -> Any:
        """The carry after some steps, without probes, from the only carry in `states`, which is taken out."""
        versions, specs = self._input_versions(states[0]), self.tracker.specs()
        first_time = start >= self.runner.outputs_written and not self.tracker.closed
        undecided = first_time and self.tracker.undecided
        if first_time:
            self.inputs.watch()
        with self._steps_may_run(grad=undecided) as step:
            if not undecided:
                step = self._grad_mode.wrap(step)
            if undecided or (first_time and self.activity.aliases):
                step = self.tracker.observing(step, graph=undecided)
            after = self.runner.run(self.confirming_outputs(step, start), states.pop(), start, stop)
        if first_time and not undecided:
            self.tracker.note_promoted(specs)
        versions.check(start, stop)
        return self.runner.tree.map(detached, after)

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Tape]:
        """The carry after steps start..stop-1, and the graph of all of them."""
        runner = self.runner
        first_step, self._first_step = self._first_step, None
        versions, leaves = self._input_versions(state), runner.tree.flatten_like(state, "carry")
        del state
        if first_step is not None and start == 0:
            tape, carry, done = first_step.tape, first_step.carry, 1
            tape.extend(stop)
            self._register_output(tape, 0, first_step.y)
        else:
            leaves = require_grad_roots(leaves, self.activity.carry)
            tape, done = Tape(start, stop, next_sequence_nr(), requiring_grad(leaves), self.captured), start
            carry = runner.tree.unflatten(leaves)
            if start == 0 and self.activity.first:
                tape.deactivate(self.activity.first)
        del leaves, first_step
        left = self.step.left.used_by(tape, again := runner.outputs_written > done, self.inputs)
        with recomputing(again), left as cut_off, self._steps_may_run(grad=True) as step:
            carry = self._record_steps(step, carry, done, tape)
        versions.check(start, stop)
        leaves = runner.check_carry(carry, stop - 1)
        tape.end_with(output_edges(leaves))
        tape.saved_values.extend(self._saved_values.of(tape))
        self.tracker.note(leaves, (), f"step {stop - 1}")
        if not self._fsdp_modules and (self._should_check_inputs(tape, next_sequence_nr() - tape.number) or cut_off):
            used, *reached = tape.take_reached(tape.look_at_graph(stops=self.inputs.made_edges))
            self.step.left.refuse(used, cut_off, tape.steps_text)
            self.flow.note(range(start, stop), *reached)
            self.inputs.admit(used, tape.steps_text)
        self.flow.note_results(stop, [edge is not None for edge in tape.carry_out])
        self.compare_outputs(start, leaves)
        return runner.tree.unflatten([detached(leaf) for leaf in leaves]), tape

    def record_first_step(self, state: Any, *, measured: bool) -> tuple[Tape, PyTree, PyTree, int, int]:
        """Record only the first step, before there is a plan and before it is known which leaves are active.

        Returns its tape, its results and, if `measured`, the bytes of its tape and those that it allocates.
        """
        runner, number, versions = self.runner, next_sequence_nr(), self._input_versions(state)
        with ExitStack() as stack:
            step = stack.enter_context(self._steps_may_run(grad=True))
            leaves = require_grad_roots(runner.tree.flatten_like(state, "carry"), self.activity.carry)
            tape = Tape(0, 1, number, requiring_grad(leaves), self.captured)
            # Compiled code does not run as such in the mode that counts on a CPU.
            counted = measured and not self.step.compiled
            allocated = stack.enter_context(allocations(self._devices())) if counted else lambda: 0
            carry, y = self._call_step(step, runner.tree.unflatten(leaves), 0, tape)
            allocated_bytes = allocated()
        versions.check(0, 1)
        leaves = runner.check_carry(carry, 0, y)
        if runner.outputs.row_of(0) is not None:
            runner.outputs.allocate(y, 0)
        tape_bytes = 0
        if measured:
            tape.look_at_graph(output_edges((*leaves, *flatten(y)[0])))
            tape_bytes = saved_bytes(tape.seen.alive(), tape.carry_in, self._persistent_tensors())
        return tape, carry, y, tape_bytes, allocated_bytes

    @contextmanager
    def _steps_may_run(self, *, grad: bool) -> Iterator[Callable[[Any, Any], Any]]:
        """A context that yields the step, which runs in it as at the call of the loop, with this backend's tensors."""
        step, inputs = self.step, self.inputs
        with (
            self._segments_allowed(),
            step.autocast.active(grad=grad),
            in_memory(inputs.roots, inputs.memory),
            HiddenTensorsRefused() if step.under_functorch and not step.compiled else nullcontext(),
            step.rebind(inputs.bindings) as function,
        ):
            yield function if step.inner_backward is None else step.inner_backward.wrap(function)

    def _record_steps(self, step: Any, carry: Any, start: int, tape: Tape) -> Any:
        runner, tracker = self.runner, self.tracker
        # Of recomputed steps, only the last output is needed, when their range has been recorded.
        last, rows = min(runner.outputs_written, tape.stop - 1), runner.outputs.rows
        for i in range(start, tape.stop):
            carry, y = self._call_step(step, carry, i, tape)
            if not runner.matches(carry):
                runner.check_carry(carry, i, y)
            if not tracker.closed:
                tracker.note_aliases(carry, y)
            if i < last and ((y is None and runner.outputs.are_none) if rows is None else i not in rows):
                tape.ys.append(())
            else:
                self._register_output(tape, i, y)
            if i == 0:  # the caller's tensors have these hooks since step 0 first ran
                take_hooks(tape.carry_in)
        return carry

    def _call_step(self, step: Any, carry: Any, i: int, tape: Tape) -> tuple[Any, Any]:
        runner = self.runner
        if self._has_active_xs:  # every row is a root of its own, so that its gradient is written to its place
            leaves = require_grad_roots(runner.begin_with_leaves(i), self.activity.xs)
            tape.xs.append(requiring_grad(leaves))
            x = runner.inputs.tree.unflatten(leaves)
        else:
            x = runner.begin(i)
        try:
            out = step(carry, x)
            return out if type(out) is tuple and len(out) == 2 else unpack_output(leaf_ops, out, i)
        except Exception as error:
            if "leaf Variable that requires grad is being used in an in-place" in str(error):
                raise step_mutation_error(f"step {i}", str(error)) from error
            runner.add_note(error, carry)
            raise

    def _register_output(self, tape: Tape, i: int, y: Any) -> None:
        """Add the gradient edges of the output of step i to the tape; the first sweep also writes the output."""
        outputs, is_kept = self.runner.outputs, self.runner.outputs.row_of(i) is not None
        if not is_kept or outputs.is_empty(y):
            tape.ys.append(())
            self.runner.write_output(i, y if is_kept else None)
            return
        if outputs.tree is None:
            outputs.allocate(y, i)
        leaves = outputs.checked_leaves(y, i)
        tape.ys.append(output_edges(leaves))
        self.tracker.output_activity()
        self.tracker.note((), leaves, f"step {i}")
        self.note_output(i, tape.stop, leaves)
        if i >= self.runner.outputs_written or i == tape.stop - 1:
            self._write_output(i, y)

    def _write_output(self, i: int, y: Any) -> None:
        """Write the output of step i, in the first sweep only; it becomes the `last_output` that is compared."""
        outputs, kept = self.runner.outputs, self.runner.outputs.row_of(i) is not None
        if kept and outputs.tree is None:
            outputs.allocate(y, i)
        # Without its graph; an output that is not kept is not compared either.
        self.runner.write_output(i, outputs.tree.map(detached, y) if kept and outputs.tree is not None else None)

    def new_gradients(
        self,
        carry: list[Any],
        outputs: Sequence[Any],
        steps: int | None = None,
        batch: int | None = None,
        *,
        of_parameters: bool = True,
        wanted: Sequence[Sequence[bool]] = ((), (), ()),
        keep: bool = False,
    ) -> Gradients:
        """The gradients at the turn, of `wanted` leaves (first carry, `xs`, captured) and of sharded parameters."""
        self._steps, self._batch, self._wanted, self._keep = steps, batch, wanted, keep
        self._accumulates = of_parameters and bool(self._fsdp_modules)
        outputs = outputs if any(bar is not None for bar in outputs) else ()
        return Gradients(carry, outputs, [None] * len(self.runner.inputs.leaves), [None] * len(self.captured))

    def pull_back(self, tape: Tape, gradients: Gradients) -> Gradients:
        """The gradients before the range; rows of xs are written, and sums of captured tensors updated."""
        stops = self.inputs.stops(tape)
        gradients.captured.extend([None] * (len(self.captured) - len(gradients.captured)))  # found while measuring
        edges = self._cotangents(tape, gradients, stops)
        self._carry_hooks = move_hooks(tape, self._carry_hooks.get(tape.stop, {}))
        tape.want(*self._wanted)
        leaves = self.inputs.leaves_themselves()
        with self._segments_allowed(), tape.as_recorded():
            by_root = accumulate_grads(edges, tape) if self._accumulates else tape_vjp(edges, tape, leaves, stops)
        end_backward(self._fsdp_modules)
        size, rows = len(tape.carry_in), iter(by_root[len(tape.carry_in) + len(tape.captured) :])
        for k, gradient in enumerate(by_root[size : size + len(tape.captured)]):
            gradients.captured[k] = gradients.captured[k] if gradient is None else gradient
        for i, row in enumerate(tape.xs, tape.start):
            for k, gradient in enumerate([next(rows) for _ in row]):
                if gradient is not None:
                    leaf = self.runner.inputs.leaves[k]
                    gradients.xs[k] = with_row(gradients.xs[k], i, gradient, leaf, self._batch)
        return Gradients(by_root[:size], gradients.outputs, gradients.xs, gradients.captured)

    def _cotangents(self, tape: Tape, gradients: Gradients, stops: Stops | None) -> OutputEdges:
        """The cotangents of all results of a range, and the running sums, at the edges where they enter its graph."""
        outputs, edges = gradients.outputs, OutputEdges(batched=self._batch is not None, keep=self._keep)
        if not self._accumulates:
            seed_accumulators(edges, tape.captured, gradients.captured, stops)
        last_step, in_later_range = tape.stop - 1, set()
        if outputs:
            # An output that *is* a carry leaf has one sum of cotangents. In the plain loop the output's cotangent is
            # the first term, since outputs are used after all steps. So at the border of two ranges the output's
            # cotangent enters the later range, at the root, and the earlier range leaves it out.
            for k, j in self.activity.aliases.items():
                if tape.start > 0 and tape.carry_in[k] is not None:
                    edges.add(gradient_edge(tape.carry_in[k]), self._output_cotangent(outputs, tape.start - 1, j))
            in_later_range = set(self.activity.aliases.values()) if tape.stop != self._steps else set()
            for i, row in enumerate(tape.ys, tape.start):
                for j, edge in enumerate(row):
                    if i != last_step or j not in in_later_range:
                        edges.add(edge, self._output_cotangent(outputs, i, j))
        for edge, bar in zip(tape.carry_out, gradients.carry, strict=True):
            edges.add(edge, bar)
        return edges

    def _output_cotangent(self, cotangents: Sequence[Any], i: int, j: int) -> Any:
        row, bar = self.runner.outputs.row_of(i), cotangents[j]
        return None if row is None or bar is None else by_step(bar, self._batch)[row]

    def release_outputs(self) -> None:
        """Drop the outputs: their graph refers to this backend, which would close a cycle."""
        self.output_bytes = sum(map(nbytes, self.runner.outputs.take_leaves()))

    def size(self, value: Any) -> int:
        """Bytes of a carry, a tape or a cotangent."""
        if isinstance(value, Tape):
            value.look_at_graph()
            return saved_bytes(value.seen.alive(), value.carry_in, self._persistent_tensors())
        return sum(map(nbytes, self.runner.tree.flatten_like(value, "carry")))

    def tape_listing(self) -> TorchTapeListing | None:
        """A listing of what one step saves, with its lines; None for compiled steps, which are not traced."""
        return None if self.step.compiled else TorchTapeListing(self.runner, self._persistent_tensors())

    def persistent_bytes(self, gradients: Gradients | None) -> dict[str, int]:
        """Bytes of inputs, captured tensors and outputs, and of the gradients of inputs and captured tensors."""
        tensors = () if gradients is None else (*gradients.xs, *gradients.captured)
        by_name = {
            "inputs": self.runner.inputs.leaves,
            "parameters and what else is captured": self.captured,
            "gradients": [leaf for leaf in tensors if leaf is not None],
        }
        sizes = {name: sum(map(nbytes, leaves)) for name, leaves in by_name.items() if leaves}
        made = {"outputs": self.output_bytes or sum(map(nbytes, self.runner.outputs.leaves))}
        made["cotangents of outputs"] = storage_bytes(() if gradients is None else gradients.outputs)
        return sizes | {name: size for name, size in made.items() if size}

    def failed_at(self) -> tuple[int, int]:
        """The step at which an error was raised, and 0, since the error freed its graph."""
        return self.runner.current_step, 0

    def meter(self) -> Any:
        """The meter of the device that the state is on."""
        return meter_for(self._devices())

    def _devices(self) -> list[torch.device]:
        of_carry = [spec.device for spec in self.runner.specs if spec.device]
        return [*of_carry, *(tensor.device for tensor in self._persistent_tensors())]

    def _input_versions(self, state: Any) -> InputVersions:
        """The versions of the carry and the inputs of steps; none under torch.func transforms."""
        of_carry = self.runner.tree.flatten_like(state, "carry")
        return InputVersions(() if self.step.under_functorch else (*of_carry, *self.runner.inputs.leaves))

    def _persistent_tensors(self) -> list[Tensor]:
        """Tensors that are alive without any tape, so that a tape that saves them takes no bytes for them."""
        return [*self.captured, *self.runner.inputs.leaves]

    def _should_check_inputs(self, tape: Tape, nodes: int) -> bool:
        """Whether to search the graph of these steps for tensors that are not known as inputs.

        The search visits every node. So it is done in the first sweep, where few steps are recorded; in later sweeps
        near powers of two (like the probes of `advance`); and if a step has more or fewer nodes than in the last range.
        """
        start, stop, usual = tape.start, tape.stop, nodes == self._nodes_per_step * (tape.stop - tape.start)
        self._nodes_per_step = nodes // (stop - start)
        return not usual or not self.inputs.closed or start == 0 or (stop - 1).bit_length() != (start - 1).bit_length()

"""The backend whose steps autograd records: a tape is the graph of a range of steps."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from remat.errors import StepError
from remat.execute.gradients import Gradients
from remat.execute.recomputation import recomputing
from remat.frameworks.numpy import leaves as leaf_ops
from remat.frameworks.numpy.leaves import OF_BOXES, is_boxed
from remat.frameworks.numpy.loops.activity import CarryActivity
from remat.frameworks.numpy.loops.backend import NumpyBackend
from remat.frameworks.numpy.protection import (
    NotAsAutograd,
    StepMode,
    copier,
    is_readonly_error,
    mutation_message,
    readonly_view,
)
from remat.frameworks.numpy.tape import (
    CapturedRoots,
    Node,
    NodeSums,
    RecordedRange,
    Tape,
    box_leaves,
    fresh_trace,
    pull_back,
    unbox,
)
from remat.frameworks.numpy.tape_contents import NodeLog, NumpyTapeListing
from remat.loops.step_runner import unpack_output
from remat.pytree import Leaf, PyTree

__all__ = ["AutogradBackend"]


Step = Callable[[PyTree, PyTree], PyTree]
PIECE = 8  # steps per graph: few, to limit what a pullback allocates, but enough to amortize starting a graph

# Errors of code that gets boxes: methods that boxes lack, and plain NumPy functions, which make object arrays of them.
_OF_BOXES = re.compile(r"\b(Array|Sequence|Dict)Box\b|dtype\('O'\)|setting an array element with a sequence")


class AutogradBackend(NumpyBackend):
    """Advances on plain arrays, records by autograd, pulls back through the recorded graph."""

    def __init__(self, *args: PyTree, **options: PyTree) -> None:
        super().__init__(*args, **options)
        self._captured_roots = CapturedRoots(self.captured, self.needs_grad.captured)
        self.activity = CarryActivity(self.needs_grad.carry, exact=self.mode is StepMode.AUTOGRAD)

    def active(self) -> list[bool]:
        """Which leaves of the last carry may depend on a differentiated value."""
        return self.activity.at(self.runner.outputs_written)

    def advance(self, state: PyTree, start: int, stop: int) -> PyTree:
        """The carry after steps start..stop-1.

        Some steps are probes: they are recorded, and their tapes dropped. The first step is one, so that a step that
        autograd cannot record fails at once and not in the reverse sweep. If captured values need a gradient, steps 1,
        2, 4, 8, … are probes, too. The reason is caches (a memo, a cached_property): one that is filled from a captured
        value while steps run on plain arrays holds a plain array, which silently cuts the graph when a later step is
        recorded. Filled in a probe, it holds a box of the probe's trace, which `reject_tracer` finds in the next carry
        or output. Powers of two also catch a cache that is filled late, and cost log2(n) records. Every sweep probes
        the same steps, so that a recomputed state is computed exactly as at first.
        """
        states = [state]
        del state
        while start < stop:
            probe = start  # in modes other than PLAIN, every step is recorded
            if self.mode is StepMode.PLAIN:
                probe = _next_probe(start) if any(self.needs_grad.captured) or start == 0 else stop
            if probe > start:
                states.append(super().advance(states.pop(), start, min(probe, stop)))
            if probe < stop:
                states.append(self._record_range(states.pop(), probe, probe + 1, compared=False)[0])
            start = probe + 1
        return states.pop()

    def record(self, state: PyTree, start: int, stop: int) -> tuple[PyTree, RecordedRange]:
        """The carry after steps start..stop-1, and their graphs; recomputed outputs are compared."""
        after, tape = self._record_range(state, start, stop, compared=start < self.runner.outputs_written)
        self.compare_outputs(start, self.runner.tree.flatten_like(after, "carry"))
        return after, tape

    def _record_range(self, state: PyTree, start: int, stop: int, *, compared: bool) -> tuple[PyTree, RecordedRange]:
        """Record steps in graphs of PIECE steps each; with `compared`, note their outputs for a comparison.

        A pullback's allocations grow with the graph, which autograd sorts first. So the graphs are short, and each is
        freed as soon as it is pulled back. Gradients are added in the same order as in one long graph.
        """
        first_sweep = start >= self.runner.outputs_written
        # States are popped from a list into calls, so that no frame here keeps a state alive that the step frees.
        states = [state]
        del state
        with recomputing(not first_sweep), fresh_trace() as trace:
            self._captured_roots.move_to(trace)
            recorded = self.partial_tape = RecordedRange(start, stop, self._captured_roots.nodes)
            with self.step.rebind(self._captured_roots.boxes) as step:
                for at in range(start, stop, PIECE):
                    tape = recorded.add(at, min(stop, at + PIECE))
                    states.append(self._record(step, states.pop(), tape, stop if compared else None, trace))
                    self.activity.observe(tape.stop, tape.carry_out, self.runner.names, first_sweep=first_sweep)
        self.partial_tape = None
        return states.pop(), recorded

    def _record(self, step: Step, state: PyTree, tape: Tape, compared_at: int | None, trace: float) -> PyTree:
        """Record the steps of a tape and fill in its nodes; return the carry after them.

        With `compared_at`, the stop of the whole range, outputs are noted for the comparison there.
        """
        runner, needs_grad = self.runner, self.needs_grad
        leaves = self._given(runner.tree.flatten_like(state, "carry"))
        boxes, tape.carry_in[:] = box_leaves(leaves, self.activity.at(tape.start), trace)
        del state, leaves  # the boxes hold what the graph needs
        x = None if runner.inputs.leaves else runner.inputs.row(tape.start)  # without inputs, x is always the same
        for i in range(tape.start, tape.stop):
            leaves = runner.begin_with_leaves(i)
            if leaves:
                rows, roots = box_leaves(leaves, needs_grad.xs, trace)
                tape.xs.append(roots)
                x = runner.inputs.tree.unflatten(rows)
            carry, y = self._call_step(step, runner.tree.unflatten(boxes), x)
            # Filled in step by step: `failed_at` counts them if a later step raises.
            try:
                tape.carry_out[:] = boxes = self._given(runner.check_carry(carry, i, y))
                tape.ys.append(self._output(y, i, compared_at, trace))
            except StepError as error:
                if OF_BOXES in str(error):  # these leaves may be boxes only in this mode
                    raise NotAsAutograd(str(error)) from error
                raise
            if i == 0:  # the result must be the same whether the step is measured or not
                self.compare_first(_unboxed(boxes, runner.names, trace)[0])
        values, tape.carry_out[:] = _unboxed(boxes, runner.names, trace)
        return runner.tree.unflatten(values)

    def _given(self, leaves: Sequence[Leaf]) -> list[Leaf]:
        """The leaves of a carry for a recorded step: boxes as they are, arrays as read-only views or copies."""
        given = readonly_view if self.mode is StepMode.PLAIN else copier()
        return [leaf if is_boxed(leaf) else given(leaf) for leaf in leaves]

    def _call_step(self, step: Callable[[PyTree, PyTree], PyTree], carry: PyTree, x: PyTree) -> tuple[PyTree, PyTree]:
        i = self.runner.current_step
        try:
            out = step(carry, x)
            return out if type(out) is tuple and len(out) == 2 else unpack_output(leaf_ops, out, i)
        except StepError:  # our own errors name the step already
            raise
        except (TypeError, AttributeError, ValueError) as error:
            if is_readonly_error(error):
                raise NotAsAutograd(mutation_message(error, i)) from error
            if not _OF_BOXES.search(str(error)):
                self.runner.add_note(error, carry)
                raise
            raise NotAsAutograd(
                f"autograd cannot record step {i}: {str(error).rstrip('.')}. Use autograd.numpy for NumPy in "
                "the step, and make new arrays instead of writing into old ones; or give the step's adjoint as vjp="
            ) from error
        except Exception as error:
            self.runner.add_note(error, carry)
            raise

    def _output(self, y: PyTree, i: int, compared_at: int | None, trace: float) -> list[Node | None]:
        """The nodes of the output of step i, by leaf; the first sweep also writes the output to its row."""
        runner, outputs = self.runner, self.runner.outputs
        if outputs.row_of(i) is None:  # it is not kept, so it will get no cotangent
            return []
        if outputs.tree is None:
            outputs.allocate(y, i)
        values, nodes = _unboxed(outputs.checked_leaves(y, i), outputs.names, trace)
        assert outputs.tree is not None
        runner.write_output(i, outputs.tree.unflatten(values))
        if compared_at is not None:
            self.note_output(i, compared_at, values)
        return nodes

    def tape_listing(self) -> NumpyTapeListing:
        """An object that lists the arrays that one step's tape keeps, with the lines that made them."""
        return NumpyTapeListing(NodeLog(lambda: self.runner.current_step), self.shared_arrays())

    def pull_back(self, tape: RecordedRange, gradients: Gradients) -> Gradients:
        """The gradients before the range: writes the rows of xs, and adds to the sums of captured values.

        The sums go into the pullback, so that autograd adds the terms in the same order as in a plain loop: the result
        is bitwise equal.
        """
        captured = list(zip(tape.captured, gradients.captured, strict=True))
        sums = {node: total for node, total in captured if node is not None and total is not None}
        carry = gradients.carry
        while tape.tapes:
            carry = self._pull_back(tape.tapes.pop(), carry, gradients, sums)
        return replace(gradients, carry=carry, captured=[sums.get(node, total) for node, total in captured])

    def _pull_back(self, tape: Tape, carry: Sequence[Leaf], gradients: Gradients, sums: NodeSums) -> list[Leaf]:
        """The cotangent of the carry before one graph; `sums` of nodes in earlier graphs wait until these are reached.

        Such sums exist if a step has put a value into a container: it goes to later graphs without the carry.
        """
        outputs = gradients.outputs
        groups = [
            _with_cotangents(nodes, self._output_cotangents(outputs, i))
            for i, nodes in enumerate(tape.ys if outputs else (), tape.start)
        ]
        groups = [group for group in groups if group] + [_with_cotangents(tape.carry_out, carry)]
        pull_back(groups, sums)
        for i, nodes in enumerate(tape.xs, tape.start):
            for gradient, node in zip(gradients.xs, nodes, strict=True):
                if node in sums:
                    gradient[i] = sums.pop(node)[0]
        return [sums.pop(node)[0] if node in sums else None for node in tape.carry_in]


def _next_probe(start: int) -> int:
    """The first of the steps 0, 1, 2, 4, 8, … from `start` on."""
    return 1 << (start - 1).bit_length() if start > 1 else start


def _unboxed(leaves: Sequence[Leaf], names: Sequence[str], trace: float) -> tuple[list[Leaf], list[Node | None]]:
    """The values and the nodes of leaves; a StepError if a value is a box of another trace."""
    pairs = [unbox(leaf, trace) for leaf in leaves]
    for (value, _), name in zip(pairs, names, strict=True):
        leaf_ops.reject_tracer(value, name)
    return [value for value, _ in pairs], [node for _, node in pairs]


def _with_cotangents(nodes: Sequence[Node | None], cotangents: Sequence[Leaf] | None) -> list[tuple[Node, Leaf]]:
    """The nodes that have a cotangent, each with its cotangent."""
    pairs = zip(nodes, cotangents or (), strict=bool(cotangents))
    return [(node, cotangent) for node, cotangent in pairs if node is not None and cotangent is not None]

"""Steps recorded by autograd: a tape is the graph of a range of steps."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from remat.errors import StepError
from remat.execute.gradients import Gradients
from remat.execute.recomputation import recomputing
from remat.frameworks.numpy import leaves as leaf_ops
from remat.frameworks.numpy.backend import NumpyBackend, is_readonly_error, step_mutation_error
from remat.frameworks.numpy.tape import Tape, box_leaves, fresh_trace, pull_back, unbox
from remat.loops.step_runner import unpack_output

__all__ = ["AutogradBackend"]


class AutogradBackend(NumpyBackend):
    """Records steps by autograd."""

    def advance(self, state: Any, start: int, stop: int) -> Any:
        """The carry after steps start..stop-1.

        Some steps are recorded for nothing, always the same ones: the first, so that what autograd cannot record shows
        before work is lost; and those at powers of two where the step closes over traced variables, so that a cache
        that it fills from them holds boxes, which are found out, and not plain arrays, which would lose a gradient.
        """
        states = [state]
        del state
        while start < stop:
            probe = _next_probe(start) if any(self.needs_grad.captured) or start == 0 else stop
            if probe > start:
                states.append(super().advance(states.pop(), start, min(probe, stop)))
            if probe < stop:
                states.append(self.record(states.pop(), probe, probe + 1)[0])
            start = probe + 1
        return states.pop()

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Any]:
        """The carry after steps start..stop-1, and the graph of all of them."""
        runner, wanted = self.runner, self.needs_grad
        with recomputing(runner.outputs_written > start), fresh_trace() as trace:
            leaves, roots = box_leaves(runner.tree.flatten_like(state, "carry"), [True] * len(runner.names), trace)
            captured, captured_roots = box_leaves(self.captured, wanted.captured, trace)
            tape = self.partial_tape = Tape(start, stop, roots, captured_roots)
            carry, y = runner.tree.unflatten(leaves), None
            del state, leaves
            with self.step.rebind(captured) as step:
                for i in range(start, stop):
                    runner.current_step = i
                    inputs, roots = box_leaves([leaf[i] for leaf in runner.inputs.leaves], wanted.xs, trace)
                    tape.xs.append(roots)
                    carry, y = unpack_output(
                        leaf_ops, self._called(step, carry, runner.inputs.tree.unflatten(inputs)), i
                    )
                    ends = runner.check_carry(carry, i)
                    tape.carry_out = ends  # for whoever weighs a tape that is never finished
                    tape.ys.append(self._output(y, i, trace))
        values, tape.carry_out = _unboxed(ends, runner.names, trace)
        self.partial_tape = None
        return runner.tree.unflatten(values), tape

    def _called(self, step: Callable[[Any, Any], Any], carry: Any, x: Any) -> Any:
        try:
            return step(carry, x)
        except TypeError as error:
            if not re.search(r"\b(Array|Sequence|Dict)Box\b", str(error)):
                self.runner.add_note(error, carry)
                raise
            raise StepError(
                f"autograd cannot record step {self.runner.current_step}: {error}. Use autograd.numpy for NumPy in "
                "the step, and make new arrays instead of writing into old ones; or give the step's adjoint as vjp="
            ) from error
        except Exception as error:
            if isinstance(error, ValueError) and is_readonly_error(error):
                raise step_mutation_error(error, self.runner.current_step) from error
            self.runner.add_note(error, carry)
            raise

    def _output(self, y: Any, i: int, trace: float) -> list[Any]:
        """The nodes of the output of step i, which is written if it is new."""
        runner, outputs = self.runner, self.runner.outputs
        if outputs.row_of(i) is None:
            return []
        if outputs.tree is None:
            outputs.allocate(y, i)
        values, nodes = _unboxed(outputs.checked_leaves(y, i), outputs.names, trace)
        assert outputs.tree is not None
        runner.last_output = outputs.tree.unflatten(values)
        if i >= runner.outputs_written:
            outputs.write(i, runner.last_output)
            runner.outputs_written = i + 1
        return nodes

    def pull_back(self, tape: Tape, gradients: Gradients) -> Gradients:
        """The gradients before the range; sums of captured values go on, rows of inputs are written."""
        captured = list(zip(tape.captured, gradients.captured, strict=True))
        sums = {node: total for node, total in captured if node is not None and total is not None}
        outputs = gradients.outputs
        groups = [_pairs(nodes, self._output_cotangents(outputs, i)) for i, nodes in enumerate(tape.ys, tape.start)]
        groups = [group for group in groups if group] + [_pairs(tape.carry_out, gradients.carry)]
        sums = pull_back(groups, sums)
        for i, nodes in enumerate(tape.xs, tape.start):
            for gradient, node in zip(gradients.xs, nodes, strict=True):
                if node in sums:
                    gradient[i] = sums[node][0]
        carry = [sums[node][0] if node in sums else None for node in tape.carry_in]
        return replace(gradients, carry=carry, captured=[sums.get(node, total) for node, total in captured])

    def _advance_writing(self, state: Any, start: int, stop: int) -> Any:
        for i in range(start, stop):
            state = self.record(state, i, i + 1)[0]
        return state


def _next_probe(start: int) -> int:
    """The next of the steps 0, 1, 2, 4, 8, …"""
    return 1 << (start - 1).bit_length() if start > 1 else start


def _unboxed(leaves: Sequence[Any], names: Sequence[str], trace: float) -> tuple[list[Any], list[Any]]:
    """The values of leaves and their nodes; a value that is a box of another trace is refused."""
    pairs = [unbox(leaf, trace) for leaf in leaves]
    for (value, _), name in zip(pairs, names, strict=True):
        leaf_ops.reject_tracer(value, name)
    return [value for value, _ in pairs], [node for _, node in pairs]


def _pairs(nodes: Sequence[Any], cotangents: Sequence[Any] | None) -> list[tuple[Any, Any]]:
    """The nodes that have a cotangent, with it."""
    found = zip(nodes, cotangents or (), strict=bool(cotangents))
    return [(node, part) for node, part in found if node is not None and part is not None]

"""The verbs of PyTorch: steps are advanced without gradients, recorded as one graph a range, pulled back in one call.

A state is the carry as the step takes and returns it, of tensors outside of any graph. Gradients of inputs and captured
tensors are gathered here: sums go on from range to range in the order in which the plain loop would have added them.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor

from remat.errors import StepError
from remat.execute.fingerprint import change as change_of
from remat.execute.recomputation import recomputing
from remat.execute.rng_state import Source
from remat.frameworks.torch import leaves as kit
from remat.frameworks.torch.graph import edge_of, node_number
from remat.frameworks.torch.leaves import copied, late_summary, nbytes, outside, quick_summary, rooted
from remat.frameworks.torch.meter import meter_for
from remat.frameworks.torch.tape import Ends, Opened, Tape, accumulate, look_below, pull, weighed, with_sums
from remat.loops.step_runner import Body, pair

if TYPE_CHECKING:
    from remat.frameworks.torch.function import TorchStep

__all__ = ["TorchVerbs"]

LOOSE = 0.1  # a tolerance that says nothing: over a long recorded range, chaos makes anything of a rounding error


class TorchVerbs:
    """Runs and records the steps of one loop."""

    def __init__(self, step: "TorchStep", body: Body, captured: Sequence[Tensor]) -> None:
        self.step, self.body, self.captured, self.flows = step, body, list(captured), step.flows
        self.sources: Sequence[Source] = step.sources
        self.opened: Opened | None = None
        self.steps: int | None = None  # in all; known at the turn
        self.stand_ins: Sequence[Tensor] = ()  # for captured tensors, where fake ones are used
        self.first = False  # whether the first sweep of a call is run
        self.weighing = False  # whether tapes are weighed while they are recorded
        self.cotangents: Sequence[Any] = ()  # of the outputs, by leaf; given at the turn
        self.xs_grads: list[Any] = [None] * len(body.inputs.leaves)  # made when the first one comes
        self.sums: list[Any] = [None] * len(self.captured)
        self.put_out = 0  # bytes of the outputs
        self._nodes = 0  # of a step's graph

    def advance(self, state: Any, start: int, stop: int) -> Any:
        """The carry after steps start..stop-1."""
        if self.opened is not None and start == 0:
            opened, self.opened, start = self.opened, None, 1
            state = self.body.tree.mapped(outside, opened.carry)
            self._put(0, opened.y)
            del opened
        states = [state]
        del state
        while start < stop and start >= self.body.done and start & (start - 1) == 0:
            # The first steps, at powers of two, are recorded for nothing: a cache that they fill from what wants a
            # gradient then holds something that is found out, and not tensors that would lose it.
            states.append(self.record(states.pop(), start, start + 1)[0])
            start += 1
        if start == stop:
            return states.pop()
        if self.body.tree.mutable:  # the step may change the container; what is kept is not to change with it
            states = [self.body.tree.mapped(lambda leaf: leaf, states.pop())]
        probe = 1 << (start - 1).bit_length() if start >= self.body.done else stop
        if probe < stop:
            states.append(self.advance(states.pop(), start, probe))
            return self.advance(states.pop(), probe, stop)
        given = self._given(states[0])
        with self.step.modes.on(grad=False), self.step.bind(self.captured) as step:
            seen = self._seeing(step) if self.flows.twins and self.first and start >= self.body.done else step
            after = self.body.run(seen, states.pop(), start, stop)
        self._check_given(given, start, stop)
        return self.body.tree.mapped(outside, after)

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Tape]:
        """The carry after steps start..stop-1, and the graph of all of them."""
        body = self.body
        given = self._given(state)
        opened, self.opened = self.opened, None
        leaves = body.tree.apart(state, "carry")
        del state
        with ExitStack() as stack:
            stack.enter_context(recomputing(body.done > start))
            stack.enter_context(self.step.modes.on(grad=True))
            step = stack.enter_context(self.step.bind(self.captured))
            weigh = (
                stack.enter_context(weighed(leaves, self._there())) if self.weighing and not self.step.bound else None
            )
            if opened is not None and start == 0:
                tape, carry, number, done = opened.tape, opened.carry, opened.number, 1
                self._take(tape, 0, opened.y)
                tape.stop = stop
            else:
                number, done = node_number(), start
                leaves = rooted(leaves, self.flows.carry)
                tape, carry = Tape(start, stop, _wanting(leaves), self.captured), body.tree.build(leaves)
            del leaves, opened
            for i in range(done, stop):
                carry = self._record_step(step, carry, i, tape)
            tape.bytes += 0 if weigh is None else weigh()
        self._check_given(given, start, stop)
        ends = body.settle(carry, stop - 1)
        tape.carry_out = self._ends(ends, self.flows.carry, body.names, stop - 1)
        if self._looks(start, stop, node_number() - number - 1) and not self.step.sharded:
            look_below(tape, number)
        return body.tree.build([outside(leaf) for leaf in ends]), tape

    def open(self, state: Any) -> Opened:
        """Record the first step by itself: nothing is planned yet, and what wants a gradient is not known."""
        body, number = self.body, node_number()
        given = self._given(state)
        with ExitStack() as stack:
            stack.enter_context(self.step.modes.on(grad=True))
            step = stack.enter_context(self.step.bind(self.captured))
            leaves = body.tree.apart(state, "carry")
            weigh = (
                stack.enter_context(weighed(leaves, self._there())) if self.weighing and not self.step.bound else None
            )
            leaves = rooted(leaves, self.flows.carry)
            tape = Tape(0, 1, _wanting(leaves), self.captured)
            carry, y = self._called(step, body.tree.build(leaves), 0, tape)
            tape.bytes = 0 if weigh is None else weigh()
        self._check_given(given, 0, 1)
        body.settle(carry, 0)
        if body.outputs.row(0) is not None:
            body.outputs.prepare(y, 0)
        return Opened(tape, carry, y, number)

    def _record_step(self, step: Any, carry: Any, i: int, tape: Tape) -> Any:
        carry, y = self._called(step, carry, i, tape)
        if not self.body.matches(carry):
            self.body.settle(carry, i)
        if self.flows.twins and self.first and i >= self.body.done:
            self._see(carry, y)
        self._take(tape, i, y)
        return carry

    def _called(self, step: Any, carry: Any, i: int, tape: Tape) -> tuple[Any, Any]:
        body = self.body
        body.at = i
        if any(self.flows.xs):
            leaves = rooted([leaf[i] for leaf in body.inputs.leaves], self.flows.xs)
            tape.xs.append(_wanting(leaves))
            x = body.inputs.tree.build(leaves)
        else:
            x = body.inputs.at(i)
        try:
            out = step(carry, x)
            return out if type(out) is tuple and len(out) == 2 else pair(kit, out, i)
        except RuntimeError as error:
            if "leaf Variable that requires grad is being used in an in-place" in str(error):
                raise _refuse_writing(f"step {i}", str(error)) from error
            body.add_note(error, carry)
            raise
        except Exception as error:
            body.add_note(error, carry)
            raise

    def _seeing(self, step: Any) -> Any:
        def seeing(carry: Any, x: Any) -> Any:
            out = step(carry, x)
            self._see(*pair(kit, out, self.body.at))
            return out

        return seeing

    def _see(self, carry: Any, y: Any) -> None:
        """Forget that outputs are leaves of the carry, if in this step of the first sweep they are not."""
        assert self.body.outputs.tree is not None
        outs, ys = self.body.tree.apart(carry, "carry"), self.body.outputs.tree.apart(y, "y")
        if any(ys[j] is not outs[k] for k, j in self.flows.twins.items()):
            self.flows.twins.clear()

    def _take(self, tape: Tape, i: int, y: Any) -> None:
        """Hold where the gradient of the output of step i comes in, and write the output if it is new."""
        outputs = self.body.outputs
        if outputs.row(i) is None or outputs.is_nothing(y):
            tape.ys.append([])
            self.body.done = max(self.body.done, i + 1)
            return
        if outputs.tree is None:
            outputs.prepare(y, i)
        tape.ys.append(self._ends(outputs.apart(y, i), self.output_flows(), outputs.names, i))
        self._put(i, y)

    def output_flows(self) -> list[bool]:
        """Through which outputs gradients flow; all that can, where the first step was not recorded to find out."""
        specs = self.body.outputs.specs
        if len(self.flows.ys) != len(specs):
            self.flows.ys = [spec.differentiable for spec in specs]
        return self.flows.ys

    def _put(self, i: int, y: Any) -> None:
        """Write the output of step i if it is new; the last one is at hand to be compared."""
        body, outputs = self.body, self.body.outputs
        if outputs.row(i) is not None and not outputs.is_nothing(y):
            if i >= body.done:
                with torch.no_grad():
                    outputs.put(i, y)
            assert outputs.tree is not None
            body.y = outputs.tree.mapped(outside, y)
        body.done = max(body.done, i + 1)

    def pull_back(self, tape: Tape, cotangent: list[Any]) -> list[Any]:
        """The cotangent of the carry before the range; sums of captured tensors go on, those of inputs are written."""
        ends = Ends()
        if not self.step.sharded:
            with_sums(ends, tape.captured, self.sums)
        last, done = tape.stop - 1, set()
        if self.cotangents:
            # The cotangent of an output that is a leaf of the carry is the first of those that this leaf gets in the
            # plain loop, so the range after it begins with it, and the one before leaves it out.
            for k, j in self.flows.twins.items():
                if tape.start > 0 and tape.carry_in[k] is not None:
                    ends.add(edge_of(tape.carry_in[k]), self._output_cotangent(tape.start - 1, j))
            done = set(self.flows.twins.values()) if tape.stop != self.steps else set()
            for i, row in enumerate(tape.ys, tape.start):
                for j, edge in enumerate(row):
                    if i != last or j not in done:
                        ends.add(edge, self._output_cotangent(i, j))
        for edge, bar in zip(tape.carry_out, cotangent, strict=True):
            ends.add(edge, bar)
        found = accumulate(ends, tape, self.step.sharded) if self.step.sharded else pull(ends, tape)
        size, count = len(tape.carry_in), len(tape.captured)
        for k, gradient in enumerate(found[size : size + count]):
            self.sums[k] = self.sums[k] if gradient is None else gradient
        rows = iter(found[size + count :])
        for i, row in enumerate(tape.xs, tape.start):
            for k, gradient in enumerate([next(rows) for _ in row]):
                if gradient is not None:
                    if self.xs_grads[k] is None:
                        self.xs_grads[k] = torch.zeros_like(self.body.inputs.leaves[k])
                    self.xs_grads[k][i] = gradient
        return found[:size]

    def _output_cotangent(self, i: int, j: int) -> Any:
        row = self.body.outputs.row(i)
        return None if row is None or self.cotangents[j] is None else self.cotangents[j][row]

    def let_go(self) -> None:
        """The outputs are out; held here they would live as long as the graph that they belong to, and it with them."""
        self.put_out = sum(map(nbytes, self.body.outputs.leaves))
        self.body.outputs.leaves = []

    def copy(self, state: Any) -> Any:
        """A private copy of a carry."""
        return self.body.tree.mapped(copied, state)

    def size(self, value: Any) -> int:
        """Bytes of a carry, a tape or a cotangent."""
        if isinstance(value, Tape):
            return value.bytes
        return sum(map(nbytes, self.body.tree.apart(value, "carry")))

    def always(self) -> dict[str, int]:
        """Bytes of the inputs, of what is captured, of the outputs, and of the gradients of inputs and captured."""
        parts = {
            "inputs": self.body.inputs.leaves,
            "parameters and what else is captured": self.captured,
            "gradients": [leaf for leaf in (*self.xs_grads, *self.sums) if leaf is not None],
        }
        found = {name: sum(map(nbytes, leaves)) for name, leaves in parts.items() if leaves}
        return found | ({"outputs": self.put_out} if self.put_out else {})

    def partly(self) -> tuple[int, int]:
        """The step at which an error was raised; the tape up to it is gone with the error."""
        return self.body.at, 0

    def meter(self) -> Any:
        """The meter of the device that the state is on."""
        there = [*self.captured, *self.body.inputs.leaves]
        return meter_for([spec.device for spec in self.body.specs if spec.device] + [t.device for t in there])

    def late_summary(self, state: Any, *, of_sizes: bool = False) -> list[Tensor]:
        """A number on the device for each leaf of the carry, and of the output that the last step put out with it."""
        return [late_summary(leaf, of_sizes=of_sizes) for leaf in self.body.watched(state)]

    def summary(self, state: Any) -> list[float]:
        """A number for each leaf of the carry, and of the output that the last step put out with it."""
        return [quick_summary(leaf) for leaf in self.body.watched(state)]

    def differ(self, state: Any, noted: Sequence[float], *, recorded: int) -> str | None:
        """The leaf that is not what was summed up, and by how much."""
        found = self.summary(state)
        if found == list(noted):
            return None
        return self.name_change(found, noted, [float(n) for n in self.late_summary(state, of_sizes=True)], recorded)

    def name_change(
        self, found: Sequence[float], noted: Sequence[float], sizes: Sequence[float], recorded: int
    ) -> str | None:
        """The leaf whose summary is another than was noted, and by how much."""
        outputs = self.body.outputs
        names, specs = (self.body.names + outputs.names)[: len(found)], (self.body.specs + outputs.specs)[: len(found)]
        for now, before, size, name, spec in zip(found, noted, sizes, names, specs, strict=True):
            tolerance = spec.eps ** (0.5 / recorded if recorded else 0.75)
            change = change_of(now, before, size, tolerance)
            if change and tolerance < LOOSE:
                return f"{name} was another one by {change:.1g} of its size"
        return None

    def _ends(self, leaves: Sequence[Any], flows: Sequence[bool], names: Sequence[str], i: int) -> list[Any]:
        """Where the gradients of leaves come into the graph; None for those that depend on nothing."""
        ends: list[Any] = []
        for leaf, flow, name in zip(leaves, flows, names, strict=True):
            wants = isinstance(leaf, Tensor) and leaf.requires_grad
            if wants and not flow:
                raise StepError(
                    f"gradients flow through {name} after step {i}, and did not after step 0: it depended on nothing "
                    "that requires a gradient there. Let it begin with requires_grad_()"
                )
            ends.append(edge_of(leaf) if wants else None)
        return ends

    def _given(self, state: Any) -> list[tuple[Any, int]]:
        """What steps are given, and how often each tensor was written into; nothing is held here."""
        if self.step.bound:
            return []
        given = (*self.body.tree.apart(state, "carry"), *self.body.inputs.leaves)
        return [(ref(leaf), leaf._version) for leaf in given if isinstance(leaf, Tensor)]

    def _check_given(self, given: list[tuple[Any, int]], start: int, stop: int) -> None:
        """Raise a StepError if steps have written into what they were given."""
        for held, version in given:
            tensor = held()
            if tensor is not None and tensor._version != version:
                steps = f"step {start}" if stop == start + 1 else f"one of the steps {start} to {stop - 1}"
                raise _refuse_writing(steps, f"a {kit.looks(tensor, 'tensor')} has changed")

    def _there(self) -> list[Tensor]:
        return [*self.captured, *self.stand_ins, *self.body.inputs.leaves]

    def _looks(self, start: int, stop: int, nodes: int) -> bool:
        """Whether the graph of these steps is to be looked at.

        It is near powers of two, where it has more or fewer nodes than such graphs had so far, and always where the
        step could reach more than it used at first.
        """
        usual = nodes == self._nodes * (stop - start)
        self._nodes = nodes // (stop - start)
        return not usual or self.step.many or start == 0 or (stop - 1).bit_length() != (start - 1).bit_length()


def _wanting(roots: Sequence[Any]) -> list[Any]:
    return [root if isinstance(root, Tensor) and root.requires_grad else None for root in roots]


def _refuse_writing(steps: str, what: str) -> StepError:
    return StepError(
        f"{steps} writes into what it is given ({what}): its input x, or a carry that is kept to be used again. Make a "
        "new tensor instead, as in h = h + dh for h += dh"
    )

"""The verbs of PyTorch: steps are advanced without gradients, recorded as one graph a range, pulled back in one call.

A state is the carry as the step takes and returns it, of tensors outside of any graph. Gradients of inputs and captured
tensors are gathered here: sums go on from range to range in the order in which the plain loop would have added them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from remat.errors import StepError
from remat.execute.recomputing import recomputing
from remat.execute.rng import Source
from remat.execute.summary import change as change_of
from remat.frameworks.body import Body, pair
from remat.frameworks.torch import leaves as kit
from remat.frameworks.torch.captured import at_rest, below, node_number
from remat.frameworks.torch.leaves import copied, late_summary, nbytes, quick_summary
from remat.frameworks.torch.meter import meter_for

if TYPE_CHECKING:
    from remat.frameworks.torch.loop import TorchStep

__all__ = ["Opened", "Tape", "TorchVerbs", "pull", "refuse_unknown"]

LOOSE = 0.1  # a tolerance that says nothing: over a long recorded range, chaos makes anything of a rounding error


@dataclass(slots=True)
class Tape:
    """A recorded range: what went in, and where gradients come in for what came out; None where none flows."""

    start: int
    stop: int
    carry_in: list[Any]
    captured: list[Any]
    xs: list[list[Any]] = field(default_factory=list)  # by step, then by leaf
    ys: list[list[Any]] = field(default_factory=list)
    carry_out: list[Any] = field(default_factory=list)
    bytes: int = 0


@dataclass
class Opened:
    """The first step, recorded before anything is planned: how it behaves, and its results, used when it is its turn."""

    tape: Tape
    carry: Any
    y: Any
    number: int  # the least of its nodes' numbers


class TorchVerbs:
    """Runs and records the steps of one loop."""

    def __init__(self, step: "TorchStep", body: Body, captured: Sequence[Tensor]) -> None:
        self.step, self.body, self.captured = step, body, list(captured)
        self.flows, self.edges = step.flows, [get_gradient_edge(tensor) for tensor in self.captured]
        self.sources: Sequence[Source] = step.sources
        self.opened: Opened | None = None
        self.steps: int | None = None  # in all; known at the turn
        self.stand_ins: Sequence[Tensor] = ()  # for captured tensors, where fake ones are used
        self.weighing = False  # whether tapes are weighed while they are recorded
        self.cotangents: Sequence[Any] = ()  # of the outputs, by leaf; given at the turn
        self.xs_grads: list[Any] = []
        self.sums: list[Any] = [None] * len(self.captured)
        self._unfinished: Tape | None = None
        self._walked = 0

    def advance(self, state: Any, start: int, stop: int) -> Any:
        """The carry after steps start..stop-1."""
        states = [state]
        del state
        if self.opened is not None and start == 0:
            states[0] = self._outside(self.opened.carry)
            self._put(0, self.opened.y)
            self.opened, start = None, 1
        if start == stop:
            return states.pop()
        with self._guarded(states[0], start, stop), self.step.modes.on(grad=False), self._bound() as step:
            return self._outside(self.body.run(step, states.pop(), start, stop))

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Tape]:
        """The carry after steps start..stop-1, and the graph of all of them."""
        body = self.body
        states = [state]
        del state
        with (
            recomputing(body.done > start),
            self._guarded(states[0], start, stop),
            self.step.modes.on(grad=True),
            self._weighed(states[0]) as weigh,
            self._bound() as step,
        ):
            if self.opened is not None and start == 0:
                opened, self.opened = self.opened, None
                tape, carry, number, done = opened.tape, opened.carry, opened.number, 1
                self._take(tape, 0, opened.y)
                del opened
            else:
                number, done = self._due(start, stop), start
                roots = self._rooted(body.tree.apart(states.pop(), "carry"), self.flows.carry)
                tape, carry = Tape(start, stop, _wanting(roots), self.edges), body.tree.build(roots)
                del roots
            states.clear()
            tape.stop, self._unfinished = stop, tape
            for i in range(done, stop):
                carry = self._record_step(step, carry, i, tape)
            leaves = body.settle(carry, stop - 1)
            del carry
        tape.bytes += weigh()
        tape.carry_out = self._ends(leaves, self.flows.carry, body.names, stop - 1)
        if number:
            self._look_below(tape, leaves, number)
        self._unfinished = None
        return body.tree.build([self._outside_leaf(leaf) for leaf in leaves]), tape

    def open(self, state: Any) -> Opened:
        """Record the first step by itself: nothing is planned yet, and what wants a gradient is not known."""
        body, number = self.body, node_number()
        with (
            self._guarded(state, 0, 1),
            self.step.modes.on(grad=True),
            self._weighed(state) as weigh,
            self._bound() as step,
        ):
            roots = self._rooted(body.tree.apart(state, "carry"), self.flows.carry)
            tape = Tape(0, 1, _wanting(roots), self.edges)
            body.at = 0
            x = self._rooted([leaf[0] for leaf in body.inputs.leaves], self.flows.xs)
            tape.xs.append(_wanting(x))
            carry, y = self._called(step, body.tree.build(roots), body.inputs.tree.build(x), 0)
        tape.bytes = weigh()
        body.settle(carry, 0)
        if body.outputs.row(0) is not None:
            body.outputs.prepare(y, 0)
        return Opened(tape, carry, y, number)

    def _record_step(self, step: Any, carry: Any, i: int, tape: Tape) -> Any:
        body = self.body
        body.at = i
        x = self._rooted([leaf[i] for leaf in body.inputs.leaves], self.flows.xs)
        tape.xs.append(_wanting(x))
        carry, y = self._called(step, carry, body.inputs.tree.build(x), i)
        if i + 1 < tape.stop:
            body.settle(carry, i)
        self._take(tape, i, y)
        return carry

    def _called(self, step: Any, carry: Any, x: Any, i: int) -> tuple[Any, Any]:
        try:
            return pair(kit, step(carry, x), i)
        except RuntimeError as error:
            if "leaf Variable that requires grad is being used in an in-place" in str(error):
                raise _refuse_writing(f"step {i}", str(error)) from error
            self.body.add_note(error, carry)
            raise
        except Exception as error:
            self.body.add_note(error, carry)
            raise

    def _take(self, tape: Tape, i: int, y: Any) -> None:
        """Hold where the gradient of the output of step i comes in, and write the output if it is new."""
        outputs = self.body.outputs
        if outputs.row(i) is None:
            tape.ys.append([])
            return
        if outputs.tree is None:
            outputs.prepare(y, i)
        leaves = outputs.apart(y, i)
        tape.ys.append(self._ends(leaves, self.output_flows(), outputs.names, i))
        self._put(i, y)

    def output_flows(self) -> list[bool]:
        """Through which outputs gradients flow; all that can, where the first step was not recorded to find out."""
        specs = self.body.outputs.specs
        if len(self.flows.ys) != len(specs):
            self.flows.ys = [spec.differentiable for spec in specs]
        return self.flows.ys

    def _put(self, i: int, y: Any) -> None:
        body = self.body
        if body.outputs.row(i) is not None and (i >= body.done or not body.outputs.rows):
            assert body.outputs.tree is not None or i == 0
            with torch.no_grad():
                if i >= body.done:
                    body.outputs.put(i, y)
                body.y = body.outputs.tree.mapped(self._outside_leaf, y) if body.outputs.tree is not None else None
        body.done = max(body.done, i + 1)

    def pull_back(self, tape: Tape, cotangent: list[Any]) -> list[Any]:
        """The cotangent of the carry before the range; sums of captured tensors go on, those of inputs are written."""
        ends: list[Any] = []
        bars: list[Any] = []

        def add(end: Any, bar: Any) -> None:
            if end is not None and bar is not None:
                ends.append(end)
                bars.append(bar)

        for root, total in zip(tape.captured, self.sums, strict=True):
            add(root, total)
        for k, j in self.flows.twins.items():  # an output that is a leaf of the carry comes first in the plain loop
            if tape.start > 0 and self.cotangents and tape.carry_in[k] is not None:
                add(tape.carry_in[k], self._output_cotangent(tape.start - 1, j))
        last = tape.stop - 1 if tape.stop != self.steps else -1
        for i, row in enumerate(tape.ys, tape.start):
            for j, end in enumerate(row):
                if i != last or j not in self.flows.twins.values():
                    add(end, self._output_cotangent(i, j))
        for end, bar in zip(tape.carry_out, cotangent, strict=True):
            add(end, bar)
        roots = [*tape.carry_in, *tape.captured, *(root for row in tape.xs for root in row)]
        wanted = [root is not None for root in roots]
        found: list[Any] = [None] * len(roots)
        if ends and any(wanted):
            gradients = self.step.engine(self, ends, [root for root in roots if root is not None], bars)
            rest = iter(gradients)
            found = [next(rest) if want else None for want in wanted]
        size, count = len(tape.carry_in), len(tape.captured)
        for k, gradient in enumerate(found[size : size + count]):
            self.sums[k] = self.sums[k] if gradient is None else gradient
        rows = iter(found[size + count :])
        for i in range(tape.start, tape.stop):
            for held in self.xs_grads:
                gradient = next(rows)
                if gradient is not None:
                    held[i] = gradient
        return found[:size]

    def _output_cotangent(self, i: int, j: int) -> Any:
        row = self.body.outputs.row(i)
        if row is None or not self.cotangents or self.cotangents[j] is None:
            return None
        return self.cotangents[j][row]

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
            "outputs": self.body.outputs.leaves,
            "gradients": [leaf for leaf in (*self.xs_grads, *self.sums) if leaf is not None],
        }
        return {name: sum(map(nbytes, leaves)) for name, leaves in parts.items() if leaves}

    def partly(self) -> tuple[int, int]:
        """The step at which an error was raised; the tape up to it is not weighed."""
        self._unfinished = None
        return self.body.at, 0

    def meter(self) -> Any:
        """The meter of the device that the state is on."""
        return meter_for(self.devices)

    @property
    def devices(self) -> list[torch.device]:
        """Where the state and what is captured are."""
        tensors = [*self.captured, *self.body.inputs.leaves]
        return [spec.device for spec in self.body.specs if spec.device is not None] + [t.device for t in tensors]

    def summaries(self, state: Any, *, of_sizes: bool = False) -> list[Tensor]:
        """A number on the device for each leaf of the carry, and of the output that the last step put out with it."""
        return [late_summary(leaf, of_sizes=of_sizes) for leaf in self._watched(state)]

    def summary(self, state: Any) -> list[float]:
        """A number for each leaf of the carry, and of the output that the last step put out with it."""
        return [quick_summary(leaf) for leaf in self._watched(state)]

    def differ(self, state: Any, noted: Sequence[float], *, recorded: int) -> str | None:
        """The leaf that is not what was summed up, and by how much."""
        found = self.summary(state)
        if found == list(noted):
            return None
        return self.name_change(found, noted, [float(n) for n in self.summaries(state, of_sizes=True)], recorded)

    def name_change(
        self, found: Sequence[float], noted: Sequence[float], sizes: Sequence[float], recorded: int
    ) -> str | None:
        """The leaf whose summary is another than was noted, and by how much."""
        outputs = self.body.outputs
        names, specs = list(self.body.names), list(self.body.specs)
        for j in self._watched_outputs():
            names.append(outputs.names[j])
            specs.append(outputs.specs[j])
        for each in zip(found, noted, sizes, names, specs, strict=False):
            tolerance = each[4].eps ** (0.5 / recorded if recorded else 0.75)
            change = change_of(*each[:3], tolerance)
            if change and tolerance < LOOSE:
                return f"{each[3]} was another one by {change:.1g} of its size"
        return None

    def _watched(self, state: Any) -> list[Any]:
        outputs = self.body.outputs
        leaves = self.body.tree.apart(state, "carry")
        watched = self._watched_outputs()
        if watched:
            assert outputs.tree is not None
            last = outputs.tree.apart(self.body.y, "y")
            leaves += [last[j] for j in watched]
        return leaves

    def _watched_outputs(self) -> list[int]:
        """Outputs that every step puts out and that are no leaves of the carry."""
        outputs = self.body.outputs
        if outputs.tree is None or outputs.rows is not None:
            return []
        return [j for j in range(len(outputs.names)) if j not in self.flows.twins.values()]

    def _outside(self, carry: Any) -> Any:
        return self.body.tree.mapped(self._outside_leaf, carry)

    @staticmethod
    def _outside_leaf(leaf: Any) -> Any:
        return leaf.detach() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf

    @staticmethod
    def _rooted(leaves: Sequence[Any], flows: Sequence[bool]) -> list[Any]:
        """Leaves as the beginnings of a graph where gradients flow."""
        return [
            leaf.detach().requires_grad_() if flow and kit.flows(leaf) else leaf
            for leaf, flow in zip(leaves, flows, strict=True)
        ]

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
            ends.append(get_gradient_edge(leaf) if wants else None)
        return ends

    @contextmanager
    def _bound(self) -> Iterator[Any]:
        """The step, with what it captured in place."""
        with self.step.bind(self.captured) as step:
            yield step

    @contextmanager
    def _guarded(self, state: Any, start: int, stop: int) -> Iterator[None]:
        """A block in which steps must not write into what they are given."""
        given = [leaf for leaf in self.body.tree.apart(state, "carry") if isinstance(leaf, Tensor)]
        inputs = self.body.inputs.leaves
        del state
        watched = [leaf._version for leaf in (*given, *inputs)] if not self.step.bound else []
        names, held = [], given
        del given
        yield
        if watched and [leaf._version for leaf in (*held, *inputs)] != watched:
            names = [name for name, spec in zip(self.body.names, self.body.specs, strict=True) if spec.device]
            names += [f"xs ({k})" for k in range(len(inputs))]
            changed = [
                name
                for name, leaf, before in zip(names, (*held, *inputs), watched, strict=False)
                if leaf._version != before
            ]
            steps = f"step {start}" if stop == start + 1 else f"one of the steps {start} to {stop - 1}"
            raise _refuse_writing(steps, f"{', '.join(changed)} changed")

    @contextmanager
    def _weighed(self, state: Any) -> Iterator[Any]:
        """A block that records a tape; what it gives says how many bytes that holds beside what is there anyway."""
        if not self.weighing:
            yield lambda: 0
            return
        there = {t.untyped_storage()._cdata for t in (*self.captured, *self.stand_ins, *self.body.inputs.leaves)}
        held: dict[int, int] = {}
        sizes = {
            leaf.untyped_storage()._cdata: nbytes(leaf)
            for leaf in self.body.tree.apart(state, "carry")
            if isinstance(leaf, Tensor)
        }
        held.update(sizes)
        del state

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in there:
                held[storage._cdata] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield lambda: sum(held.values())

    def _due(self, start: int, stop: int) -> int:
        """The number of the next node if the graph of these steps is to be looked at: at powers of two, and always
        where the step could reach more than it used at first; else 0."""
        span = (stop - 1).bit_length() != (start - 1).bit_length() if start else True
        return node_number() if span or self.step.many else 0

    def _look_below(self, tape: Tape, leaves: Sequence[Any], number: int) -> None:
        """Raise a StepError if the steps use a tensor that wants a gradient and that is not known."""
        nodes = [end.node for end in (*tape.carry_out, *(end for row in tape.ys for end in row)) if end is not None]
        known = {get_gradient_edge(root) if isinstance(root, Tensor) else root for root in self._inputs_of(tape)}
        for (node, output), is_leaf in below(nodes, number).items():
            if GradientEdge(node, output) not in known:
                raise refuse_unknown(node, is_leaf, f"steps {tape.start} to {tape.stop - 1}")

    @staticmethod
    def _inputs_of(tape: Tape) -> Iterator[Any]:
        for root in (*tape.carry_in, *tape.captured, *(root for row in tape.xs for root in row)):
            if root is not None:
                yield root


def _wanting(roots: Sequence[Any]) -> list[Any]:
    return [root if isinstance(root, Tensor) and root.requires_grad else None for root in roots]


def pull(ends: Sequence[Any], roots: Sequence[Any], bars: Sequence[Any], captured: Sequence[Tensor]) -> Sequence[Any]:
    """The gradients of roots by one call of the engine; hooks of captured tensors are not called."""
    with at_rest(captured):
        return torch.autograd.grad(ends, roots, bars, allow_unused=True)


def refuse_unknown(node: Any, is_leaf: bool, steps: str) -> StepError:
    """What to say of a captured tensor that was not found."""
    what = f"a parameter of shape {list(node.variable.shape)}" if is_leaf else f"a tensor that {node.name()} made"
    return StepError(
        f"{steps} of the loop use {what} and that was not found in what the step closes over, so its gradient would be "
        "lost. Pass it through init or xs, or let the step close over it, or over the module that has it: closures, "
        "partials, attributes, items of lists and dicts, and globals are searched"
    )


def _refuse_writing(steps: str, what: str) -> StepError:
    return StepError(
        f"{steps} writes into what it is given ({what}): its input x, or a carry that is kept to be used again. Make a "
        "new tensor instead, as in h = h + dh for h += dh"
    )

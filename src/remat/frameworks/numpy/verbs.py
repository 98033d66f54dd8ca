"""The verbs of NumPy: steps run on plain arrays, recorded by autograd or pulled back by the user's own adjoint.

A state is the carry as the step takes and returns it. Gradients of inputs and captured values are gathered here.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from remat.errors import StepError
from remat.execute.rng import read_generators, set_generators
from remat.execute.tree import Mismatch, Tree
from remat.frameworks.numpy.body import Body, pair, refuse_box
from remat.frameworks.numpy.captured import Captured, Place
from remat.frameworks.numpy.leaves import copied, differ, nbytes, protected, summary
from remat.frameworks.numpy.tape import Sum, Tape, boxable, new_trace, pull_back, root, split, tape_size

__all__ = ["AdjointVerbs", "AutogradVerbs", "NumpyVerbs", "Wanted", "is_about_writing", "refuse_writing"]


class NumpyVerbs(ABC):
    """What both ways of recording share: advancing, copying, weighing and comparing states."""

    def __init__(self, step: "Captured | Any", body: Body, captured: list[Any], wanted: "Wanted") -> None:
        self.step, self.body, self.captured, self.wanted = step, body, captured, wanted
        self.writes = False  # whether the step was seen to write into its carry
        self._tried = False  # whether a step was run on plain arrays
        self.cotangents: Sequence[Any] = ()  # of the outputs, by leaf; given at the turn
        self.xs_grads: list[Any] = []
        self.captured_sums: list[Sum] = [None] * len(captured)

    def advance(self, state: Any, start: int, stop: int) -> Any:
        """The carry after steps start..stop-1."""
        while not self._tried and start < stop:
            state, start = self._try(state, start)
        if start == stop:
            return state
        try:
            if self.writes:
                return self._advance_writing(state, start, stop)
            with self.step.bind(self.captured) as step:
                try:
                    carry = [self.body.run(step, state, start, start + 1)]
                except ValueError as error:
                    if not is_about_writing(error):
                        raise
                    self.writes = True
                else:
                    del state  # what was given is not held while the other steps run
                    return self.body.run(step, carry.pop(), start + 1, stop)
            # A kept state is read-only, so it has not changed yet; begin again in the way that allows for writing.
            return self._advance_writing(state, start, stop)
        except ValueError as error:
            if is_about_writing(error):
                raise refuse_writing(error, self.body.at) from error
            raise

    def _try(self, state: Any, start: int) -> tuple[Any, int]:
        """Run a first step with care: see whether it writes into its carry, and set random numbers back if so."""
        self._tried = True
        outside = read_generators()
        try:
            with self.step.bind(self.captured) as step:
                return self.body.run(step, self._protected(state), start, start + 1), start + 1
        except ValueError as error:
            if not is_about_writing(error):
                raise
        self.writes = True
        set_generators(outside)
        return state, start

    @abstractmethod
    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Any]:
        """The carry after steps start..stop-1, and their tape."""

    @abstractmethod
    def pull_back(self, tape: Any, cotangent: list[Any]) -> list[Any]:
        """The cotangent of the carry before the tape's steps."""

    @abstractmethod
    def _advance_writing(self, state: Any, start: int, stop: int) -> Any:
        """Advance a step that writes into its carry, so that it does what it does when it is recorded."""

    def _protected(self, state: Any) -> Any:
        return self.body.tree.build([protected(leaf) for leaf in self.body.tree.apart(state, "carry")])

    def copy(self, state: Any) -> Any:
        """A private copy of a carry, which no step can write into."""
        return self.body.tree.build([copied(leaf) for leaf in self.body.tree.apart(state, "carry")])

    def size(self, value: Any) -> int:
        """Bytes of a carry, a tape or a cotangent."""
        if isinstance(value, Tape):
            return tape_size(value, [*self.captured, *self.body.inputs.leaves])
        return sum(map(nbytes, self.body.tree.apart(value, "carry")))

    def summary(self, state: Any) -> list[float]:
        """A number for each leaf of the carry, and of the output that the last step put out with it."""
        outputs = self.body.outputs
        leaves = self.body.tree.apart(state, "carry")
        if outputs.tree is not None and outputs.rows is None:
            leaves += outputs.tree.apart(self.body.y, "y")
        with np.errstate(all="ignore"):
            return [summary(leaf) for leaf in leaves]

    def differ(self, state: Any, noted: Sequence[float], *, recorded: bool) -> str | None:
        """The leaf that is not what was summed up, and by how much."""
        if self.summary(state) == list(noted):
            return None
        body, outputs = self.body, self.body.outputs
        leaves, names, specs = body.tree.apart(state, "carry"), body.names, body.specs
        if outputs.tree is not None and outputs.rows is None:
            leaves = leaves + outputs.tree.apart(body.y, "y")
            names, specs = names + outputs.names, specs + outputs.specs
        with np.errstate(all="ignore"):
            for leaf, name, spec, number in zip(leaves, names, specs, noted, strict=True):
                change = differ(leaf, number, spec.eps ** (0.5 if recorded else 0.75))
                if change:
                    return f"{name} was another one by {change:.1g} of its size"
        return None

    def _output_cotangents(self, i: int) -> list[Any] | None:
        """The cotangents of the output of step i by leaf, or None if it has none."""
        row = self.body.outputs.row(i)
        if row is None or not self.cotangents:
            return None
        return [None if cotangent is None else cotangent[row] for cotangent in self.cotangents]


class Wanted:
    """Which inputs of the loop want a gradient: leaves of xs, captured values. The carry always does."""

    def __init__(self, xs: Sequence[bool], captured: Sequence[bool]) -> None:
        self.xs, self.captured = list(xs), list(captured)


class AutogradVerbs(NumpyVerbs):
    """Records steps by autograd."""

    _recorded = False  # whether a step was recorded to see if that can be done

    def _try(self, state: Any, start: int) -> tuple[Any, int]:
        """Record the very first step: what autograd cannot record and what a step hides show before work is lost."""
        if self.body.done == 0 and not self._recorded:
            self._recorded = True
            return self.record(state, start, start + 1)[0], start + 1
        return super()._try(state, start)

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Any]:
        """The carry after steps start..stop-1, and the graph of all of them."""
        body, wanted = self.body, self.wanted
        with new_trace() as trace:
            leaves, roots = _boxed(body.tree.apart(state, "carry"), [True] * len(body.names), trace)
            captured, captured_roots = _boxed(self.captured, wanted.captured, trace)
            tape = Tape(start, stop, roots, captured_roots)
            carry, y = body.tree.build(leaves), None
            del state, leaves
            with self.step.bind(captured) as step:
                for i in range(start, stop):
                    body.at = i
                    inputs, roots = _boxed([leaf[i] for leaf in body.inputs.leaves], wanted.xs, trace)
                    tape.xs.append(roots)
                    carry, y = pair(self._called(step, carry, body.inputs.tree.build(inputs)), i)
                    ends = body.settle(carry, i)
                    tape.ys.append(self._output(y, i, trace))
        values, tape.carry_out = _unboxed(ends, body.names, trace)
        return body.tree.build(values), tape

    def _called(self, step: Callable[[Any, Any], Any], carry: Any, x: Any) -> Any:
        try:
            return step(carry, x)
        except TypeError as error:
            if not re.search(r"\b(Array|Sequence|Dict)Box\b", str(error)):
                self.body.add_note(error, carry)
                raise
            raise StepError(
                f"autograd cannot record step {self.body.at}: {error}. Use autograd.numpy for NumPy in the step, and "
                "make new arrays instead of writing into old ones; or give the step's adjoint as vjp="
            ) from error
        except Exception as error:
            if isinstance(error, ValueError) and is_about_writing(error):
                raise refuse_writing(error, self.body.at) from error
            self.body.add_note(error, carry)
            raise

    def _output(self, y: Any, i: int, trace: float) -> list[Any]:
        """The nodes of the output of step i, which is written if it is new."""
        body, outputs = self.body, self.body.outputs
        if outputs.row(i) is None:
            return []
        if outputs.tree is None:
            outputs.prepare(y, i)
        values, nodes = _unboxed(outputs.apart(y, i), outputs.names, trace)
        assert outputs.tree is not None
        body.y = outputs.tree.build(values)
        if i >= body.done:
            outputs.put(i, body.y)
            body.done = i + 1
        return nodes

    def pull_back(self, tape: Tape, cotangent: list[Any]) -> list[Any]:
        """The cotangent of the carry before the range; sums of captured values go on, those of inputs are written."""
        sums = {
            node: total
            for node, total in zip(tape.captured, self.captured_sums, strict=True)
            if node is not None and total is not None
        }
        groups = [_pairs(nodes, self._output_cotangents(i)) for i, nodes in enumerate(tape.ys, tape.start)]
        groups = [group for group in groups if group] + [_pairs(tape.carry_out, cotangent)]
        sums = pull_back(groups, sums)
        self.captured_sums = [
            sums.get(node, total) for node, total in zip(tape.captured, self.captured_sums, strict=True)
        ]
        for i, nodes in enumerate(tape.xs, tape.start):
            for gradient, node in zip(self.xs_grads, nodes, strict=True):
                if node in sums:
                    gradient[i] = sums[node][0]
        return [sums[node][0] if node in sums else None for node in tape.carry_in]

    def _advance_writing(self, state: Any, start: int, stop: int) -> Any:
        for i in range(start, stop):
            state = self.record(state, i, i + 1)[0]
        return state


class AdjointVerbs(NumpyVerbs):
    """Pulls steps back by the user's own adjoint; a tape is the carries that went into the steps."""

    def __init__(self, *args: Any, vjp: Callable[..., Any]) -> None:
        super().__init__(*args)
        self.vjp = vjp
        self.named: dict[str, list[Place]] = {}
        for place in self.step.places if any(self.wanted.captured) else ():
            known = self.named.setdefault(place.name, [])
            same = [other for other in known if other.keys == place.keys]
            if any(other.boxes != place.boxes for other in same):
                raise StepError(
                    f"the step closes over two variables that are called {place.name!r}: vjp cannot tell their "
                    "gradients apart, so give one of them another name"
                )
            known.extend([] if same else [place])

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Any]:
        """The carry after steps start..stop-1, and the carries before each of them."""
        carries = []
        for i in range(start, stop):
            carries.append(self.copy(state) if self.writes else self._protected(state))
            state = self.advance(state if self.writes else carries[-1], i, i + 1)
        return state, _Carries(start, stop, carries)

    def pull_back(self, tape: "_Carries", cotangent: list[Any]) -> list[Any]:
        """The cotangent of the carry before the range, by the adjoint of each of its steps."""
        body = self.body
        with self.step.bind(self.captured):
            for i in reversed(range(tape.start, tape.stop)):
                bar = body.tree.build([_or_zeros(part, spec) for part, spec in zip(cotangent, body.specs, strict=True)])
                out = self.vjp(tape.carries.pop(), body.inputs.at(i), bar, self._output_bar(i))
                cotangent = self._gather(out, i)
        return cotangent

    def size(self, value: Any) -> int:
        """Bytes of a carry, a tape or a cotangent."""
        return sum(map(super().size, value.carries)) if isinstance(value, _Carries) else super().size(value)

    def _advance_writing(self, state: Any, start: int, stop: int) -> Any:
        own = self.body.tree.build(
            [
                np.array(leaf, order="K") if isinstance(leaf, np.ndarray) else leaf
                for leaf in self.body.tree.apart(state, "carry")
            ]
        )
        del state
        with self.step.bind(self.captured) as step:
            return self.body.run(step, own, start, stop)

    def _output_bar(self, i: int) -> Any:
        outputs, parts = self.body.outputs, self._output_cotangents(i)
        if outputs.tree is None or outputs.row(i) is None:
            return None
        parts = parts or [None] * len(outputs.specs)
        return outputs.tree.build([_or_zeros(part, spec) for part, spec in zip(parts, outputs.specs, strict=True)])

    def _gather(self, out: Any, i: int) -> list[Any]:
        """Take in what the adjoint of step i returned, and give back the cotangent of its carry."""
        if not isinstance(out, tuple) or len(out) not in (2, 3):
            raise StepError(
                f"vjp must return (carry_bar, x_bar) or (carry_bar, x_bar, {{name: gradient}}), and for step {i} it "
                f"returned a {type(out).__name__}" + (f" of {len(out)}" if isinstance(out, tuple) else "")
            )
        body, inputs = self.body, self.body.inputs
        wanted = [spec.differentiable for spec in body.specs]
        specs = [(spec.shape, spec.dtype) for spec in body.specs]
        cotangent = _gradients(out[0], body.tree, wanted, specs, f"carry_bar of step {i}")
        if any(self.wanted.xs):
            specs = [(leaf.shape[1:], leaf.dtype) for leaf in inputs.leaves]
            parts = _gradients(out[1], inputs.tree, self.wanted.xs, specs, f"x_bar of step {i}")
            for gradient, part in zip(self.xs_grads, parts, strict=True):
                if gradient is not None:
                    gradient[i] = part
        if self.named:
            self._gather_captured(out[2] if len(out) == 3 else {}, i)
        return cotangent

    def _gather_captured(self, named: Any, i: int) -> None:
        missing = [name for name in self.named if not isinstance(named, dict) or name not in named]
        unknown = [name for name in named if name not in self.named] if isinstance(named, dict) else []
        if missing or unknown:
            found = [f"none for {', '.join(missing)}"] if missing else []
            found += [f"one for {', '.join(map(str, unknown))}, which is not among them"] if unknown else []
            raise StepError(
                f"gradients are wanted of what the step closes over, {', '.join(self.named)}, and at step {i} vjp "
                f"returned {' and '.join(found)}: return "
                f"(carry_bar, x_bar, {{{next(iter(self.named))!r}: its gradient, …}})"
            )
        for name, places in self.named.items():
            for place in places:
                where = f"gradient of {name} of step {i}"
                value = _item(named[name], place.keys, where)
                marks = [False] * place.tree.size
                specs: list[Any] = [None] * place.tree.size
                for at, number in place.boxes:
                    leaf = np.asarray(self.captured[number])
                    marks[at], specs[at] = True, (leaf.shape, leaf.dtype)
                parts = _gradients(value, place.tree, marks, specs, where)
                for at, number in place.boxes:
                    total = self.captured_sums[number]
                    self.captured_sums[number] = (parts[at] if total is None else total[0] + parts[at], False)


class _Carries:
    """The tape of steps with an adjoint of their own."""

    def __init__(self, start: int, stop: int, carries: list[Any]) -> None:
        self.start, self.stop, self.carries = start, stop, carries


def _boxed(leaves: Sequence[Any], wanted: Sequence[bool], trace: float) -> tuple[list[Any], list[Any]]:
    """Leaves as roots of a trace where that is wanted and possible, and their nodes."""
    pairs = [
        root(leaf, trace) if want and boxable(leaf) else (leaf, None) for leaf, want in zip(leaves, wanted, strict=True)
    ]
    return [box for box, _ in pairs], [node for _, node in pairs]


def _unboxed(leaves: Sequence[Any], names: Sequence[str], trace: float) -> tuple[list[Any], list[Any]]:
    """The values of leaves and their nodes; a value that is a box of another trace is refused."""
    pairs = [split(leaf, trace) for leaf in leaves]
    for (value, _), name in zip(pairs, names, strict=True):
        refuse_box(value, name)
    return [value for value, _ in pairs], [node for _, node in pairs]


def _pairs(nodes: Sequence[Any], cotangents: Sequence[Any] | None) -> list[tuple[Any, Any]]:
    """The nodes that have a cotangent, with it."""
    found = zip(nodes, cotangents or (), strict=bool(cotangents))
    return [(node, part) for node, part in found if node is not None and part is not None]


def refuse_writing(error: ValueError, i: int) -> StepError:
    """What to say of a step that writes where it must not."""
    return StepError(
        f"step {i} writes into an array that it must not change ({error}): its input x, or a carry that is kept to be "
        "used again. Make a new array instead, as in h = h + dh for h += dh"
    )


def is_about_writing(error: ValueError) -> bool:
    """Whether NumPy, or what takes its buffers, complains of an array that cannot be written into."""
    return bool(re.search(r"(array|destination) is read-only$", str(error)))


def _or_zeros(part: Any, spec: Any) -> Any:
    """A cotangent as an array; None for a leaf that has none, such as an integer."""
    if not spec.differentiable:
        return None
    return np.zeros(spec.shape, spec.dtype) if part is None else part


def _gradients(value: Any, tree: Tree, wanted: Sequence[bool], specs: Sequence[Any], where: str) -> list[Any]:
    """The leaves of a gradient that a user's adjoint returned, as arrays of their own; None for what is not wanted."""
    name = where.partition(" of step")[0]
    try:
        parts = tree.apart(value, name, gaps=True)
    except Mismatch as mismatch:
        raise StepError(f"vjp returned another structure: {mismatch} ({where})") from None
    names = tree.names(name)
    return [
        _checked(part, spec[0], spec[1], leaf_name, where) if want else None
        for part, want, spec, leaf_name in zip(parts, wanted, specs, names, strict=True)
    ]


def _checked(part: Any, shape: tuple[int, ...], dtype: Any, name: str, where: str) -> Any:
    if part is None:
        raise StepError(f"vjp returned None for {name}, of which a gradient is wanted ({where}); zeros are numpy.zeros")
    part = np.array(part)
    if part.shape != shape:
        raise StepError(f"the {where} has shape {list(part.shape)} instead of {list(shape)} ({name})")
    if not np.can_cast(part.dtype, dtype, "same_kind"):
        raise StepError(f"the {where} has dtype {part.dtype} instead of {dtype} ({name})")
    return part.astype(dtype, copy=False)


def _item(value: Any, keys: Sequence[Any], where: str) -> Any:
    try:
        for key in keys:
            value = value[key]
    except (LookupError, TypeError):
        raise StepError(f"the {where} has nothing at {''.join(f'[{key!r}]' for key in keys)}") from None
    return value

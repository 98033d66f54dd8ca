"""Steps pulled back by the user's own adjoint: a tape is the carries that went into them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from remat.closures.closure_search import CapturedReference
from remat.errors import StepError
from remat.execute.gradients import Gradients
from remat.frameworks.numpy.backend import NumpyBackend
from remat.frameworks.numpy.leaves import copy
from remat.pytree import StructureMismatch, TreeDef

__all__ = ["CustomVjpBackend"]


class CustomVjpBackend(NumpyBackend):
    """Pulls steps back by the user's own adjoint; a tape is the carries that went into the steps."""

    def __init__(self, *args: Any, vjp: Callable[..., Any]) -> None:
        super().__init__(*args)
        self.vjp = vjp
        self.named: dict[str, list[CapturedReference]] = {}
        self.aliases: dict[str, str] = {}  # names by which only the adjoint knows a variable of the step
        known_boxes: dict[int, str] = {}
        for place in self.step.references if any(self.needs_grad.captured) else ():
            numbers = [number for _, number in place.values]
            if place.name not in self.named and all(number in known_boxes for number in numbers):
                self.aliases[place.name] = known_boxes[numbers[0]]
                continue
            known_boxes |= {number: place.name for number in numbers if number not in known_boxes}
            known = self.named.setdefault(place.name, [])
            same = [other for other in known if other.keys == place.keys]
            if any(other.values != place.values for other in same):
                raise StepError(
                    f"the step closes over two variables that are called {place.name!r}: vjp cannot tell their "
                    "gradients apart, so give one of them another name"
                )
            known.extend([] if same else [place])

    def record(self, state: Any, start: int, stop: int) -> tuple[Any, Any]:
        """The carry after steps start..stop-1, and the carries before each of them."""
        carries: list[Any] = []
        self.partial_tape = _Carries(start, stop, carries)
        for i in range(start, stop):
            carries.append(self.copy(state) if self.writes else self._protected(state))
            state = self.advance(state if self.writes else carries[-1], i, i + 1)
        tape, self.partial_tape = self.partial_tape, None
        return state, tape

    def pull_back(self, tape: "_Carries", gradients: Gradients) -> Gradients:
        """The gradients before the range, by the user's vjp of each of its steps."""
        runner, carry_bar = self.runner, gradients.carry
        with self.step.rebind(self.captured):
            for i in reversed(range(tape.start, tape.stop)):
                bar = runner.tree.unflatten(
                    [_or_zeros(part, spec) for part, spec in zip(carry_bar, runner.specs, strict=True)]
                )
                out = self.vjp(tape.carries.pop(), runner.inputs.row(i), bar, self._output_bar(gradients.outputs, i))
                carry_bar = self._accumulate(out, i, gradients)
        return replace(gradients, carry=carry_bar)

    def size(self, value: Any) -> int:
        """Bytes of a carry, a tape or a cotangent."""
        return sum(map(super().size, value.carries)) if isinstance(value, _Carries) else super().size(value)

    def _advance_writing(self, state: Any, start: int, stop: int) -> Any:
        state = self.runner.tree.map(copy, state)
        with self.step.rebind(self.captured) as step:
            return self.runner.run(step, state, start, stop)

    def _output_bar(self, cotangents: Sequence[Any], i: int) -> Any:
        outputs, parts = self.runner.outputs, self._output_cotangents(cotangents, i)
        if outputs.tree is None or outputs.row_of(i) is None:
            return None
        parts = parts or [None] * len(outputs.specs)
        return outputs.tree.unflatten([_or_zeros(part, spec) for part, spec in zip(parts, outputs.specs, strict=True)])

    def _accumulate(self, out: Any, i: int, gradients: Gradients) -> list[Any]:
        """Add what the user's vjp of step i returned to the gradients; the cotangent of the carry before it."""
        if not isinstance(out, tuple) or len(out) not in (2, 3):
            raise StepError(
                f"vjp must return (carry_bar, x_bar) or (carry_bar, x_bar, {{name: gradient}}), and for step {i} it "
                f"returned a {type(out).__name__}" + (f" of {len(out)}" if isinstance(out, tuple) else "")
            )
        runner, inputs = self.runner, self.runner.inputs
        wanted = [spec.differentiable for spec in runner.specs]
        specs = [(spec.shape, spec.dtype) for spec in runner.specs]
        cotangent = _gradients(out[0], runner.tree, wanted, specs, f"carry_bar of step {i}")
        if any(self.needs_grad.xs):
            specs = [(leaf.shape[1:], leaf.dtype) for leaf in inputs.leaves]
            parts = _gradients(out[1], inputs.tree, self.needs_grad.xs, specs, f"x_bar of step {i}")
            for gradient, part in zip(gradients.xs, parts, strict=True):
                if gradient is not None:
                    gradient[i] = part
        if self.named:
            self._accumulate_captured(out[2] if len(out) == 3 else {}, i, gradients.captured)
        return cotangent

    def _accumulate_captured(self, named: Any, i: int, sums: list[Any]) -> None:
        if isinstance(named, dict):
            for alias in [name for name in named if self.aliases.get(name, name) not in named]:
                named = {**named, self.aliases[alias]: named[alias]}
                del named[alias]
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
                for at, number in place.values:
                    leaf = np.asarray(self.captured[number])
                    marks[at], specs[at] = True, (leaf.shape, leaf.dtype)
                parts = _gradients(value, place.tree, marks, specs, where)
                for at, number in place.values:
                    total = sums[number]
                    sums[number] = (parts[at] if total is None else total[0] + parts[at], False)


class _Carries:
    """The tape of steps with an adjoint of their own."""

    def __init__(self, start: int, stop: int, carries: list[Any]) -> None:
        self.start, self.stop, self.carries = start, stop, carries


def _or_zeros(part: Any, spec: Any) -> Any:
    """A cotangent as an array; None for a leaf that has none, such as an integer."""
    if not spec.differentiable:
        return None
    return np.zeros(spec.shape, spec.dtype) if part is None else part


def _gradients(value: Any, tree: TreeDef, wanted: Sequence[bool], specs: Sequence[Any], where: str) -> list[Any]:
    """The leaves of a gradient that a user's adjoint returned, as arrays of their own; None for what is not wanted."""
    name = where.partition(" of step")[0]
    try:
        parts = tree.flatten_like(value, name, allow_none=True)
    except StructureMismatch as mismatch:
        raise StepError(f"vjp returned another structure: {mismatch} ({where})") from None
    names = tree.paths(name)
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

"""The backend whose steps are pulled back by the user's `vjp=`: a tape is the carries before each of its steps."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from remat.closures.captures import CapturedReference
from remat.errors import StepError
from remat.execute.gradients import Gradients
from remat.frameworks.numpy.loops.backend import NumpyBackend
from remat.pytree import Leaf, PyTree, StructureMismatch, TreeDef

__all__ = ["CustomVjpBackend"]


class CustomVjpBackend(NumpyBackend):
    """Advances on plain arrays, records carries, pulls back by the user's VJP of a step.

    That VJP returns gradients of captured values by variable name. `named` maps these names to the captured references.
    """

    def __init__(self, *args: PyTree, vjp: Callable[..., PyTree], **options: PyTree) -> None:
        super().__init__(*args, **options)
        self.vjp = vjp
        self.named: dict[str, list[CapturedReference]] = {}
        self.aliases: dict[str, str] = {}  # further names of a captured value, to the first one
        names: dict[int, str] = {}  # by the index of a captured value: the first variable that refers to it
        for reference in self.step.references if any(self.needs_grad.captured) else ():
            indices = [index for _, index in reference.values]
            if reference.name not in self.named and all(index in names for index in indices):
                self.aliases[reference.name] = names[indices[0]]
                continue
            names |= {index: reference.name for index in indices if index not in names}
            references = self.named.setdefault(reference.name, [])
            same = [other for other in references if other.keys == reference.keys]
            if any(other.values != reference.values for other in same):
                raise StepError(
                    f"the step closes over two variables that are called {reference.name!r}: vjp cannot tell their "
                    "gradients apart, so give one of them another name"
                )
            references.extend([] if same else [reference])

    def record(self, state: PyTree, start: int, stop: int) -> tuple[PyTree, PyTree]:
        """The carry after steps start..stop-1, and the carries before each of them."""
        carries: list[PyTree] = []
        self.partial_tape = _Carries(start, stop, carries)
        for i in range(start, stop):
            # A copy, since a step may return an array into which it writes in the next step. It takes no more memory
            # than the carry that it replaces.
            carries.append(self.copy(state))
            state = self.advance(carries[-1], i, i + 1)
        # Only now: if a step raises, `failed_at` counts the partial tape.
        tape, self.partial_tape = self.partial_tape, None
        return state, tape

    def pull_back(self, tape: "_Carries", gradients: Gradients) -> Gradients:
        """The gradients before the range, by the user's vjp of each of its steps."""
        runner, carry_bar = self.runner, gradients.carry
        gradients = replace(gradients, carry=None)  # so that the cotangent is freed after the step that uses it
        with self.step.rebind(self.captured):
            for i in reversed(range(tape.start, tape.stop)):
                bar = runner.tree.unflatten(
                    [_or_zeros(leaf, spec) for leaf, spec in zip(carry_bar, runner.specs, strict=True)]
                )
                out = self.vjp(tape.carries.pop(), runner.inputs.row(i), bar, self._output_bar(gradients.outputs, i))
                carry_bar = self._accumulate(out, i, gradients)
        return replace(gradients, carry=carry_bar)

    def size(self, value: Leaf) -> int:
        """Bytes of a carry, a tape or a cotangent."""
        return sum(map(super().size, value.carries)) if isinstance(value, _Carries) else super().size(value)

    def _output_bar(self, cotangents: Sequence[Leaf], i: int) -> PyTree:
        outputs, leaves = self.runner.outputs, self._output_cotangents(cotangents, i)
        if outputs.tree is None or outputs.row_of(i) is None:
            return None
        leaves = leaves or [None] * len(outputs.specs)
        return outputs.tree.unflatten([_or_zeros(leaf, spec) for leaf, spec in zip(leaves, outputs.specs, strict=True)])

    def _accumulate(self, out: PyTree, i: int, gradients: Gradients) -> list[Leaf]:
        """Add the results of the user's VJP of step i to the gradients; return the cotangent of the carry before it."""
        if not isinstance(out, tuple) or len(out) not in (2, 3):
            raise StepError(
                f"vjp must return (carry_bar, x_bar) or (carry_bar, x_bar, {{name: gradient}}), and for step {i} it "
                f"returned a {type(out).__name__}" + (f" of {len(out)}" if isinstance(out, tuple) else "")
            )
        runner, inputs = self.runner, self.runner.inputs
        differentiable = [spec.differentiable for spec in runner.specs]
        specs = [(spec.shape, spec.dtype) for spec in runner.specs]
        cotangent = _gradients(out[0], runner.tree, differentiable, specs, f"carry_bar of step {i}")
        if any(self.needs_grad.xs):
            specs = [(leaf.shape[1:], leaf.dtype) for leaf in inputs.leaves]
            x_bar = _gradients(out[1], inputs.tree, self.needs_grad.xs, specs, f"x_bar of step {i}")
            for gradient, row in zip(gradients.xs, x_bar, strict=True):
                if gradient is not None:
                    gradient[i] = row
        if self.named:
            self._accumulate_captured(out[2] if len(out) == 3 else {}, i, gradients.captured)
        return cotangent

    def _accumulate_captured(self, named: PyTree, i: int, sums: list[Leaf]) -> None:
        """Add the gradients that the user's VJP of step i returned by variable name to the sums of captured values."""
        if isinstance(named, dict):
            for alias in [name for name in named if self.aliases.get(name, name) not in named]:
                named = {**named, self.aliases[alias]: named[alias]}
                del named[alias]
        missing = [name for name in self.named if not isinstance(named, dict) or name not in named]
        unknown = [name for name in named if name not in self.named] if isinstance(named, dict) else []
        if missing or unknown:
            returned = [f"none for {', '.join(missing)}"] if missing else []
            returned += [f"one for {', '.join(map(str, unknown))}, which is not among them"] if unknown else []
            raise StepError(
                f"the step closes over {', '.join(self.named)}, whose gradients are needed, and at step {i} vjp "
                f"returned {' and '.join(returned)}: return "
                f"(carry_bar, x_bar, {{{next(iter(self.named))!r}: its gradient, …}})"
            )
        for name, references in self.named.items():
            for reference in references:
                where = f"gradient of {name} of step {i}"
                value = _item(named[name], reference.keys, where)
                needs_grad = [False] * reference.tree.size
                specs: list[Leaf] = [None] * reference.tree.size
                for at, index in reference.values:
                    leaf = np.asarray(self.captured[index])
                    needs_grad[at], specs[at] = True, (leaf.shape, leaf.dtype)
                leaves = _gradients(value, reference.tree, needs_grad, specs, where)
                for at, index in reference.values:
                    total = sums[index]
                    sums[index] = (leaves[at] if total is None else total[0] + leaves[at], False)


class _Carries:
    """The tape of a range: the carry before each of its steps."""

    def __init__(self, start: int, stop: int, carries: list[Leaf]) -> None:
        self.start, self.stop, self.carries = start, stop, carries


def _or_zeros(cotangent: Leaf, spec: PyTree) -> PyTree:
    """A cotangent, or zeros if it is None; None for a leaf that is not differentiable, such as an integer."""
    if not spec.differentiable:
        return None
    return np.zeros(spec.shape, spec.dtype) if cotangent is None else cotangent


def _gradients(value: Leaf, tree: TreeDef, needs_grad: Sequence[bool], specs: Sequence[Leaf], where: str) -> list[Leaf]:
    """The leaves of a gradient that a user's VJP returned, checked and copied; None where no gradient is needed."""
    name = where.partition(" of step")[0]
    try:
        leaves = tree.flatten_like(value, name, allow_none=True)
    except StructureMismatch as mismatch:
        raise StepError(f"vjp returned another structure: {mismatch} ({where})") from None
    names = tree.paths(name)
    return [
        _checked(leaf, spec[0], spec[1], leaf_name, where) if needed else None
        for leaf, needed, spec, leaf_name in zip(leaves, needs_grad, specs, names, strict=True)
    ]


def _checked(gradient: Leaf, shape: tuple[int, ...], dtype: Leaf, name: str, where: str) -> PyTree:
    """A copy of a gradient if its shape and dtype fit; else a StepError."""
    if gradient is None:
        raise StepError(f"vjp returned None for {name}, whose gradient is needed ({where}); for zeros give numpy.zeros")
    gradient = np.array(gradient)
    if gradient.shape != shape:
        raise StepError(f"the {where} has shape {list(gradient.shape)} instead of {list(shape)} ({name})")
    if not np.can_cast(gradient.dtype, dtype, "same_kind"):
        raise StepError(f"the {where} has dtype {gradient.dtype} instead of {dtype} ({name})")
    return gradient.astype(dtype, copy=False)


def _item(value: Leaf, keys: Sequence[Leaf], where: str) -> PyTree:
    """The value at these keys of nested containers, or a StepError if there is none."""
    try:
        for key in keys:
            value = value[key]
    except (LookupError, TypeError):
        raise StepError(f"the {where} has nothing at {''.join(f'[{key!r}]' for key in keys)}") from None
    return value

"""Activity: which leaves of carry, inputs and outputs depend on a tensor that requires a gradient.

The rule: a floating leaf may become active in any step, and none counts as constant unless it was shown to be. The
first step predicts what is active after any number of steps (probe.py). Each step that runs with a graph may add to
that. As long as a floating leaf is not active, all steps of the first sweep run with a graph, which is dropped when the
step ends. So at the end of the first sweep a leaf is active if it was active after any step, as in the plain loop.

What it can miss: a recomputed step that shows a leaf active which never was before; that is an error. A Python number
that becomes a tensor in a step without a graph counts as active, whether or not it is. The cost: nothing if all
floating leaves are active; otherwise, in the first sweep, building the graph of one step at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from torch import Tensor

from remat.errors import StepError
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.leaves import TensorSpec, detached, require_grad_roots
from remat.loops.step_runner import StepRunner, unpack_output
from remat.pytree import Leaf, PyTree, StructureMismatch, TreeDef, flatten

__all__ = ["Activity", "ActivityTracker", "with_roots", "without_graph"]

Step: TypeAlias = Callable[[PyTree, PyTree], PyTree]
Specs: TypeAlias = list[TensorSpec]


@dataclass(frozen=True)
class Activity:
    """Which leaves are active: they depend on a tensor that requires a gradient, so they may have a cotangent.

    `aliases[k] = j`: carry leaf k *is* output leaf j (the step returns one tensor as both), so that its cotangents must
    be added in the order of plain autograd, see `TorchBackend.pull_back`.
    `first[k]`: leaf k of the first carry requires a gradient. The gradients of the others are not requested, so that
    hooks on what only depends on them do not run, as in the plain loop. Empty if unknown.
    """

    carry: tuple[bool, ...]
    xs: tuple[bool, ...]
    ys: tuple[bool, ...] = ()
    aliases: Mapping[int, int] = field(default_factory=dict)
    first: tuple[bool, ...] = ()

    def widened(self, carry: Sequence[Leaf], ys: Sequence[Leaf]) -> "Activity":
        """The activity, with leaves that require a gradient here added; either argument may be empty."""
        wider_carry = tuple(map(_or_requires_grad, self.carry, carry)) if carry else self.carry
        wider_ys = tuple(map(_or_requires_grad, self.ys, ys)) if ys else self.ys
        if wider_carry == self.carry and wider_ys == self.ys:
            return self
        return replace(self, carry=wider_carry, ys=wider_ys)


def _promoted(active: tuple[bool, ...], before: Specs, after: Specs) -> tuple[bool, ...]:
    if len(before) != len(after):  # the first output that is kept: all of its leaves count as active
        return active
    return tuple(
        is_active or (old.weak and new.differentiable)
        for is_active, old, new in zip(active, before, after, strict=True)
    )


def _or_requires_grad(active: bool, leaf: Leaf) -> bool:
    return active or (isinstance(leaf, Tensor) and leaf.requires_grad)


class ActivityTracker:
    """The activity of one run, which steps may widen until the first sweep is over."""

    def __init__(self, activity: Activity, runner: StepRunner, *, closed: bool) -> None:
        self.activity, self.closed, self._runner = activity, closed, runner

    def close(self) -> Activity:
        """The activity at the end of the first sweep, which no longer changes."""
        self.output_activity()
        self.closed = True
        return self.activity

    def output_activity(self) -> tuple[bool, ...]:
        """Which outputs are active; all differentiable ones if the first step has not shown it."""
        specs = self._runner.outputs.specs
        if len(self.activity.ys) != len(specs):
            self.activity = replace(self.activity, ys=tuple(spec.differentiable for spec in specs))
        return self.activity.ys

    @property
    def undecided(self) -> bool:
        """Whether a floating leaf is not active so far."""
        specs = (*self._runner.specs, *self._runner.outputs.specs)
        active = (*self.activity.carry, *self.output_activity())
        return not self.closed and any(
            spec.differentiable and not is_active for spec, is_active in zip(specs, active, strict=True)
        )

    def specs(self) -> tuple[Specs, Specs]:
        """The specs of carry and outputs, for `note_promoted`."""
        return self._runner.specs, self._runner.outputs.specs

    def note_promoted(self, before: tuple[Specs, Specs]) -> None:
        """Count leaves as active that were Python numbers and have become tensors in a step without a graph."""
        carry, ys = self.specs()
        if carry is before[0] and ys is before[1]:  # the common case
            return
        self.activity = replace(
            self.activity,
            carry=_promoted(self.activity.carry, before[0], carry),
            ys=_promoted(self.output_activity(), before[1], ys),
        )

    def note(self, carry: Sequence[Leaf], ys: Sequence[Leaf], steps: str) -> None:
        """Widen the activity by the results of a step with a graph; after the first sweep that is a StepError."""
        if all(self.activity.carry) and all(self.activity.ys):  # nothing can be added
            return
        wider = self.activity.widened(carry, ys)
        if wider is self.activity:
            return
        if self.closed:
            names = [*self._runner.names, *self._runner.outputs.names]
            pairs = zip((*wider.carry, *wider.ys), (*self.activity.carry, *self.activity.ys), strict=True)
            name = next(name for name, (now, before) in zip(names, pairs, strict=False) if now and not before)
            raise StepError(
                f"gradients flow through {name} in {steps} now that it is recomputed, and did not when it was first "
                "run: the step does not repeat what it did. Call requires_grad_() on that leaf before the loop"
            )
        self.activity = wider

    def note_aliases(self, carry: PyTree, y: PyTree) -> None:
        """Drop the `aliases` if they held for the first step but do not hold for this one."""
        tree, outputs = self._runner.tree, self._runner.outputs.tree
        if self.closed or not self.activity.aliases or outputs is None:
            return
        leaves, ys = tree.flatten_like(carry, "carry"), outputs.flatten_like(y, "y")
        # One exception is enough: the order of addition applies to all steps or to none.
        if any(ys[j] is not leaves[k] for k, j in self.activity.aliases.items()):
            self.activity = replace(self.activity, aliases={})

    def observing(self, step: Step, *, graph: bool) -> Step:
        """The step with its results observed; with `graph` it runs with a graph, and its results are detached."""

        def observed(carry: PyTree, x: PyTree) -> PyTree:
            runner = self._runner
            # New roots for every step: the graph of a step is freed with it, and never joined to the next one.
            if graph:
                carry = with_roots(runner.tree, carry, self.activity.carry)
                x = with_roots(runner.inputs.tree, x, self.activity.xs)
            out = unpack_output(leaf_ops, step(carry, x), runner.current_step)
            try:
                self.note_aliases(*out)
                return self._detached_and_noted(*out) if graph else out
            except StructureMismatch:  # the runner reports what is wrong
                return out

        return observed

    def _detached_and_noted(self, carry: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        """The results of a step, detached from its graph, after noting their activity."""
        tree, outputs = self._runner.tree, self._runner.outputs
        leaves = tree.flatten_like(carry, "carry")
        ys, y_tree = flatten(y) if outputs.tree is None else (outputs.tree.flatten_like(y, "y"), outputs.tree)
        kept = outputs.tree is not None and outputs.row_of(self._runner.current_step) is not None
        self.note(leaves, ys if kept else (), f"step {self._runner.current_step}")
        return without_graph(tree, leaves, y_tree, ys)


def without_graph(tree: TreeDef, carry: Sequence[Leaf], y_tree: TreeDef, ys: Sequence[Leaf]) -> tuple[PyTree, PyTree]:
    """A carry and an output with these leaves, detached; a tensor that is in both stays one tensor."""
    detached_by_id = {id(leaf): detached(leaf) for leaf in (*carry, *ys)}
    return (
        tree.unflatten([detached_by_id[id(leaf)] for leaf in carry]),
        y_tree.unflatten([detached_by_id[id(leaf)] for leaf in ys]),
    )


def with_roots(tree: TreeDef, value: PyTree, active: Sequence[bool]) -> PyTree:
    """A carry or input whose active leaves are roots of a new graph."""
    return tree.unflatten(require_grad_roots(tree.flatten_like(value, "x"), active)) if any(active) else value

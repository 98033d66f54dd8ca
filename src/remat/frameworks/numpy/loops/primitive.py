"""Loops under autograd: one primitive for all loops, from flat leaves to flat leaves.

In: a `NumpyCall` (the step and the options of the call) and the leaves of init, xs and captured values, some of them
boxed. Out: the last carry and the outputs, which autograd differentiates: the first sweep runs when the primitive is
called, the reverse sweep in its VJP. Loops without a box do not come here (`scan.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from autograd.extend import primitive, vspace
from autograd.tracer import getval

from remat.errors import CarryError, StepError
from remat.execute import Interpreter
from remat.execute.determinism import DeterminismCheck
from remat.execute.rng_state import global_rng_states
from remat.execute.state_replay import preserved_state, set_states
from remat.execute.stop import Stopped
from remat.frameworks.numpy import leaves as leaf_ops
from remat.frameworks.numpy.escaped_values import mark_escaped, stored_numbers
from remat.frameworks.numpy.leaves import ArraySpec, copy, is_boxed
from remat.frameworks.numpy.loops.autograd_backend import AutogradBackend
from remat.frameworks.numpy.loops.backend import FirstStep, GradientMask, NumpyBackend
from remat.frameworks.numpy.loops.custom_vjp_backend import CustomVjpBackend
from remat.frameworks.numpy.loops.measure import measured
from remat.frameworks.numpy.multiple_results import PartlyTraced, Results
from remat.frameworks.numpy.protection import NotAsAutograd, StepMode, private_copies, protector, readonly_view
from remat.loops.loop_call import LoopCall
from remat.measuring import StepCost
from remat.pytree import Leaf, PyTree, TreeDef

__all__ = ["NumpyCall", "as_truth_value", "loop_primitive", "run"]


@dataclass
class NumpyCall(LoopCall[NumpyBackend]):
    """One call of a loop that autograd differentiates."""

    vjp: Callable[..., PyTree] | None = None  # the user's VJP of a step, if there is one
    mode: StepMode = StepMode.PLAIN
    first_step: FirstStep | None = None  # fingerprints of step 0 when it was measured or first run, if compared
    results: "LoopResult | None" = None

    def new_backend(self, leaves: Sequence[Leaf], steps: int) -> tuple[NumpyBackend, Any]:
        """A backend for that many steps on plain leaves, and the first carry."""
        init, xs, captured = self.split(leaves)
        protect = protector(self.carry) if self.mode is StepMode.PLAIN else private_copies(self.carry)
        runner = self.new_runner(leaf_ops, init, [readonly_view(leaf[:steps]) for leaf in xs], steps, protect)
        new = AutogradBackend if self.vjp is None else partial(CustomVjpBackend, vjp=self.vjp)
        needs_grad = GradientMask(*self.split(self.needs_grad))
        backend = new(self.step, runner, captured, needs_grad, mode=self.mode, first_step=self.first_step)
        return backend, self.carry.unflatten([readonly_view(leaf) for leaf in init])

    def run(self, leaves: Sequence[Leaf]) -> "LoopResult":
        """Run the first sweep and return its results; if a step cannot run in one mode, restart the loop in the next.

        A failed attempt has no effects: its arrays are read-only, and all other states are restored.
        """
        states = [*global_rng_states(), *self.step.replayable_states]
        before = [(state, state.get()) for state in states]
        given = self.plan  # a plan made in another mode is useless, since the costs of a step differ
        for mode in [*StepMode][self.step.mode.value :]:
            self.mode, self.plan = mode, given
            if mode is StepMode.PLAIN and self.vjp is None and self.step.may_write and self._boxes_differ(leaves):
                continue
            self.first_step = None if self.request.check == "never" else FirstStep()
            try:
                backend, interpreter = self.first_sweep(leaves)
                break
            except NotAsAutograd:
                if mode is StepMode.TRACED:
                    raise
                set_states(before)
            except (CarryError, Stopped):  # the caller may rerun the steps
                set_states(before)
                raise
        if self.request.check != "always":
            self.first_step = None  # sweeps for further cotangents are not compared
        self.results = LoopResult.of(backend, interpreter.take())
        return self.results

    def _boxes_differ(self, leaves: Sequence[Leaf]) -> bool:
        """Whether step 0 returns or stores other numbers on boxes, for which `t += x` makes a new array.

        What only later steps do is found when they are recomputed. This runs step 0 twice more than planned, without
        effects, and only if the step's code has such operators.
        """
        call, found = replace(self, first_step=None), []
        for run in (NumpyBackend.advance, AutogradBackend.record):
            with preserved_state(self.step.replayable_states):
                before = self.step.contents()
                backend, state = call.new_backend(leaves, 1)
                if self.steps == 0 or (self.cond is not None and not self.evaluate_cond(backend, state)):
                    return False
                try:
                    out = run(backend, state, 0, 1)  # type: ignore[arg-type]
                except NotAsAutograd:
                    return True
                after = out[0] if run is AutogradBackend.record else out
                found.append(backend.fingerprint(after) + stored_numbers(before))
        return found[0] != found[1]

    def forward_sweep(
        self, leaves: Sequence[Leaf], determinism: DeterminismCheck | None
    ) -> tuple[NumpyBackend, Interpreter[NumpyBackend]]:
        """Run the first sweep, up to the turn; outputs whose tape is not held will be compared when recomputed."""
        backend, interpreter = super().forward_sweep(leaves, determinism)
        # Steps whose tapes are all held are not recomputed.
        held = sum(stop - start for start, stop in interpreter.tapes)
        if determinism is not None and held != self.steps:
            backend.remember_outputs()
        return backend, interpreter

    def abandon(self) -> None:
        """Release the run that waits for a reverse sweep, since none will come."""
        self.pending = None

    def evaluate_cond(self, backend: NumpyBackend, carry: PyTree) -> bool:
        """Whether the condition holds for a carry."""
        assert self.cond is not None
        with self.step.rebind(backend.captured):
            return as_truth_value(self.cond(carry if backend.runner.protect is None else backend.runner.protect(carry)))

    def reverse(self, leaves: Sequence[Leaf], cotangents: Sequence[Leaf], indices: Sequence[int]) -> list[Leaf]:
        """The gradients of the leaves with these indices; a second reverse sweep first reruns the forward sweep."""
        with self.at_turn(leaves) as (backend, interpreter):
            return self._reverse(backend, interpreter, leaves, cotangents, indices)

    def _reverse(
        self,
        backend: NumpyBackend,
        interpreter: Interpreter[NumpyBackend],
        leaves: Sequence[Leaf],
        cotangents: Sequence[Leaf],
        indices: Sequence[int],
    ) -> list[Leaf]:
        assert self.results is not None
        carry, outputs = self.results.expand_cotangents(cotangents)
        gradients = interpreter.reverse(backend.new_gradients(carry, outputs, self.split(leaves)[1]))
        by_leaf = [*gradients.carry, *gradients.xs, *(total and total[0] for total in gradients.captured)]
        return [_zeros(leaves[i]) if by_leaf[i] is None else by_leaf[i] for i in indices]

    def measured(self, leaves: Sequence[Leaf]) -> StepCost:
        """The measured cost of a step."""
        # Further runs of step 0 are not compared with the first: measuring does not restore states between them.
        return measured(self, replace(self, first_step=None), leaves, (self.mode, self.vjp is not None))


def as_truth_value(answer: PyTree) -> bool:
    """A condition's result as a bool; a StepError if it is not a single truth value."""
    answer = getval(answer)
    if answer is None or np.size(answer) != 1:
        what = "None" if answer is None else f"{np.size(answer)} values"
        raise StepError(f"cond must return one truth value, and returned {what}; np.all and np.any make one of many")
    return bool(answer)


@dataclass
class LoopResult(PartlyTraced):
    """The leaves of the last carry and of the outputs."""

    specs: list[ArraySpec]
    carry_size: int
    outputs: TreeDef
    shapes: list[tuple[int, ...]]  # by leaf

    @classmethod
    def of(cls, backend: NumpyBackend, carry: PyTree) -> "LoopResult":
        """The results of a loop that has run to this last carry; outputs that hold kept states are read-only."""
        runner, shared = backend.runner, backend.shared_outputs
        # Copies, since a step may return an array of its own and write into it when it is recomputed.
        leaves = [copy(leaf) for leaf in runner.tree.flatten_like(carry, "carry")]
        specs = [*runner.specs, *runner.outputs.specs]
        tree = runner.outputs.tree if runner.outputs.tree is not None else TreeDef(type(None))
        outputs = [readonly_view(leaf) if j in shared else leaf for j, leaf in enumerate(runner.outputs.leaves)]
        all_leaves = [*leaves, *outputs]
        # Leaves that no gradient flows to are plain arrays, as they are in the plain program.
        active = [*backend.active(), *(True for _ in outputs)]
        differentiable = [spec.differentiable and is_active for spec, is_active in zip(specs, active, strict=True)]
        return cls(all_leaves, differentiable, specs, len(leaves), tree, [np.shape(leaf) for leaf in all_leaves])

    def expand_cotangents(self, cotangents: Sequence[Leaf]) -> tuple[list[Leaf], list[Leaf]]:
        """Cotangents for all leaves of the carry, and of the outputs; None where there is none."""
        rest = iter(cotangents)
        expanded = [next(rest) if active else None for active in self.differentiable]
        return expanded[: self.carry_size], expanded[self.carry_size :]

    def dense_cotangents(self, cotangents: Sequence[Leaf]) -> list[Leaf]:
        """The cotangents of the differentiable leaves, with zeros where there is none."""
        leaves = zip(self.shapes, self.specs, self.differentiable, strict=True)
        places = [(shape, spec.dtype) for shape, spec, active in leaves if active]
        pairs = zip(cotangents, places, strict=True)
        return [np.zeros(*place) if cotangent is None else cotangent for cotangent, place in pairs]


@primitive  # type: ignore[untyped-decorator]
def loop_primitive(call: NumpyCall, *leaves: PyTree) -> Results:
    """The differentiable results of a loop; `second_order.py` has its VJP and JVP."""
    return call.run(leaves).differentiable_leaves()


def run(call: NumpyCall, leaves: Sequence[Leaf]) -> tuple[PyTree, PyTree]:
    """The last carry and the outputs of a loop that has a box among its leaves."""
    # Outside the primitive, since only here are the leaves boxes of the caller's trace.
    before = call.step.contents()
    boxes = loop_primitive(call, *leaves)
    mark_escaped(before, [leaf for leaf in leaves if is_boxed(leaf)], call.request.place)
    results = call.results
    assert results is not None
    out = results.with_boxes(boxes)
    return call.carry.unflatten(out[: results.carry_size]), results.outputs.unflatten(out[results.carry_size :])


def _zeros(leaf: Leaf) -> PyTree:
    return vspace(leaf).zeros()

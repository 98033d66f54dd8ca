"""One call of a loop under autograd: its first sweep, in which inputs and activity are found, and its reverse sweeps.

In: the step and the options of the call, and the leaves of init, xs and captured tensors. Out: tensors in the first
sweep, gradients of the leaves in a reverse sweep; `function.py` turns them into nodes of the autograd graph.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any
from weakref import ReferenceType

from torch import Tensor

from remat.errors import StepError
from remat.execute.determinism import DeterminismCheck
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.internals.fsdp import fsdp_modules_called
from remat.frameworks.torch.internals.graph import (
    backward_hooks,
    is_wanted,
    leaf_itself,
    restored_leaf_state,
    will_get_gradient,
)
from remat.frameworks.torch.loops.activity import Activity, ActivityTracker
from remat.frameworks.torch.loops.agreement import agree, waiting_for
from remat.frameworks.torch.loops.analyzed_step import AnalyzedStep
from remat.frameworks.torch.loops.backend import TorchBackend
from remat.frameworks.torch.loops.comparison import DeviceDeterminismCheck
from remat.frameworks.torch.loops.first_step import FirstStep
from remat.frameworks.torch.loops.gradient_flow import check_unconnected
from remat.frameworks.torch.loops.left_by_steps import LeftBySteps
from remat.frameworks.torch.loops.loop_inputs import LoopInputs
from remat.frameworks.torch.loops.loop_outputs import LoopOutputs
from remat.frameworks.torch.loops.row_gradients import placed_like
from remat.frameworks.torch.loops.stored_graphs import guard_written
from remat.frameworks.torch.replay.input_versions import was_written_into
from remat.frameworks.torch.replay.tensor_state import Memory
from remat.loops.loop_call import LoopCall
from remat.measuring import StepCost
from remat.pytree import Leaf, PyTree

NOTHING_ACTIVE = Activity((), ())
MOST_NUMBERS = 128  # of fingerprints in a first sweep, which is interrupted for each of them

__all__ = ["TorchLoopCall"]


@dataclass
class TorchLoopCall(LoopCall[TorchBackend]):
    """One call of a loop that autograd differentiates."""

    activity: Activity = NOTHING_ACTIVE
    capture_ids: Sequence[int] = ()  # by input of the loop's node: its index in the closure, -1 if it is not there
    rebound: Sequence[bool] = ()  # by input: whether steps use a detached root in its place
    cut_off: frozenset[int] = frozenset()  # inputs that a step has computed, whose gradient would be lost
    written: Sequence[ReferenceType[Tensor]] = ()  # the caller's tensors that got a graph because steps wrote into them
    keeps_graphs: bool = False  # whether steps have stored tensors that the program may differentiate itself
    memory: Memory = ()  # by input: the memory in which the first sweep has found it
    unconnected: Sequence[bool] = ()  # by leaf of init and xs: whether no result of the first sweep depends on it
    fsdp_modules: Sequence[Any] = ()  # FSDP modules that steps call
    groups: Sequence[Any] = ()  # the process groups that steps wait for
    agreed: StepCost | None = None  # the cost of a step that waits for other processes, the same in all of them
    first_step: FirstStep | None = None  # until the first run takes it
    inputs: LoopInputs | None = None  # while the first sweep finds them
    results: LoopOutputs | None = None  # of the first sweep
    on_cpu: bool = True  # whether the whole carry is on the CPU
    batched: "TorchLoopCall | None" = None  # this call under torch.func.vmap
    # Under torch.func: makes the inputs from the values that wrapped tensors have below all transforms.
    inputs_below: Callable[[Sequence[Tensor]], LoopInputs] | None = None
    unwrapped: Sequence[Tensor] = ()  # under torch.func: the last inputs, which no transform knows

    def backend_on(
        self,
        leaves: Sequence[Leaf],
        steps: int,
        inputs: LoopInputs,
        first_step: FirstStep | None = None,
        *,
        measured: bool = False,
    ) -> tuple[TorchBackend, PyTree]:
        """A backend for that many steps with these inputs, and the first carry, detached."""
        init, xs, _ = self.split([leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves])
        runner = self.new_runner(leaf_ops, init, xs, steps)
        activity = self.activity if first_step is None else first_step.activity
        tracker = ActivityTracker(activity, runner, closed=inputs.closed)
        step = replace(self.step, left=LeftBySteps(self.step.contents.first, refused=False)) if measured else self.step
        backend = TorchBackend(step, runner, inputs, tracker, first_step, self.fsdp_modules, measured=measured)
        return backend, self.carry.unflatten(init)

    def new_backend(self, leaves: Sequence[Leaf], steps: int) -> tuple[TorchBackend, PyTree]:
        """A backend for that many steps, and the first carry, detached."""
        inputs = LoopInputs(self.split(leaves)[2], self.capture_ids, self.rebound, self.memory, closed=True)
        return self.backend_on(leaves, steps, inputs)

    def start(self, leaves: Sequence[Leaf]) -> tuple[TorchBackend, PyTree]:
        """The backend of a run; that of the first run takes the recorded first step."""
        # Taken once: a run for a second reverse sweep records its own first step.
        first_step, self.first_step = self.first_step, None
        if self.inputs is None:
            return super().start(leaves)
        return self.backend_on(leaves, self.steps or 0, self.inputs, first_step)

    def sweep_and_learn(self, leaves: Sequence[Leaf]) -> tuple[tuple[Tensor, ...], list[Leaf], LoopInputs]:
        """Run the first sweep after the first step; returns the results' tensors, the leaves, and the inputs used.

        Leaves on which no result depends are detached.
        """
        assert self.first_step is not None
        inputs, self.fsdp_modules = self.first_step.inputs, self.first_step.fsdp_modules
        self.groups = self.first_step.groups
        self.activity = self.first_step.activity
        state = sum(map(leaf_ops.nbytes, self.split(leaves)[0]))
        self.request, self.agreed = agree(self.request, self.steps, state, self.first_step)
        with (
            fsdp_modules_called(self.step.modules, self.first_step.fsdp_modules, first=False),
            waiting_for(self.groups, self.fsdp_modules, self.request.place),
        ):
            tensors = self._sweep_with(inputs, leaves)
        assert self.pending is not None
        if not self.fsdp_modules:  # they replace parameters themselves, so their graphs show nothing
            flow = self.pending[0].flow
            self.unconnected = flow.unconnected(self.steps or 0, outputs=any(self.activity.ys))
        pairs = zip_longest(leaves, self.unconnected)
        return tensors, [leaf_ops.detached(leaf) if out else leaf for leaf, out in pairs], inputs

    def sweep_below(self, leaves: Sequence[Leaf]) -> tuple[Tensor, ...]:
        """Run the first sweep of a loop in torch.func transforms, below all of them.

        Inputs wrapped by transforms are among the leaves. The others, `unwrapped`, become inputs of the loop's node in
        plain autograd; to a transform they are constants.
        """
        assert self.inputs_below is not None
        inputs, self.inputs_below = self.inputs_below(self.split(leaves)[2]), None
        wrapped = len(inputs.tensors)
        tensors = self._sweep_with(inputs, leaves[: sum(self.sizes)])
        self.unwrapped = inputs.tensors[wrapped:]
        return tensors

    def _sweep_with(self, inputs: LoopInputs, leaves: Sequence[Leaf]) -> tuple[Tensor, ...]:
        """Run the first sweep, in which the inputs may grow."""
        self.inputs = inputs
        with inputs.growing():
            leaves = [*leaves, *inputs.tensors]
            backend, interpreter = self.first_sweep(leaves)
            if interpreter.determinism is not None and not self.step.under_functorch:
                backend.remember_outputs()
            self.results, tensors = LoopOutputs.of(backend, interpreter.take(), leaves)
        self.inputs, self.capture_ids, self.rebound = None, inputs.capture_ids, inputs.rebound
        self.memory = inputs.memory
        self.step.contents.keep(inputs.left_by_steps)
        self.step.closure.restrict_to(set(inputs.capture_ids), inputs.bindings)
        self.activity = backend.activity
        return tensors

    def adopt(self, batched: "TorchLoopCall") -> LoopOutputs:
        """Take over what the loop for a whole batch has found out, and return its results."""
        assert batched.results is not None
        self.batched, self.results, self.activity = batched, batched.results, batched.activity
        self.capture_ids, self.rebound, self.unwrapped = batched.capture_ids, batched.rebound, batched.unwrapped
        # The loop of the whole batch has run in place of this one, and is the one that is pulled back.
        self.inputs_below = None
        self.plan, self.steps = batched.plan, batched.steps
        self.initial_rng, self.initial_states = batched.initial_rng, batched.initial_states
        return batched.results

    @property
    def vmap_levels(self) -> Sequence[int]:
        """The levels of the vmaps in which the loop runs, outermost first; steps run in as many vmaps of their own."""
        return self.step.levels if self.batched is None else self.batched.vmap_levels

    def unflatten_results(self, tensors: Sequence[Tensor]) -> tuple[PyTree, PyTree]:
        """The last carry and the outputs, with these tensors in their places."""
        assert self.results is not None
        carry, outputs = self.results.with_arrays(tensors)
        return self.carry.unflatten(carry), self.results.outputs and self.results.outputs.unflatten(outputs)

    def rebind(self, captured: Sequence[Tensor]) -> AbstractContextManager[Callable[..., Any]]:
        """The step with its rebound inputs bound to these tensors; those unknown to a transform are appended."""
        step: AnalyzedStep = self.step
        if len(captured) < len(self.capture_ids):
            captured = [*captured, *self.unwrapped]
        return step.rebind({k: tensor for k, tensor in zip(self.capture_ids, captured, strict=True) if k >= 0})

    def new_determinism_check(self) -> DeterminismCheck:
        """A check that compares states at once on the CPU, and at the end on other devices, to synchronize once."""
        if self.on_cpu:
            return DeterminismCheck(self.steps, MOST_NUMBERS, kept_only=self.request.runs_sections)
        return DeviceDeterminismCheck(self.steps)

    def evaluate_cond(self, backend: TorchBackend, carry: PyTree) -> bool:
        """Whether the condition holds for a carry."""
        assert self.cond is not None
        with self.step.autocast.active(grad=False):
            holds: bool = self.step.holds(self.cond, backend.inputs.bindings, carry)
            return holds

    def measured(self, leaves: Sequence[Leaf]) -> StepCost:
        """The cost of a step."""
        from remat.frameworks.torch.loops.measure import measured

        return measured(self, leaves)

    def as_not_frozen(self, leaves: Sequence[Leaf]) -> AbstractContextManager[None]:
        """A context in which inputs that were frozen since the first sweep require a gradient, as they did in it.

        In a plain loop the graph is already built by then: hooks of such a parameter are called, and only its `.grad`
        is left unchanged.
        """
        captured = () if self.step.under_functorch else self.split(leaves)[2]
        # Inside a segment they come back as other tensors, which keep the flags of the first sweep.
        frozen = [leaf for leaf in map(leaf_itself, captured) if not leaf.requires_grad]
        return restored_leaf_state([(leaf, True, backward_hooks(leaf)) for leaf in frozen]) if frozen else nullcontext()

    def reverse(
        self, leaves: Sequence[Leaf], asked: int, cotangents: Sequence[Leaf], batch: int | None = None
    ) -> list[Leaf]:
        """The gradients of leaves, None where there is none; a second reverse sweep runs forward again first.

        Only the gradients of the first `asked` leaves are requested. With `batch`, that many cotangents of each result
        are given, in axis 0, and gradients are returned likewise.
        """
        try:
            return self._reverse(leaves, asked, cotangents, batch)
        except (RuntimeError, StepError) as error:
            if asked == len(leaves) or not was_written_into(error):  # in plain autograd, the plain loop fails too
                raise
        # A step saves a tensor for the gradient of something that is a constant to the transforms, and modifies it.
        # Since they do not ask for that gradient, a plain loop would not notice.
        constants = [leaf_itself(tensor) for tensor in self.unwrapped]
        with restored_leaf_state([(tensor, False, {}) for tensor in constants]):
            return self._reverse(leaves, asked, cotangents, batch)

    def _reverse(self, leaves: Sequence[Leaf], asked: int, cotangents: Sequence[Leaf], batch: int | None) -> list[Leaf]:
        with ExitStack() as stack:
            stack.callback(
                guard_written, self.written, leaves, self.request.place
            )  # recomputed steps write into them again
            stack.enter_context(self.as_not_frozen(leaves))
            stack.enter_context(waiting_for(self.groups, self.fsdp_modules, self.request.place))
            backend, interpreter = stack.enter_context(self.at_turn(leaves))
            assert self.results is not None
            carry, outputs = self.results.expand_cotangents(cotangents)
            # The last leaf stands for sharded parameters.
            of_parameters = not self.fsdp_modules or will_get_gradient(leaves[-1])
            # Transforms request nothing of the engine by name, so everything that they differentiate counts as wanted.
            functorch = self.step.under_functorch
            wanted = [k < asked and (functorch or is_wanted(leaf)) for k, leaf in enumerate(leaves)]
            start = backend.new_gradients(
                carry,
                outputs,
                self.steps,
                batch,
                of_parameters=of_parameters,
                wanted=self.split(wanted),
                keep=self.keeps_graphs,
            )
            gradients = interpreter.reverse(start)
            if any(gradients.captured[k] is not None for k in self.cut_off):
                raise StepError(
                    "a step computes a tensor from its carry or its x and keeps it in an attribute, a container or a "
                    "variable, where later steps use it: its gradient would be lost there. Pass it through the carry"
                )
            xs = map(placed_like, self.split(leaves)[1], gradients.xs)
            by_leaf = [*gradients.carry, *xs, *gradients.captured]
            check_unconnected(leaves, by_leaf, self.unconnected)
            # The input that stands for sharded parameters was added after the first sweep, which does not know it.
            return [gradient for _, gradient in zip_longest(leaves, by_leaf)]

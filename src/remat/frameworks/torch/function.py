"""Loops under autograd: one autograd Function for all, from flat leaves to tensors.

In: a `TorchLoopCall` (the step and the options of the call) and the leaves of init, xs and captured tensors. Out: the
last carry and the outputs, which autograd differentiates: the first sweep runs in the forward, the reverse sweep in the
backward. That sweep is a Function too, so that transforms of torch.func apply to it, and so that it has a derivative
(`second_order.py`).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor

from remat.errors import StepError
from remat.execute.determinism import DeterminismCheck
from remat.execute.state_replay import preserved_state
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.activity import Activity, ActivityTracker
from remat.frameworks.torch.agreement import agree
from remat.frameworks.torch.analyzed_step import AnalyzedStep
from remat.frameworks.torch.backend import TorchBackend
from remat.frameworks.torch.comparison import DeviceDeterminismCheck
from remat.frameworks.torch.first_step import FirstStep
from remat.frameworks.torch.fsdp import fsdp_modules_called
from remat.frameworks.torch.functorch import in_transform
from remat.frameworks.torch.gradient_flow import check_unconnected
from remat.frameworks.torch.graph import backward_hooks, is_wanted, leaf_itself, restored_leaf_state, will_get_gradient
from remat.frameworks.torch.input_versions import was_written_into
from remat.frameworks.torch.loop_inputs import LoopInputs
from remat.frameworks.torch.loop_outputs import LoopOutputs, clone_aliases
from remat.frameworks.torch.stored_graphs import guard_written
from remat.frameworks.torch.tensor_state import Memory
from remat.frameworks.torch.untouched_leaves import gradient_of_unused, without_unused
from remat.loops.loop_call import LoopCall
from remat.measuring import StepCost
from remat.pytree import Leaf, PyTree

NOTHING_ACTIVE = Activity((), ())
MOST_NUMBERS = 128  # of fingerprints in a first sweep, which is interrupted for each of them

__all__ = ["LoopBackward", "LoopFunction", "TorchLoopCall", "run"]


@dataclass
class TorchLoopCall(LoopCall[TorchBackend]):
    """One call of a loop that autograd differentiates."""

    activity: Activity = NOTHING_ACTIVE
    capture_ids: Sequence[int] = ()  # by input of the loop's node: its index in the closure, -1 if it is not there
    rebound: Sequence[bool] = ()  # by input: whether steps use a detached root in its place
    cut_off: frozenset[int] = frozenset()  # the inputs whose gradient would be lost: a step has computed them
    written: Sequence[ReferenceType[Tensor]] = ()  # tensors of the caller's with a graph that steps have given them
    keeps_graphs: bool = False  # whether steps have stored tensors that the program may differentiate by itself
    memory: Memory = ()  # by input: in which memory the first sweep has found it
    unconnected: Sequence[bool] = ()  # by leaf of init and xs: whether no result of the first sweep depends on it
    fsdp_modules: Sequence[Any] = ()  # FSDP modules that steps call
    agreed: StepCost | None = None  # what a step costs that waits for other processes, the same in all of them
    first_step: FirstStep | None = None  # until the first run takes it
    inputs: LoopInputs | None = None  # while the first sweep finds them
    results: LoopOutputs | None = None  # of the first sweep
    on_cpu: bool = True  # whether all of the carry is on the CPU
    batched: "TorchLoopCall | None" = None  # this call under torch.func.vmap
    # Under torch.func: makes the inputs of the values that wrapped tensors have below all transforms.
    inputs_below: Callable[[Sequence[Tensor]], LoopInputs] | None = None
    unwrapped: Sequence[Tensor] = ()  # under torch.func: those inputs, the last ones, that no transform knows

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
        backend = TorchBackend(self.step, runner, inputs, tracker, first_step, self.fsdp_modules, measured=measured)
        return backend, self.carry.unflatten(init)

    def new_backend(self, leaves: Sequence[Leaf], steps: int) -> tuple[TorchBackend, PyTree]:
        """A backend for that many steps, and the first carry, detached."""
        inputs = LoopInputs(self.split(leaves)[2], self.capture_ids, self.rebound, self.memory, closed=True)
        return self.backend_on(leaves, steps, inputs)

    def start(self, leaves: Sequence[Leaf]) -> tuple[TorchBackend, PyTree]:
        """The backend of a run; that of the first one takes the step that was recorded."""
        # Taken once: a run for a second reverse sweep records its first step by itself.
        first_step, self.first_step = self.first_step, None
        if self.inputs is None:
            return super().start(leaves)
        return self.backend_on(leaves, self.steps or 0, self.inputs, first_step)

    def sweep_and_learn(self, leaves: Sequence[Leaf]) -> tuple[tuple[Tensor, ...], list[Leaf], LoopInputs]:
        """Run the first sweep after the first step; the tensors of the results, and what these depend on.

        That are the leaves, detached if no result depends on them, and all inputs that steps have used.
        """
        assert self.first_step is not None
        inputs, self.fsdp_modules = self.first_step.inputs, self.first_step.fsdp_modules
        self.activity = self.first_step.activity
        state = sum(map(leaf_ops.nbytes, self.split(leaves)[0]))
        self.request, self.agreed = agree(self.request, self.steps, state, self.first_step)
        with fsdp_modules_called(self.step.modules, self.first_step.fsdp_modules, first=False):
            tensors = self._sweep_with(inputs, leaves)
        assert self.pending is not None
        if not self.fsdp_modules:  # they exchange parameters by themselves: their graphs show nothing
            flow = self.pending[0].flow
            self.unconnected = flow.unconnected(self.steps or 0, outputs=any(self.activity.ys))
        pairs = zip_longest(leaves, self.unconnected)
        return tensors, [leaf_ops.detached(leaf) if out else leaf for leaf, out in pairs], inputs

    def sweep_below(self, leaves: Sequence[Leaf]) -> tuple[Tensor, ...]:
        """Run the first sweep of a loop in transforms of torch.func, below all of them.

        Inputs that transforms have wrapped are among the leaves. Others, `unwrapped`, become inputs of the loop's node
        in plain autograd: to a transform they are constants.
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
        """Take over what the loop for a whole batch has found out; its results."""
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
        """The levels of the vmaps in which the loop runs, from the outermost on; steps run in as many of their own."""
        return self.step.levels if self.batched is None else self.batched.vmap_levels

    def unflatten_results(self, tensors: Sequence[Tensor]) -> tuple[PyTree, PyTree]:
        """The last carry and the outputs with these as their tensors."""
        assert self.results is not None
        carry, outputs = self.results.with_arrays(tensors)
        return self.carry.unflatten(carry), self.results.outputs and self.results.outputs.unflatten(outputs)

    def rebind(self, captured: Sequence[Tensor]) -> AbstractContextManager[Callable[..., Any]]:
        """The step with these as the inputs of the loop's node that are rebound; a transform does not know all."""
        step: AnalyzedStep = self.step
        if len(captured) < len(self.capture_ids):
            captured = [*captured, *self.unwrapped]
        return step.rebind({k: tensor for k, tensor in zip(self.capture_ids, captured, strict=True) if k >= 0})

    def new_determinism_check(self) -> DeterminismCheck:
        """On the CPU states are compared at once, on other devices at the end, to synchronize once."""
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
        """What a step costs."""
        from remat.frameworks.torch.measure import measured

        return measured(self, leaves)

    def as_not_frozen(self, leaves: Sequence[Leaf]) -> AbstractContextManager[None]:
        """A block in which inputs that were frozen since the first sweep require a gradient, as they did in it.

        In a plain loop the graph has been built by then: hooks of such a parameter are called, and only its `.grad`
        stays as it is.
        """
        captured = () if self.step.under_functorch else self.split(leaves)[2]
        # Inside a segment they come back as others, which have kept the flags of the first sweep.
        frozen = [leaf for leaf in map(leaf_itself, captured) if not leaf.requires_grad]
        return restored_leaf_state([(leaf, True, backward_hooks(leaf)) for leaf in frozen]) if frozen else nullcontext()

    def reverse(
        self, leaves: Sequence[Leaf], asked: int, cotangents: Sequence[Leaf], batch: int | None = None
    ) -> list[Leaf]:
        """The gradients of leaves, None where there is none. A second reverse sweep runs forward again first.

        The first `asked` of the leaves are asked for. With `batch`, so many cotangents of each result are given, in
        axis 0, and gradients are returned so.
        """
        try:
            return self._reverse(leaves, asked, cotangents, batch)
        except (RuntimeError, StepError) as error:
            if asked == len(leaves) or not was_written_into(error):  # in plain autograd the plain loop fails, too
                raise
        # A step saves a tensor for the gradient of what is a constant to the transforms, and writes into it. As they do
        # not ask for that gradient, a plain loop would not notice.
        constants = [leaf_itself(tensor) for tensor in self.unwrapped]
        with restored_leaf_state([(tensor, False, {}) for tensor in constants]):
            return self._reverse(leaves, asked, cotangents, batch)

    def _reverse(self, leaves: Sequence[Leaf], asked: int, cotangents: Sequence[Leaf], batch: int | None) -> list[Leaf]:
        with ExitStack() as stack:
            stack.callback(guard_written, self.written, leaves)  # steps that run again write into them again
            stack.enter_context(self.as_not_frozen(leaves))
            backend, interpreter = stack.enter_context(self.at_turn(leaves))
            assert self.results is not None
            carry, outputs = self.results.expand_cotangents(cotangents)
            # The last leaf stands for sharded parameters.
            of_parameters = not self.fsdp_modules or will_get_gradient(leaves[-1])
            # Transforms ask the engine for nothing by name, so that all that they differentiate counts as wanted.
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
            by_leaf = [*gradients.carry, *gradients.xs, *gradients.captured]
            check_unconnected(leaves, by_leaf, self.unconnected)
            # The input that stands for sharded parameters was added after the first sweep, which does not know it.
            return [gradient for _, gradient in zip_longest(leaves, by_leaf)]


class LoopFunction(torch.autograd.Function):
    """A loop: leaves go in, tensors come out."""

    @classmethod
    def apply(cls, call: TorchLoopCall, swept: list[Tensor] | None, *leaves: Any) -> Any:
        """Attach the graph to the tensors of the first sweep; if that is to come, run it below all transforms."""
        if swept is None and not in_transform():
            swept = list(call.sweep_below(leaves))
            leaves = (*leaves, *call.unwrapped)
        return super().apply(call, swept, *leaves)  # type: ignore[no-untyped-call]

    @staticmethod
    def forward(call: TorchLoopCall, swept: list[Tensor], *leaves: Any) -> tuple[Tensor, ...]:
        """The tensors of the first sweep, which are taken out of the list `swept`."""
        tensors = tuple(swept)
        swept.clear()  # the caller's frame must not keep results alive
        return tensors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the leaves, from which a second reverse sweep would start; mark results that are not active."""
        ctx.call, _, *leaves = inputs
        call = ctx.call
        _save(ctx, leaves)
        pairs = zip(output, call.results.tensor_activity(), strict=True)
        ctx.mark_non_differentiable(*[tensor for tensor, active in pairs if not active])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Run the reverse sweep, as another Function."""
        leaves, bars = _saved(ctx), without_unused(cotangents)
        if all(bar is None for bar in bars) and any(bar is not None for bar in cotangents):
            # Steps would run their hooks. What is behind them is not used either, and gets such zeros in their place.
            pairs = zip(leaves, ctx.needs_input_grad[2:], strict=True)
            return None, None, *(leaf_ops.batched_zeros_like(leaf, None) if needed else None for leaf, needed in pairs)
        pairs = zip(leaves, LoopBackward.apply(ctx.call, None, len(leaves), len(leaves), *leaves, *bars), strict=True)
        return None, None, *(gradient_of_unused(leaf) if gradient is None else gradient for leaf, gradient in pairs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Raise a StepError: there is no forward mode."""
        raise StepError(
            "loops have no forward mode on PyTorch: use torch.func.grad or vjp, or write the loop plainly for jvp"
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], call: TorchLoopCall, swept: None, *leaves: Any) -> Any:
        """Run the loop for a whole batch."""
        return _vmap_rules().vmap_forward(info, dims[2:], call, leaves)


class LoopBackward(torch.autograd.Function):
    """The reverse sweep of a loop: leaves and cotangents go in, gradients of the leaves come out.

    With `batch` there are so many cotangents, and gradients, in axis 0: where only these are mapped, as by jacrev.
    """

    @classmethod
    def apply(cls, call: TorchLoopCall, batch: int | None, asked: int, count: int, *args: Any) -> Any:
        """The gradients of the first `asked` of `count` leaves, which come before the cotangents."""
        leaves, cotangents = args[:count], args[count:]
        if not in_transform() and count < sum(call.sizes) + len(call.capture_ids):
            leaves = (*leaves, *call.unwrapped)  # on which the gradients depend, too
        gradients = super().apply(call, batch, asked, len(leaves), *leaves, *cotangents)  # type: ignore[no-untyped-call]
        return gradients[:asked]

    @staticmethod
    def forward(call: TorchLoopCall, batch: int | None, asked: int, count: int, *args: Any) -> tuple[Any, ...]:
        """Run the reverse sweep."""
        return clone_aliases(call.reverse(args[:count], asked, args[count:], batch), args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Save leaves and cotangents, which the next derivative depends on."""
        ctx.call, ctx.batch, _, ctx.count, *args = inputs
        # One that was not asked for has no gradient either, and may be used all the same.
        ctx.unused = [gradient is None and is_wanted(leaf) for gradient, leaf in zip(output, args, strict=False)]
        _save(ctx, args)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        """Differentiate the gradient."""
        from remat.frameworks.torch.second_order import double_backward

        args, states = _saved(ctx), ctx.call.step.replayable_states
        leaves, bars = args[: ctx.count], args[ctx.count :]
        unfrozen = ctx.call.as_not_frozen(leaves)
        with preserved_state(states, ctx.call.initial_states), unfrozen:  # its loops run the steps again
            gradients = double_backward(ctx.call, leaves, bars, cotangents, ctx.batch)
        # The adjoint loop has zeros where steps cut the graph; a leaf behind it has no second derivative either.
        for k, leaf in enumerate(leaves):
            if ctx.unused[k] and gradients[k] is not None and not in_transform() and not gradients[k].any():
                gradients[k] = gradient_of_unused(leaf)
        return None, None, None, None, *gradients

    @staticmethod
    def vmap(info: Any, dims: Any, call: TorchLoopCall, batch: int | None, asked: int, count: int, *args: Any) -> Any:
        """Run the reverse sweep of a whole batch."""
        return _vmap_rules().vmap_backward(info, dims[4:], call, batch, args[:count], args[count:])


def _vmap_rules() -> Any:
    """The module that knows how to map loops, of which most programs need nothing."""
    from remat.frameworks.torch import vmap

    return vmap


def _save(ctx: Any, args: Sequence[Any]) -> None:
    """Save tensors as autograd wants it, and Python numbers on the context."""
    ctx.set_materialize_grads(False)
    ctx.numbers = [None if isinstance(arg, Tensor) else arg for arg in args]
    ctx.save_for_backward(*[arg if isinstance(arg, Tensor) else None for arg in args])


def _saved(ctx: Any) -> list[Any]:
    """The arguments of `_save`."""
    return [number if tensor is None else tensor for number, tensor in zip(ctx.numbers, ctx.saved_tensors, strict=True)]


def run(call: TorchLoopCall, leaves: Sequence[Leaf], swept: list[Tensor] | None) -> tuple[PyTree, PyTree]:
    """The last carry and the outputs of a loop that has active leaves; `swept` are those of its first sweep."""
    tensors = LoopFunction.apply(call, swept, *leaves)
    return call.unflatten_results(tensors)

"""`scan` and `while_loop` on tensors: from a user's step and values to a loop, plain or under autograd."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from remat.closures.capture import ConvertedClosure
from remat.closures.captures import Captures
from remat.closures.references import exclusive
from remat.errors import CarryError, InfeasibleError, StepError
from remat.execute.python_state import Contents
from remat.execute.rng_state import private_rng_state
from remat.execute.state_replay import StateReplay
from remat.execute.stop import Stopped, until_stopped
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.internals.autocast import AutocastState
from remat.frameworks.torch.internals.fsdp import FirstCall, any_fsdp_module
from remat.frameworks.torch.internals.functorch import (
    in_forward_mode,
    in_transform,
    is_wrapped,
    requires_grad_somewhere,
)
from remat.frameworks.torch.internals.graph import has_no_numbers
from remat.frameworks.torch.leaves import is_differentiable, nbytes
from remat.frameworks.torch.loops.activity import Activity
from remat.frameworks.torch.loops.analyzed_step import AnalyzedStep, as_truth_value
from remat.frameworks.torch.loops.carry_hooks import hand_to_caller
from remat.frameworks.torch.loops.first_step import FirstStep
from remat.frameworks.torch.loops.function import run
from remat.frameworks.torch.loops.inner_backward import InnerBackward
from remat.frameworks.torch.loops.lazy_modules import initialize_lazy_modules
from remat.frameworks.torch.loops.left_by_steps import LeftBySteps
from remat.frameworks.torch.loops.loop_contents import LoopContents
from remat.frameworks.torch.loops.loop_inputs import LoopInputs, with_others_behind
from remat.frameworks.torch.loops.probe import probe_first_step
from remat.frameworks.torch.loops.stored_graphs import StoredGraphs, has_escaped
from remat.frameworks.torch.loops.torch_loop_call import TorchLoopCall
from remat.frameworks.torch.meter import one_step
from remat.frameworks.torch.replay.environment import reached, replayable_states
from remat.frameworks.torch.replay.replayable_state import generator_state
from remat.frameworks.torch.replay.tensor_reach import TorchReach, accepts
from remat.loops.common_mistakes import is_float, refuse_bool
from remat.loops.request import LoopRequest
from remat.loops.stacked_values import infer_length
from remat.loops.structure_check import flatten_leaves
from remat.pytree import Leaf, PyTree, TreeDef
from remat.units import to_count

Step: TypeAlias = Callable[[PyTree, PyTree], Any]

__all__ = ["scan", "while_loop"]


def scan(
    step: Callable[[Any, Any], Any],
    init: Any,
    xs: Any,
    length: int | None,
    request: LoopRequest,
    vjp: Callable[..., Any] | None = None,
    rows: dict[int, int] | None = None,
    driven: bool = True,
) -> tuple[Any, Any]:
    """The last carry and the outputs of all steps, or of those in `rows`; `driven` has no effect here (JAX only)."""
    if vjp is not None:
        raise StepError("vjp= is for NumPy; on PyTorch write a torch.autograd.Function and call it in the step")
    _refuse_recurrent_layer(step)
    init_leaves, carry = flatten_leaves(leaf_ops, init, "init")
    xs_leaves, inputs = flatten_leaves(leaf_ops, xs, "xs")
    steps = infer_length(leaf_ops, xs_leaves, inputs, length)
    request.validate(steps)
    request.record(steps)
    call, candidates = _call(step, None, (init_leaves, xs_leaves), (carry, inputs), request, rows=rows, steps=steps)
    return _run(call, step, init_leaves, xs_leaves, candidates)


def _refuse_recurrent_layer(step: Step) -> None:
    """Raise a StepError for a recurrent layer of torch.nn, whose arguments and results are not those of a step."""
    if not isinstance(step, torch.nn.RNNCellBase | torch.nn.RNNBase):
        return
    if type(step).forward.__module__ != torch.nn.RNNBase.__module__:  # a subclass with its own forward
        return
    name = type(step).__name__
    if isinstance(step, torch.nn.RNNBase):
        raise StepError(f"nn.{name} already runs over all steps: give a step of the loop, such as an nn.{name}Cell")
    carry, y = ("(h, c)", "h") if isinstance(step, torch.nn.LSTMCell) else ("h", "h")
    raise StepError(
        f"nn.{name} takes its input first and returns its state, and a step takes (carry, x) and returns (carry, y). "
        f"Write a step around it: def step(carry, x): {carry} = cell(x, carry); return {carry}, {y}"
    )


def while_loop(
    cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any, max_steps: int | None, request: LoopRequest
) -> Any:
    """The first carry for which `cond` is false, or the one after `max_steps`."""
    limit = None if max_steps is None else to_count(max_steps, "max_steps")
    leaves, carry = flatten_leaves(leaf_ops, init, "init")
    nothing = TreeDef(type(None))

    number = is_float(init)

    def step(carry: Any, x: None) -> tuple[Any, None]:
        return refuse_bool(body(carry)) if number else body(carry), None

    call, candidates = _call(step, cond, (leaves, []), (carry, nothing), request, max_steps=limit)
    if limit == 0 or not as_truth_value(cond(init)):
        request.record(0)
        return carry.unflatten(leaves)
    return _run(call, step, leaves, [], candidates)[0]


def _call(
    step: Step,
    cond: Callable[[PyTree], object] | None,
    leaves: tuple[list[Leaf], list[Leaf]],
    trees: tuple[TreeDef, TreeDef],
    request: LoopRequest,
    *,
    rows: dict[int, int] | None = None,
    steps: int | None = None,
    max_steps: int | None = None,
) -> tuple[TorchLoopCall, "_Candidates"]:
    """The call of a loop, given the leaves and structures of its carry and inputs, and the tensors that it reaches."""
    init, xs = leaves
    under_functorch = in_transform()
    if any(map(has_no_numbers, (*init, *xs))):
        request = replace(request, check="never")
    # torch.func runs the loop at another level, where every leaf that can carry a gradient counts as active.
    activity = Activity(tuple(map(is_differentiable, init)), tuple(map(requires_grad_somewhere, xs)))
    reach = _reached(step, cond)
    if reach.lazy and steps != 0:
        first = trees[0].unflatten(init), trees[1].unflatten([x[0] for x in xs])
        initialize_lazy_modules(reach, lambda: step(*first))
        reach = _reached(step, cond)
    assert reach.captures is not None
    closure = ConvertedClosure(step, reach, reach.captures)
    if any_fsdp_module(reach.modules):  # it replaces parameters itself
        reach.registries.clear()
    contents = LoopContents([*reach.containers, *reach.registries])
    private = [generator_state(leaf) if isinstance(leaf, torch.Generator) else private_rng_state(leaf) for leaf in init]
    states = [*filter(None, private), *replayable_states(reach, contents)]
    places = Contents.of([*contents.containers, *reach.slots]) if reach.slots else contents.first
    left = LeftBySteps(places, under_functorch=under_functorch)
    candidates = _Candidates.of(closure.take_values(), reach)
    calls_backward = closure.mentions("backward") and not under_functorch
    analyzed = AnalyzedStep(
        closure, AutocastState(), states, contents, left, under_functorch, reach.modules, reach.compiled,
        InnerBackward([*candidates.captured, *candidates.others], init) if calls_backward else None,
    )  # fmt: skip
    on_cpu = all(leaf.device.type == "cpu" for leaf in init if isinstance(leaf, Tensor))
    # The condition of a while_loop is evaluated for the first carry before there is a call.
    call = TorchLoopCall(
        analyzed, *trees, (len(init), len(xs), 0), request, rows, steps, cond, max_steps, cond is not None,
        activity=activity, on_cpu=on_cpu,
    )  # fmt: skip
    return call, candidates


def _reached(*functions: Callable[..., Any] | None) -> TorchReach:
    # Autograd shows what steps use of a set. torch.func transforms show nothing, so all of it must be rebound.
    captures = Captures(accepts, sets=in_transform())
    with exclusive():  # another thread may have rebound variables that this search reads
        return reached(*(each for each in functions if each is not None and _records()), captures=captures)


def _records() -> bool:
    """Whether steps are recorded; in forward mode, which needs no tape, the loop runs plainly."""
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled() and not in_forward_mode()


class _Candidates(NamedTuple):
    """Tensors that steps may use: in variables that can be rebound, in other places, and without a gradient."""

    captured: list[Tensor]
    others: list[Tensor]
    constants: list[Tensor]  # those that require no gradient

    @classmethod
    def of(cls, captured: list[Tensor], reach: TorchReach) -> "_Candidates":
        found = {id(tensor): tensor for tensor in (*reach.tensors, *(tensor for tensor, _ in reach.made))}
        for tensor in captured:
            found.pop(id(tensor), None)
        groups: tuple[list[Tensor], list[Tensor]] = [], []
        for tensor in found.values():
            groups[tensor.requires_grad].append(tensor)
        return cls(captured, groups[True], groups[False])

    def rebound(self, modules: Sequence[torch.nn.Module]) -> set[int]:
        """The indices of captured tensors to be rebound; with sharded modules, those that are not leaves."""
        if any_fsdp_module(modules):
            return {k for k, tensor in enumerate(self.captured) if not tensor.is_leaf}
        return {k for k in with_others_behind([*self.captured, *self.others]) if k < len(self.captured)}

    def below_transforms(self, wrapped: Sequence[int], values: Sequence[Tensor]) -> LoopInputs:
        """The inputs below all transforms: wrapped captured tensors, by index, with values there, and candidates."""
        captured = list(self.captured)
        for k, value in zip(wrapped, values, strict=True):
            captured[k] = value.detach()  # two of them may have one value
        others = [tensor for tensor in self.others if not is_wrapped(tensor)]
        # Wrapped tensors are rebound, whatever lies behind their values, if a transform differentiates with respect to
        # them.
        rest = [k for k in range(len(captured)) if k not in wrapped]
        dependent = with_others_behind([*(captured[k] for k in rest), *others])
        rebound = {k for k in wrapped if requires_grad_somewhere(self.captured[k])}
        inputs = LoopInputs.among(captured, {*rebound, *(rest[k] for k in dependent if k < len(rest))}, others)
        inputs.admit_captured(wrapped)
        return inputs


def _run(
    call: TorchLoopCall, step: Step, init: list[Leaf], xs: list[Leaf], candidates: _Candidates
) -> tuple[PyTree, PyTree]:
    """The last carry and the outputs of a loop."""
    if not _records():
        return _run_plainly(call, step, init, xs, None)
    if call.step.under_functorch:
        # A tensor that an earlier step has left would count as used if it were an input, and the loop mostly replaces
        # it.
        ids = [k for k, each in enumerate(candidates.captured) if is_wrapped(each) and not has_escaped(each)]
        wrapped, below = [candidates.captured[k] for k in ids], partial(candidates.below_transforms, ids)
        call = replace(call, capture_ids=ids, rebound=list(map(requires_grad_somewhere, wrapped)), inputs_below=below)
        stored = StoredGraphs(call.step.contents.first, call.request.place)
        results = run(call, [*init, *xs, *wrapped], None)
        stored.leave_steps(call.vmap_levels)
        stored.guard([*init, *xs, *wrapped], call.unwrapped)
        return results
    sharded: list[torch.nn.Module] = []
    while True:
        try:
            return _run_recorded(replace(call, fsdp_modules=sharded), step, init, xs, candidates)
        except FirstCall as found:  # a module that is differentiated in another way: start again
            sharded = [found.module]


def _run_recorded(
    call: TorchLoopCall, step: Step, init: list[Leaf], xs: list[Leaf], candidates: _Candidates
) -> tuple[PyTree, PyTree]:
    """The last carry and the outputs of a loop whose steps autograd records."""
    inputs = LoopInputs.among(candidates.captured, candidates.rebound(call.step.modules), candidates.others)
    call = replace(call, replay=StateReplay(call.step.replayable_states))
    stored = StoredGraphs(call.step.contents.first, call.request.place, candidates.constants)
    with one_step("in the first step", sum(map(nbytes, init))), _rewound_if_left(call.replay):
        first_step = probe_first_step(call, [*init, *xs], inputs)
    hand_to_caller(first_step.tape.carry_in, init)
    del candidates, inputs
    if not (any(first_step.activity.carry) or any(first_step.activity.ys) or first_step.inputs.may_grow):
        return _run_plainly(call, step, init, xs, first_step)
    call = replace(call, first_step=first_step)
    del first_step
    replay = call.replay
    try:
        with _rewound_if_left(replay):
            tensors, leaves, found = call.sweep_and_learn([*init, *xs])
    except (InfeasibleError, FirstCall):  # steps were run: the next try, with a larger budget, must start like this one
        _rewind(replay)
        raise
    used = found.tensors
    call = replace(call, keeps_graphs=stored.guard([*init, *xs], used))
    call = replace(call, written=stored.written)
    if found.left_by_steps:
        call = replace(call, cut_off=stored.cut_off(found))
    assert call.results is not None
    if not any(call.results.active):
        return call.unflatten_results(tensors)
    if call.fsdp_modules:  # their parameters are not inputs of the Function, one of which must require a gradient
        used = [*used, torch.zeros((), requires_grad=True)]
        call = replace(call, capture_ids=[*call.capture_ids, -1], rebound=[*call.rebound, False])
    swept = list(tensors)
    del tensors
    return run(call, [*leaves, *used], swept)


def _rewind(replay: StateReplay | None) -> None:
    """Restore generators, statistics and contents to what they were before the loop."""
    if replay is not None and replay.snapshot() is not replay.initial:  # a snapshot notes what was used
        replay.restore(replay.initial)


@contextmanager
def _rewound_if_left(replay: StateReplay | None) -> Iterator[None]:
    """A context for steps that the caller may run again if one ends the loop at once or returns another carry type."""
    try:
        yield
    except (CarryError, Stopped):
        if replay is not None:
            replay.rewind(replay.initial)
        raise


def _run_plainly(
    call: TorchLoopCall, step: Step, init: list[Leaf], xs: list[Leaf], first_step: FirstStep | None
) -> tuple[PyTree, PyTree]:
    """The results of a plain loop, whose first step may have been run already."""
    runner = call.new_runner(leaf_ops, init, xs, call.steps or 0)
    value, done = call.carry.unflatten(init), 0
    if first_step is not None:
        value, done = first_step.carry, 1
        runner.check_carry(value, 0)  # sets the specs of numbers that have become tensors
        runner.write_output(0, first_step.y)
    if call.cond is None:
        value = runner.run(step, value, done, call.steps or 0)
        return value, runner.outputs.tree and runner.outputs.tree.unflatten(runner.outputs.leaves)
    replay = StateReplay(call.step.replayable_states) if call.cond is until_stopped else None
    while done == 0 or (done != call.max_steps and as_truth_value(call.cond(value))):
        mark = None if replay is None else replay.snapshot()
        try:
            value = runner.run(step, value, done, done + 1)
        except Stopped:
            assert replay is not None
            replay.rewind(mark)
            break
        done += 1
    if replay is not None and (done == 0 or call.request.counts_only):
        replay.rewind(replay.initial)
        raise Stopped(done)
    call.request.record(done)
    return value, None

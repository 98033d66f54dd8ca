"""`scan` and `while_loop` on tensors: from a user's step and values to a loop, plain or under autograd."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from remat.closures.capture import ConvertedClosure
from remat.errors import InfeasibleError, StepError
from remat.execute.rng_state import private_rng_state
from remat.execute.state_replay import StateReplay
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.analyzed_step import Activity, AnalyzedStep
from remat.frameworks.torch.autocast import AutocastState
from remat.frameworks.torch.capture_filter import DifferentiableTensors
from remat.frameworks.torch.carry_hooks import hand_to_caller
from remat.frameworks.torch.function import TorchLoopCall, as_truth_value, run
from remat.frameworks.torch.functorch import in_forward_mode, in_transform
from remat.frameworks.torch.leaves import nbytes, spec_of
from remat.frameworks.torch.probe import probe_first_step
from remat.frameworks.torch.replayable_state import GeneratorState, global_generators
from remat.frameworks.torch.stored_graphs import StoredGraphs
from remat.loops.request import LoopRequest
from remat.loops.stacked_values import Inputs, Outputs, infer_length
from remat.loops.step_runner import StepRunner
from remat.loops.structure_check import flatten_leaves
from remat.pytree import TreeDef
from remat.units import to_count

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
    """The last carry and the outputs of all steps, or of those in `rows`; `driven` has no meaning here (JAX)."""
    if vjp is not None:
        raise StepError("vjp= is for NumPy; on PyTorch write a torch.autograd.Function and call it in the step")
    init_leaves, carry = flatten_leaves(leaf_ops, init, "init")
    xs_leaves, inputs = flatten_leaves(leaf_ops, xs, "xs")
    steps = infer_length(leaf_ops, xs_leaves, inputs, length)
    request.validate(steps)
    request.record(steps)
    sizes = (len(init_leaves), len(xs_leaves), 0)
    call = _call(step, None, init_leaves, xs_leaves, carry, inputs, sizes, request, rows, steps)
    results = _differentiated(call, init_leaves, xs_leaves)
    if results is not None:
        return results
    runner = _new_runner(call, carry, init_leaves, Inputs(xs_leaves, inputs), Outputs(leaf_ops, steps, rows))
    value, done = _plain_start(call, runner, carry.unflatten(init_leaves))
    value = runner.run(step, value, done, steps)
    outputs = runner.outputs
    return value, None if outputs.tree is None else outputs.tree.unflatten(outputs.leaves)


def while_loop(
    cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any, max_steps: int | None, request: LoopRequest
) -> Any:
    """The first carry for which `cond` does not hold, or the one after `max_steps`."""
    limit = None if max_steps is None else to_count(max_steps, "max_steps")
    leaves, carry = flatten_leaves(leaf_ops, init, "init")
    nothing = TreeDef(type(None))

    def step(carry: Any, x: None) -> tuple[Any, None]:
        return body(carry), None

    call = _call(step, cond, leaves, [], carry, nothing, (len(leaves), 0, 0), request, None, None)
    call.cond, call.max_steps = cond, limit
    goes_on = limit != 0 and as_truth_value(cond(init))
    if goes_on:
        call.cond_holds = True
        results = _differentiated(call, leaves, [])
        if results is not None:
            return results[0]
    runner = _new_runner(call, carry, leaves, Inputs((), nothing), Outputs(leaf_ops, 0))
    value, done = _plain_start(call, runner, carry.unflatten(leaves))
    while done != limit and (goes_on if done == 0 else as_truth_value(cond(value))):
        value = runner.run(step, value, done, done + 1)
        done += 1
    request.record(done)
    return value


def _call(
    step: Callable[..., Any],
    cond: Callable[..., Any] | None,
    init: list[Any],
    xs: list[Any],
    carry: TreeDef,
    inputs: TreeDef,
    sizes: tuple[int, int, int],
    request: LoopRequest,
    rows: dict[int, int] | None,
    steps: int | None,
) -> TorchLoopCall:
    activity = Activity(
        [leaf_ops.is_differentiable(leaf) for leaf in init], [isinstance(x, Tensor) and x.requires_grad for x in xs]
    )
    tensors = DifferentiableTensors()
    records = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    records = records and not in_forward_mode()  # forward mode needs no tape: the loop runs plainly
    captured = ConvertedClosure(tensors, step, cond) if records else None
    private = [GeneratorState(leaf) if isinstance(leaf, torch.Generator) else private_rng_state(leaf) for leaf in init]
    closed_over = [] if captured is None else [*captured.replayable_states, *tensors.replayable_states]
    replayable_states = [*global_generators(), *(state for state in private if state is not None), *closed_over]
    under_functorch = in_transform()
    analyzed = AnalyzedStep(captured, AutocastState(), replayable_states, activity, under_functorch=under_functorch)  # type: ignore[arg-type]
    analyzed.modules, analyzed.compiled = tensors.modules, tensors.compiled
    return TorchLoopCall(analyzed, carry, inputs, sizes, request, rows, steps)


def _differentiated(call: TorchLoopCall, init: list[Any], xs: list[Any]) -> tuple[Any, Any] | None:
    """The results of a loop with active leaves; None for a loop without, which is run plainly."""
    if call.step.captured is None:
        return None
    captured: list[Tensor] | None
    if call.step.under_functorch:
        # torch.func runs the loop at another level: every leaf that can carry a gradient counts as active, and captured
        # tensors are rebound to the values of that level.
        captured = call.step.captured.take_values()
        call.step.capture_ids, call.step.is_leaf = list(range(len(captured))), [False] * len(captured)
        call.step.activity.xs = [leaf_ops.is_differentiable(leaf) for leaf in xs]
        call.specs = [spec_of(leaf, name) for leaf, name in zip(init, call.carry.paths("carry"), strict=True)]
    else:
        call.replay = StateReplay(call.step.replayable_states)
        call.stored = StoredGraphs(call.step.captured.containers)
        try:
            captured = probe_first_step(call, [*init, *xs], call.step.modules)
        except torch.cuda.OutOfMemoryError as error:
            raise InfeasibleError(
                f"CUDA ran out of memory in the first step: {error}. Free memory, or make the step smaller; a budget "
                "cannot help, since a single step does not fit",
                sum(map(nbytes, init)),
                "bytes",
            ) from error
    if call.first_step is not None:
        hand_to_caller(call.first_step.tape.carry_in, init)
    if captured is None:
        call.replay = None
        return None
    if call.step.fsdp_modules:  # their parameters are not inputs of the Function, one of which must require a gradient
        captured = [*captured, torch.zeros((), requires_grad=True)]
        call.step.capture_ids.append(-1)
        call.step.is_leaf.append(True)
    call.sizes = (len(init), len(xs), len(captured))
    results = run(call, [*init, *xs, *captured])
    if call.stored is not None:
        call.stored.guard(captured)
    return results


def _plain_start(call: TorchLoopCall, runner: StepRunner, carry: Any) -> tuple[Any, int]:
    """The carry and step at which a plain loop starts: step 1, if the first one has been run as a probe."""
    first_step, call.first_step = call.first_step, None
    if first_step is None:
        return carry, 0
    detached = [
        leaf.detach() if isinstance(leaf, Tensor) else leaf
        for leaf in runner.tree.flatten_like(first_step.carry, "carry")
    ]
    if runner.outputs.row_of(0) is not None:
        with torch.no_grad():
            runner.outputs.write(0, first_step.y)
    runner.outputs_written = 1
    return runner.tree.unflatten(detached), 1


def _new_runner(
    call: TorchLoopCall, carry: TreeDef, leaves: Sequence[Any], inputs: Inputs, outputs: Outputs
) -> StepRunner:
    specs = [spec_of(leaf, name) for leaf, name in zip(leaves, carry.paths("init"), strict=True)]
    return StepRunner(leaf_ops, carry, call.specs or specs, inputs, outputs)

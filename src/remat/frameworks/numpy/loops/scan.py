"""`scan` and `while_loop` on arrays: turn a user's step and values into a loop, plain or under autograd."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from remat.errors import CarryError
from remat.execute.state_replay import StateReplay
from remat.execute.stop import Stopped, until_stopped
from remat.frameworks.numpy import leaves as leaf_ops
from remat.frameworks.numpy.captured_state import CapturedStep
from remat.frameworks.numpy.leaves import copy, ensure_writable, is_boxed, is_observation, spec_of, unpack
from remat.frameworks.numpy.loops.primitive import NumpyCall, as_truth_value, run
from remat.frameworks.numpy.protection import NotAsAutograd, is_readonly_error, mutation_message, readonly_view
from remat.loops.common_mistakes import is_float, refuse_bool
from remat.loops.request import LoopRequest
from remat.loops.stacked_values import Inputs, Outputs, infer_length
from remat.loops.step_runner import StepRunner
from remat.loops.structure_check import flatten_leaves
from remat.pytree import Leaf, PyTree, TreeDef, flatten
from remat.units import to_count

__all__ = ["scan", "scan_flat", "while_loop"]

Step: TypeAlias = Callable[[PyTree, PyTree], PyTree]


def scan(
    step: Callable[[PyTree, PyTree], PyTree],
    init: PyTree,
    xs: PyTree,
    length: int | None,
    request: LoopRequest,
    vjp: Callable[..., PyTree] | None = None,
    rows: dict[int, int] | None = None,
    driven: bool = True,
) -> tuple[PyTree, PyTree]:
    """The last carry and the outputs of all steps, or of those in `rows`; `driven` is only for JAX, and ignored."""
    init_leaves, carry = flatten_leaves(leaf_ops, init, "init")
    xs_leaves, inputs = flatten(xs, unpack)
    # Rows that only the step can read are represented by one number each.
    counted = [np.empty(len(leaf)) if is_observation(leaf) and leaf.ndim else leaf for leaf in xs_leaves]
    steps = infer_length(leaf_ops, counted, inputs, length)
    captured = CapturedStep(step, vjp, leaves=init_leaves)
    return _scan(captured, (init_leaves, xs_leaves, captured.take_values()), carry, inputs, steps, request, vjp, rows)


def scan_flat(
    step: CapturedStep,
    init: PyTree,
    xs: PyTree,
    captured: list[Leaf],
    steps: int,
    request: LoopRequest,
    rows: dict[int, int] | None = None,
) -> tuple[PyTree, PyTree]:
    """A scan of a step that is already closure-converted, with these captured values."""
    init_leaves, carry = flatten(init)
    xs_leaves, inputs = flatten(xs)
    return _scan(step, (init_leaves, xs_leaves, captured), carry, inputs, steps, request, None, rows)


def _scan(
    step: CapturedStep,
    values: tuple[list[Leaf], list[Leaf], list[Leaf]],  # leaves of init, leaves of xs, captured values
    carry: TreeDef,
    inputs: TreeDef,
    steps: int,
    request: LoopRequest,
    vjp: Callable[..., PyTree] | None,
    rows: dict[int, int] | None,
) -> tuple[PyTree, PyTree]:
    init, xs, captured = values
    traced = [is_boxed(leaf) for part in values for leaf in part]
    if any(traced):
        sizes = len(init), len(xs), len(captured)
        call = NumpyCall(step, carry, inputs, sizes, request, rows, steps, vjp=vjp, needs_grad=traced)
        return run(call, [*init, *xs, *captured])
    # No gradient is needed, so the loop runs plainly; but it raises the errors that it would raise with one.
    request.validate(steps)
    request.record(steps)
    replay = StateReplay(step.replayable_states) if request.carry_names else None  # the caller may rerun the steps
    outputs = Outputs(leaf_ops, steps, rows, spare=request.spare_row)
    runner = _new_runner(carry, init, Inputs([readonly_view(leaf) for leaf in xs], inputs), outputs)
    with step.rebind(captured) as plain:
        try:
            after = runner.run(plain, carry.unflatten([copy(leaf) for leaf in init]), 0, steps)
        except CarryError:
            if replay is not None:
                replay.rewind(replay.initial)
            raise
        except ValueError as error:
            if is_readonly_error(error):
                # If this runs inside a step or segment, that may be restarted in another mode.
                raise NotAsAutograd(mutation_message(error, runner.current_step)) from error
            raise
    return carry.map(ensure_writable, after), None if outputs.tree is None else outputs.tree.unflatten(outputs.leaves)


def while_loop(
    cond: Callable[[PyTree], PyTree],
    body: Callable[[PyTree], PyTree],
    init: PyTree,
    max_steps: int | None,
    request: LoopRequest,
) -> PyTree:
    """The first carry for which `cond` does not hold, or the one after `max_steps`."""
    limit = None if max_steps is None else to_count(max_steps, "max_steps")
    leaves, carry = flatten_leaves(leaf_ops, init, "init")

    number = is_float(init)

    def step(carry: PyTree, x: None) -> tuple[PyTree, None]:
        return refuse_bool(body(carry)) if number else body(carry), None

    # The condition is searched as well: it may draw from a generator, which is replayed with those of the body.
    captured = CapturedStep(step, cond, leaves=leaves)
    boxes = captured.take_values()
    nothing, traced = TreeDef(type(None)), [is_boxed(leaf) for leaf in [*leaves, *boxes]]
    if limit != 0 and any(traced):
        sizes = (len(leaves), 0, len(boxes))
        call = NumpyCall(captured, carry, nothing, sizes, request, cond=cond, max_steps=limit, needs_grad=traced)
        return run(call, [*leaves, *boxes])[0]
    runner = _new_runner(carry, leaves, Inputs((), nothing), Outputs(leaf_ops, 0))
    value, done = carry.unflatten([leaf if is_boxed(leaf) else copy(leaf) for leaf in leaves]), 0
    if cond is until_stopped:
        value, done = _run_until_stopped(runner, step, value, limit, StateReplay(captured.replayable_states), request)
    else:
        while done != limit and as_truth_value(cond(value)):
            value = runner.run(step, value, done, done + 1)
            done += 1
    request.record(done)
    return value


def _run_until_stopped(
    runner: StepRunner, step: Step, value: PyTree, limit: int | None, replay: StateReplay, request: LoopRequest
) -> tuple[PyTree, int]:
    """The carry before the step that returned STOP, and that step's number; the effects of that step are undone."""
    done = 0
    try:
        while done != limit:
            mark = replay.snapshot()
            value, done = runner.run(step, value, done, done + 1), done + 1
    except Stopped:
        replay.rewind(mark)
    except CarryError:
        replay.rewind(replay.initial)
        raise
    if request.counts_only:
        replay.rewind(replay.initial)
    if done == 0 or request.counts_only:
        raise Stopped(done)
    return value, done


def _new_runner(carry: TreeDef, leaves: Sequence[Leaf], inputs: Inputs, outputs: Outputs) -> StepRunner:
    specs = [spec_of(leaf, name) for leaf, name in zip(leaves, carry.paths("init"), strict=True)]
    return StepRunner(leaf_ops, carry, specs, inputs, outputs)

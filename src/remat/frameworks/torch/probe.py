"""The first step of a loop, recorded before there is a plan, to find out what the loop depends on.

In: a call whose step was searched for tensors in closures, which may be more or fewer than it uses. Out: the same call,
with the captured tensors that the graph of the first step shows, and with the activity of carry, inputs and outputs.
The first sweep begins with the recorded step, so it does not run twice.

The step is recorded with all carry leaves as roots that require a gradient. The edges by which its graph reaches what
was there before the step tell

- which captured tensors it uses: those edges that are neither carry nor x. Leaves of the graph that the search in
  closures missed are added. Any other tensor that it missed is an error: it cannot be rebound, so that its gradient
  would be lost;
- which carry leaves are active after any number of steps, and which outputs are (`_active_carry`).

Last, outputs that are the same tensor as a carry leaf are noted (`Activity.aliases`).
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import Module

from remat.frameworks.torch.analyzed_step import Activity
from remat.frameworks.torch.fsdp import fsdp_modules_called
from remat.frameworks.torch.function import TorchLoopCall
from remat.frameworks.torch.graph import external_edges, gradient_edge, leaf_of, sequence_nr
from remat.frameworks.torch.tape import FirstStep, unknown_input_error

__all__ = ["probe_first_step"]


def probe_first_step(call: TorchLoopCall, leaves: Sequence[Any], modules: Sequence[Module]) -> list[Tensor] | None:
    """Record the first step; the tensors that it captures, or None for a plain loop, if no result is active."""
    step, activity = call.step, call.step.activity
    tensors: list[Tensor] = step.captured.take_values()
    step.capture_ids, step.is_leaf = list(range(len(tensors))), [tensor.is_leaf for tensor in tensors]
    call.sizes = (*call.sizes[:2], len(tensors))
    backend, state = call.new_backend([*leaves, *tensors], 1)
    with fsdp_modules_called(modules) as step.fsdp_modules:
        memory = call.request.memory
        first_step = backend.record_first_step(
            state, measured=memory is not None and memory.device.capacity is not None
        )
    del state
    carry_out, ys = _result_leaves(backend.runner, first_step)
    dependencies = [_external_inputs(leaf, first_step.tape.number) for leaf in (*carry_out, *ys)]
    roots = [None if root is None else gradient_edge(root) for root in first_step.tape.carry_in]
    inputs = {gradient_edge(root) for row in first_step.tape.xs for root in row if root is not None}
    captured = {edge: is_leaf for edges in dependencies for edge, is_leaf in edges.items()}
    for edge in (*roots, *inputs):
        if edge is not None:
            captured.pop(edge, None)
    active = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves[: call.sizes[0]]]
    active, active_edges = _active_carry(active, roots, inputs | set(captured), dependencies)
    call.first_step, call.specs = first_step, backend.runner.specs
    activity.ys = [bool(active_edges & set(edges)) for edges in dependencies[len(carry_out) :]]
    activity.carry = active
    if not any(active) and not any(activity.ys):
        return None
    for k, leaf in enumerate(carry_out):
        same = [j for j, y in enumerate(ys) if y is leaf and j not in activity.aliases.values()]
        if same and active[k]:
            activity.aliases[k] = same[0]
    _drop_inactive(first_step, backend.runner, activity)
    indices = {gradient_edge(tensor): k for k, tensor in enumerate(backend.captured)}
    for edge, is_leaf in captured.items():
        if edge in indices:
            continue
        if not is_leaf:  # the closure search missed it, so it cannot be rebound
            raise unknown_input_error(edge.node, is_leaf, "the first step")
        indices[edge] = len(tensors)
        tensors.append(leaf_of(edge.node))
        step.capture_ids.append(-1)
        step.is_leaf.append(True)
    used = [k for edge, k in indices.items() if step.is_leaf[k] or edge in captured]
    if step.fsdp_modules:  # `accumulate_grads` then adds to `.grad` of all parameters, so leaves are not inputs
        used = [k for k in used if not step.is_leaf[k]]
    step.may_capture_more = len(used) < len(tensors)
    first_step.tape.captured = [backend.captured[k] if k < len(backend.captured) else tensors[k] for k in used]
    step.capture_ids, step.is_leaf = [step.capture_ids[k] for k in used], [step.is_leaf[k] for k in used]
    step.captured.restrict_to(set(step.capture_ids), tensors)
    call.sizes = (*call.sizes[:2], len(used))
    return [tensors[k] for k in used]


def _active_carry(
    active: list[bool],
    roots: Sequence[GradientEdge | None],
    always: set[GradientEdge],
    dependencies: Sequence[dict[GradientEdge, bool]],
) -> tuple[list[bool], set[GradientEdge]]:
    """Activity analysis: which carry leaves depend on a differentiable input after any number of steps.

    A leaf that depends on an active carry leaf is active after the step, so the set only grows, and the fixed point is
    reached after at most as many rounds as there are leaves. Returns the fixed point, and the edges of all that is
    active: captured tensors and inputs (`always`), and active carry leaves.
    """
    while True:
        active_edges = always | {
            root for root, is_active in zip(roots, active, strict=True) if is_active and root is not None
        }
        after = [before or bool(active_edges & set(edges)) for before, edges in zip(active, dependencies, strict=False)]
        if after == active:
            return active, active_edges
        active = after


def _result_leaves(runner: Any, first_step: FirstStep) -> tuple[list[Any], list[Any]]:
    """The leaves of the carry and of the output that the first step returned."""
    carry_out, tree = runner.tree.flatten_like(first_step.carry, "carry"), runner.outputs.tree
    return carry_out, [] if tree is None else tree.flatten_like(first_step.y, "y")


def _external_inputs(leaf: Any, number: int) -> dict[GradientEdge, bool]:
    """The edges from before the step that a result of it depends on; True for leaves of the graph."""
    if not isinstance(leaf, Tensor) or not leaf.requires_grad:
        return {}
    edge = gradient_edge(leaf)
    if leaf.grad_fn is None or sequence_nr(edge.node) < number:
        return {edge: leaf.grad_fn is None}
    return {GradientEdge(*outside): is_leaf for outside, is_leaf in external_edges([edge.node], number).items()}


def _drop_inactive(first_step: FirstStep, runner: Any, activity: Activity) -> None:
    """Detach the results of the first step that are not active, and remove the roots of inactive carry leaves."""

    def detached(leaves: list[Any], active: list[bool]) -> list[Any]:
        return [
            leaf if is_active or not isinstance(leaf, Tensor) else leaf.detach()
            for leaf, is_active in zip(leaves, active, strict=True)
        ]

    carry_out, ys = _result_leaves(runner, first_step)
    tape = first_step.tape
    tape.carry_in = [root if active else None for root, active in zip(tape.carry_in, activity.carry, strict=True)]
    first_step.carry = runner.tree.unflatten(detached(carry_out, activity.carry))
    if runner.outputs.tree is not None:
        first_step.y = runner.outputs.tree.unflatten(detached(ys, activity.ys))

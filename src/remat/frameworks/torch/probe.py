"""The first step, recorded before anything is planned: it shows what a loop depends on, and how.

In: a call whose step is not known yet. Out: the same, with the tensors that it captures as leaves, and with the flow of
gradients through its carry, inputs and outputs. The recorded step is not lost: the first sweep begins with it.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import Module

from remat.frameworks.torch.fsdp import fsdp_modules_called
from remat.frameworks.torch.function import TorchLoopCall
from remat.frameworks.torch.graph import external_edges, gradient_edge, leaf_of, sequence_nr
from remat.frameworks.torch.tape import FirstStep, unknown_input_error

__all__ = ["probe_first_step"]


def probe_first_step(call: TorchLoopCall, leaves: Sequence[Any], modules: Sequence[Module]) -> list[Tensor] | None:
    """The tensors that the step captures, after its first run; None if there is nothing to differentiate."""
    step, flows = call.step, call.step.activity
    found: list[Tensor] = step.captured.take_values()
    step.capture_ids, step.is_leaf = list(range(len(found))), [tensor.is_leaf for tensor in found]
    call.sizes = (*call.sizes[:2], len(found))
    backend, state = call.new_backend([*leaves, *found], 1)
    with fsdp_modules_called(modules) as step.fsdp_modules:
        first_step = backend.open(state)
    del state
    outs, ys = _leaves(backend.runner, first_step)
    depends = [_external_inputs(leaf, first_step.number) for leaf in (*outs, *ys)]
    roots = [None if root is None else gradient_edge(root) for root in first_step.tape.carry_in]
    inputs = {gradient_edge(root) for row in first_step.tape.xs for root in row if root is not None}
    captured = {edge: is_leaf for edges in depends for edge, is_leaf in edges.items()}
    for edge in (*roots, *inputs):
        if edge is not None:
            captured.pop(edge, None)
    init = list(leaves[: call.sizes[0]])
    active = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in init]
    active, live = _active_carry(active, roots, inputs | set(captured), depends)
    call.first_step, call.specs = first_step, backend.runner.specs
    flows.ys = [bool(live & set(edges)) for edges in depends[len(outs) :]]
    flows.carry = active
    if not any(active) and not any(flows.ys):
        return None
    for k, out in enumerate(outs):
        same = [j for j, y in enumerate(ys) if y is out and j not in flows.aliases.values()]
        if same and active[k]:
            flows.aliases[k] = same[0]
    _drop_inactive(first_step, backend.runner, flows)
    places = {gradient_edge(tensor): k for k, tensor in enumerate(backend.captured)}
    for edge, is_leaf in captured.items():
        if edge in places:
            continue
        if not is_leaf:
            raise unknown_input_error(edge.node, is_leaf, "the first step")
        places[edge] = len(found)
        found.append(leaf_of(edge.node))
        step.capture_ids.append(-1)
        step.is_leaf.append(True)
    used = [k for edge, k in places.items() if step.is_leaf[k] or edge in captured]
    if step.fsdp_modules:  # these add to their gradients themselves, and so do all other parameters then
        used = [k for k in used if not step.is_leaf[k]]
    step.may_capture_more = len(used) < len(found)
    first_step.tape.captured = [backend.captured[k] if k < len(backend.captured) else found[k] for k in used]
    step.capture_ids, step.is_leaf = [step.capture_ids[k] for k in used], [step.is_leaf[k] for k in used]
    step.captured.restrict_to(set(step.capture_ids), found)
    call.sizes = (*call.sizes[:2], len(used))
    return [found[k] for k in used]


def _active_carry(
    active: list[bool],
    roots: Sequence[GradientEdge | None],
    always: set[GradientEdge],
    depends: Sequence[dict[GradientEdge, bool]],
) -> tuple[list[bool], set[GradientEdge]]:
    """Activity analysis: which carry leaves depend on a differentiable input after any number of steps.

    A carry leaf that is active before a step makes active what depends on it after the step, so the set only grows,
    and the fixed point is reached after at most as many rounds as there are leaves. The edges of what is active then
    come back too.
    """
    while True:
        live = always | {root for root, is_active in zip(roots, active, strict=True) if is_active and root is not None}
        after = [before or bool(live & set(edges)) for before, edges in zip(active, depends, strict=False)]
        if after == active:
            return active, live
        active = after


def _leaves(runner: Any, first_step: FirstStep) -> tuple[list[Any], list[Any]]:
    outputs = runner.outputs
    return runner.tree.flatten_like(
        first_step.carry, "carry"
    ), [] if outputs.tree is None else outputs.tree.flatten_like(first_step.y, "y")


def _external_inputs(leaf: Any, number: int) -> dict[GradientEdge, bool]:
    """What is outside of the step and the gradient of a leaf flows to; True for leaves of the graph."""
    if not isinstance(leaf, Tensor) or not leaf.requires_grad:
        return {}
    edge = gradient_edge(leaf)
    if leaf.grad_fn is None or sequence_nr(edge.node) < number:
        return {edge: leaf.grad_fn is None}
    return {GradientEdge(*found): is_leaf for found, is_leaf in external_edges([edge.node], number).items()}


def _drop_inactive(first_step: FirstStep, runner: Any, flows: Any) -> None:
    """Gradients that were let into the first step and flow nowhere are taken out again."""

    def detached(leaves: list[Any], flow: list[bool]) -> list[Any]:
        return [
            leaf if goes or not isinstance(leaf, Tensor) else leaf.detach()
            for leaf, goes in zip(leaves, flow, strict=True)
        ]

    outs, ys = _leaves(runner, first_step)
    tape = first_step.tape
    tape.carry_in = [root if goes else None for root, goes in zip(tape.carry_in, flows.carry, strict=True)]
    first_step.carry = runner.tree.unflatten(detached(outs, flows.carry))
    if runner.outputs.tree is not None:
        first_step.y = runner.outputs.tree.unflatten(detached(ys, flows.ys))

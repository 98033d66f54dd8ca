"""The first step, recorded before anything is planned: it shows what a loop depends on, and how.

In: a call whose step is not known yet. Out: the same, with the tensors that it captures as leaves, and with the flow of
gradients through its carry, inputs and outputs. The recorded step is not lost: the first sweep begins with it.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import Module

from remat.frameworks.torch.function import TorchCall
from remat.frameworks.torch.graph import below, edge_of, watch_sharded
from remat.frameworks.torch.tape import Opened, refuse_unknown

__all__ = ["open_call"]


def open_call(call: TorchCall, leaves: Sequence[Any], modules: Sequence[Module]) -> list[Tensor] | None:
    """The tensors that the step captures, after its first run; None if there is nothing to differentiate."""
    step, flows = call.step, call.step.flows
    found: list[Tensor] = step.captured.release()
    step.numbers, step.closed = list(range(len(found))), [tensor.is_leaf for tensor in found]
    call.sizes = (*call.sizes[:2], len(found))
    verbs, state = call.start([*leaves, *found], 1)
    with watch_sharded(modules) as step.sharded:
        opened = verbs.open(state)
    del state
    outs, ys = _leaves(verbs.body, opened)
    depends = [_depends_on(leaf, opened.number) for leaf in (*outs, *ys)]
    roots = [None if root is None else edge_of(root) for root in opened.tape.carry_in]
    inputs = {edge_of(root) for row in opened.tape.xs for root in row if root is not None}
    captured = {edge: is_leaf for found in depends for edge, is_leaf in found.items()}
    for edge in (*roots, *inputs):
        if edge is not None:
            captured.pop(edge, None)
    init = list(leaves[: call.sizes[0]])
    flow = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in init]
    always = inputs | set(captured)
    while True:
        live = always | {root for root, flows_in in zip(roots, flow, strict=True) if flows_in and root is not None}
        after = [a or bool(live & set(found)) for a, found in zip(flow, depends, strict=False)]
        if after == flow:
            break
        flow = after
    call.opened, call.specs = opened, verbs.body.specs
    flows.ys = [bool(live & set(found)) for found in depends[len(outs) :]]
    flows.carry = flow
    if not any(flow) and not any(flows.ys):
        return None
    for k, out in enumerate(outs):
        same = [j for j, y in enumerate(ys) if y is out and j not in flows.twins.values()]
        if same and flow[k]:
            flows.twins[k] = same[0]
    _settle(opened, verbs.body, flows)
    places = {edge_of(tensor): k for k, tensor in enumerate(verbs.captured)}
    for edge, is_leaf in captured.items():
        if edge in places:
            continue
        if not is_leaf:
            raise refuse_unknown(edge.node, is_leaf, "the first step")
        places[edge] = len(found)
        found.append(edge.node.variable)  # type: ignore[attr-defined]
        step.numbers.append(-1)
        step.closed.append(True)
    used = [k for edge, k in places.items() if step.closed[k] or edge in captured]
    if step.sharded:  # these add to their gradients themselves, and so do all other parameters then
        used = [k for k in used if not step.closed[k]]
    step.many = len(used) < len(found)
    opened.tape.captured = [verbs.captured[k] if k < len(verbs.captured) else found[k] for k in used]
    step.numbers, step.closed = [step.numbers[k] for k in used], [step.closed[k] for k in used]
    step.captured.keep(set(step.numbers), found)
    call.sizes = (*call.sizes[:2], len(used))
    return [found[k] for k in used]


def _leaves(body: Any, opened: Opened) -> tuple[list[Any], list[Any]]:
    outputs = body.outputs
    return body.tree.apart(opened.carry, "carry"), [] if outputs.tree is None else outputs.tree.apart(opened.y, "y")


def _depends_on(leaf: Any, number: int) -> dict[GradientEdge, bool]:
    """What is outside of the step and the gradient of a leaf flows to; True for leaves of the graph."""
    if not isinstance(leaf, Tensor) or not leaf.requires_grad:
        return {}
    edge = edge_of(leaf)
    if leaf.grad_fn is None or edge.node._sequence_nr() < number:
        return {edge: leaf.grad_fn is None}
    return {GradientEdge(*found): is_leaf for found, is_leaf in below([edge.node], number).items()}


def _settle(opened: Opened, body: Any, flows: Any) -> None:
    """Gradients that were let into the first step and flow nowhere are taken out again."""

    def outside(leaves: list[Any], flow: list[bool]) -> list[Any]:
        return [
            leaf if goes or not isinstance(leaf, Tensor) else leaf.detach()
            for leaf, goes in zip(leaves, flow, strict=True)
        ]

    outs, ys = _leaves(body, opened)
    tape = opened.tape
    tape.carry_in = [root if goes else None for root, goes in zip(tape.carry_in, flows.carry, strict=True)]
    opened.carry = body.tree.build(outside(outs, flows.carry))
    if body.outputs.tree is not None:
        opened.y = body.outputs.tree.build(outside(ys, flows.ys))

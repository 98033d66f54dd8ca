"""Records the first step of a loop, before there is a plan, to find out what the loop depends on.

In: a call, and the tensors found by the search in closures, which may be more or fewer than the step uses. Out: a
`FirstStep`, with the inputs that the graph of the step shows and a prediction of what is active. The first sweep begins
with the recorded step, so it does not run twice.

The step is recorded with all carry leaves as roots that require a gradient. The edges by which its graph reaches what
existed before the step show which inputs it uses (those that are neither carry nor x), and which carry leaves and
outputs are active after any number of steps (`_active_after_many`). Finally, outputs that are the same tensor as a
carry leaf are noted (`Activity.aliases`).
"""

from collections.abc import Sequence

from torch import Tensor

from remat.frameworks.torch.internals.collectives import groups_of, groups_used
from remat.frameworks.torch.internals.fsdp import fsdp_modules_called, meshes_of
from remat.frameworks.torch.internals.graph import Edge, edge_of, external_edges
from remat.frameworks.torch.loops.activity import Activity
from remat.frameworks.torch.loops.agreement import waiting_for
from remat.frameworks.torch.loops.first_step import FirstStep
from remat.frameworks.torch.loops.loop_inputs import LoopInputs
from remat.frameworks.torch.loops.torch_loop_call import TorchLoopCall
from remat.pytree import Leaf

__all__ = ["probe_first_step"]


def probe_first_step(call: TorchLoopCall, leaves: Sequence[Leaf], inputs: LoopInputs) -> FirstStep:
    """Record the first step on the leaves of the first carry and of `xs`; `inputs` has the candidates."""
    backend, state = call.backend_on(leaves, 1, inputs)
    memory, fsdp_modules = call.request.memory, [*call.fsdp_modules]
    measured = memory is not None and memory.device.capacity is not None
    with (
        fsdp_modules_called(call.step.modules, fsdp_modules),
        groups_used(enabled=measured or not call.step.compiled) as groups,
        waiting_for(groups, fsdp_modules, call.request.place),
    ):
        tape, carry, y, tape_bytes, allocated = backend.record_first_step(state, measured=measured)
    # The tape has the part of the carry that it needs; another reference would keep the rest alive during measurement.
    del state
    # FSDP replaces its parameters itself and adds to their `.grad`: they are not inputs of the loop's node.
    if fsdp_modules:
        call.step.closure.restrict_to(inputs.keep_rebound(), inputs.bindings)
    # A compiled graph does not show the edges of single tensors, so everything that the step reaches counts as used.
    # This comes after the exclusion of sharded parameters, whose gradients would be added twice.
    if call.step.compiled:
        inputs.admit_candidates()
    runner, outputs = backend.runner, backend.runner.outputs.tree
    carry_out, ys = runner.tree.flatten_like(carry, "carry"), [] if outputs is None else outputs.flatten_like(y, "y")
    edges = [_edge(leaf) for leaf in (*carry_out, *ys)]
    dependencies = [
        {} if edge is None else external_edges([edge], tape.number, None, inputs.made_edges) for edge in edges
    ]
    roots, rows = list(map(_edge, tape.carry_in)), set(map(_edge, (root for row in tape.xs for root in row)))
    external = {edge: is_leaf for edges in dependencies for edge, is_leaf in edges.items()}
    captured = {edge: is_leaf for edge, is_leaf in external.items() if edge not in roots and edge not in rows}
    reached = tape.take_reached(dict(external))[1:]
    # What is neither carry nor x existed before the loop: a captured tensor, found by the search or not.
    inputs.admit(captured, "the first step")
    at_first = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves[: len(roots)]]
    active, active_edges = _active_after_many(at_first, roots, rows | set(captured), dependencies)
    active_ys = [not active_edges.isdisjoint(edges) for edges in dependencies[len(carry_out) :]]
    # All roots required a gradient, to show dependencies. Gradients that init does not require are not requested.
    tape.deactivate(at_first)
    call.step.left.note(tape)
    aliases = _aliases(carry_out, ys)
    activity = Activity(tuple(active), call.activity.xs, tuple(active_ys), aliases, tuple(at_first))
    carry = runner.tree.unflatten(_without_inactive(carry_out, activity.carry))
    y = None if outputs is None else outputs.unflatten(_without_inactive(ys, activity.ys))
    groups = list(dict.fromkeys([*groups_of(meshes_of(fsdp_modules)), *groups]))
    return FirstStep(tape, carry, y, tape_bytes, allocated, activity, inputs, reached, fsdp_modules, groups)


def _without_inactive(leaves: list[Leaf], active: Sequence[bool]) -> list[Leaf]:
    """The leaves, detached if they are not active."""
    pairs = zip(leaves, active, strict=True)
    return [leaf if on or not isinstance(leaf, Tensor) else leaf.detach() for leaf, on in pairs]


def _active_after_many(
    active: list[bool], roots: Sequence[Edge | None], always: set[Edge | None], dependencies: Sequence[dict[Edge, bool]]
) -> tuple[list[bool], set[Edge | None]]:
    """Activity analysis: which carry leaves depend on a differentiable input after any number of such steps.

    A leaf that depends on an active carry leaf is active after the step, so the set only grows, and the fixed point is
    reached after at most as many rounds as there are leaves. Returns the fixed point, and the edges of everything that
    is active: captured tensors and inputs (`always`), and active carry leaves.
    """
    while True:
        active_edges = always | {
            root for root, is_active in zip(roots, active, strict=True) if is_active and root is not None
        }
        after = [
            before or not active_edges.isdisjoint(edges)
            for before, edges in zip(active, dependencies[: len(active)], strict=True)
        ]
        if after == active:
            return active, active_edges
        active = after


def _aliases(carry: list[Leaf], ys: list[Leaf]) -> dict[int, int]:
    """By carry leaf: the output leaf that is the same tensor; each output once."""
    aliases: dict[int, int] = {}
    for k, leaf in enumerate(carry):
        same = [j for j, y in enumerate(ys) if y is leaf and isinstance(y, Tensor) and j not in aliases.values()]
        aliases |= {k: same[0]} if same else {}
    return aliases


def _edge(leaf: Leaf) -> Edge | None:
    return edge_of(leaf) if isinstance(leaf, Tensor) and leaf.requires_grad else None

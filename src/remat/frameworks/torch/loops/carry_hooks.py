"""Hooks that steps put on their carry (gradient clipping through time), at the borders of ranges.

The rule: in a plain loop the carry between two steps is one tensor, and a hook on it sees its whole gradient, once.
Where a recorded range begins, that tensor is a new leaf, which gets only what comes from inside the range. So hooks are
taken off the leaves before a range is pulled back, and run in the pullback of the range before it, at the node that
made the tensor there. Hooks on the initial carry go to the caller's own tensor, where a plain loop would leave them.

What it can miss: hooks on nodes instead of tensors (`h.grad_fn` is None at a border). Second derivatives, whose ranges
are single steps, refuse such hooks. The cost is a look at the hooks of each carry leaf in a range.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from remat.errors import StepError
from remat.frameworks.torch.internals.graph import backward_hooks, gradient_edge, is_leaf_node, set_backward_hooks
from remat.frameworks.torch.loops.tape import Tape

__all__ = ["CarryHooks", "hand_to_caller", "move_hooks", "take_hooks"]

Hook: TypeAlias = Callable[[Tensor], Tensor | None]
CarryHooks: TypeAlias = Mapping[int, Sequence[Hook]]  # by carry leaf, in the order of registration


def take_hooks(roots: Sequence[Tensor | None]) -> CarryHooks:
    """The hooks of these tensors, which have none afterwards."""
    taken: dict[int, list[Hook]] = {}
    for k, root in enumerate(roots):
        if root is not None and (hooks := backward_hooks(root)):
            taken[k] = list(hooks.values())
            set_backward_hooks(root, {})
    return taken


def hand_to_caller(roots: Sequence[Tensor | None], init: Sequence[Any]) -> None:
    """Move the hooks that step 0 has put on its carry to the caller's tensors, where a plain loop would put them."""
    for k, hooks in take_hooks(roots).items():
        if init[k].requires_grad:
            for hook in hooks:
                init[k].register_hook(hook)


def move_hooks(tape: Tape, later: CarryHooks) -> dict[int, CarryHooks]:
    """Take the hooks off the leaves of a tape, and let those of the `later` range run in its backward.

    Returns the hooks that belong to tensors made by the range before this one, by the step at which this one starts:
    those of this range, and later ones of leaves that it only passed on. The first range has none before it, and its
    hooks run in its own backward.
    """
    earlier: dict[int, list[Hook]] = {k: [*hooks] for k, hooks in take_hooks(tape.carry_in).items()}
    for k, hooks in later.items():
        edge = tape.carry_out[k]
        if edge is None:
            continue
        # A prehook runs once all gradients of the node are added up, like a hook on the tensor in a plain loop.
        if not is_leaf_node(edge.node):
            edge.node.register_prehook(partial(_run, hooks, edge.output_nr))
            continue
        # The range has passed the tensor on unchanged: its hook belongs to whoever made it, one range earlier.
        origin = [i for i, root in enumerate(tape.carry_in) if root is not None and gradient_edge(root) == edge]
        if not origin:
            raise StepError(
                f"step {tape.stop} puts a hook on its carry, and the step before returned a parameter as that carry. "
                "Put the hook on the parameter, before the loop"
            )
        earlier.setdefault(origin[0], []).extend(hooks)
    if tape.start > 0:
        return {tape.start: earlier} if earlier else {}
    for k, of_leaf in earlier.items():
        for hook in of_leaf:
            tape.carry_in[k].register_hook(hook)
    return {}


def _run(hooks: Sequence[Hook], output: int, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    gradient = gradients[output]
    for hook in hooks:
        if gradient is not None:
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
    return (*gradients[:output], gradient, *gradients[output + 1 :])

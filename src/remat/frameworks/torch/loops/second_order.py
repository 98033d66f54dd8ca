"""Higher derivatives: the adjoint of a loop is again a loop, which can be differentiated, to any order.

One loop returns all states as its outputs, and a second loop over these states in reverse order computes the gradient.
Both are loops like the first. All states are in memory at once, but no tapes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from remat.execute.rng_state import global_rng_states
from remat.execute.step_states import StepStates
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.internals.functorch import in_transform, is_wrapped
from remat.frameworks.torch.internals.graph import backward_hooks, edge_of, gradient_edge, leaf_itself
from remat.frameworks.torch.internals.modules import backward_hooks_exchanged
from remat.frameworks.torch.leaves import TensorSpec, batched_zeros_like, by_step
from remat.frameworks.torch.loops.hooks_in_steps import LinearHooksOnly, linear_module_hook
from remat.frameworks.torch.loops.loop_inputs import with_others_behind
from remat.frameworks.torch.loops.loop_outputs import clone_aliases
from remat.frameworks.torch.loops.tape import OutputEdges, root_gradients
from remat.frameworks.torch.loops.torch_loop_call import TorchLoopCall
from remat.loops.request import LoopRequest
from remat.loops.step_runner import unpack_output

__all__ = ["double_backward"]

FlatStep = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]]


def double_backward(
    call: TorchLoopCall,
    leaves: Sequence[Any],
    cotangents: Sequence[Any],
    gradient_cotangents: Sequence[Any],
    batch: int | None = None,
) -> list[Any]:
    """The VJP of the reverse sweep: maps cotangents of the leaves' gradients to those of leaves and cotangents.

    With `batch` the reverse sweep was for that many cotangents, in axis 0 like its gradients.
    """
    args = [*leaves, *cotangents]
    outputs = [k for k, cotangent in enumerate(gradient_cotangents) if cotangent is not None]
    active = [
        k for k, arg in enumerate(args) if leaf_ops.is_differentiable(arg) and (in_transform() or arg.requires_grad)
    ]

    def gradients(*values: Any) -> list[Any]:
        full = _put(args, active, values)
        by_leaf = _adjoint_loop(call, full[: len(leaves)], full[len(leaves) :], batch)
        return [batched_zeros_like(leaves[k], batch) if by_leaf[k] is None else by_leaf[k] for k in outputs]

    captured_at = sum(call.sizes)
    closed_over = [captured_at <= k < len(leaves) and not call.rebound[k - captured_at] for k in active]
    roots, output_cotangents = [args[k] for k in active], [gradient_cotangents[k] for k in outputs]
    cotangents = _vjp_of(gradients, roots, output_cotangents, closed_over)
    return _put([None] * len(args), active, cotangents)


def _put(values: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """The values, with others in these places."""
    by_place = dict(zip(places, others, strict=True))
    return [by_place.get(k, value) for k, value in enumerate(values)]


def _vjp_of(
    function: Callable[..., list[Any]],
    roots: list[Any],
    cotangents: list[Any],
    closed_over: list[bool],
    batch: int | None = None,
) -> list[Any]:
    """The cotangents of roots, as differentiable functions of roots and cotangents; None for unused roots.

    `closed_over` says which roots the function closes over: these are used as they are, not as arguments. With `batch`,
    that many cotangents are given and returned, in axis 0.
    """
    if in_transform():
        kept: list[int] = []  # torch.func takes no outputs that cannot have a cotangent, such as integers

        def differentiable(*values: Any) -> list[Any]:
            outs = function(*values)
            kept[:] = [k for k, out in enumerate(outs) if leaf_ops.is_differentiable(out)]
            return [outs[k] for k in kept]

        outs, vjp = torch.func.vjp(differentiable, *roots)  # type: ignore[misc]
        pairs = zip(outs, [cotangents[k] for k in kept], strict=True)
        bars = [batched_zeros_like(out, batch) if bar is None else bar for out, bar in pairs]
        return list(vjp(bars) if batch is None else torch.func.vmap(vjp)(bars))
    return list(_Vjp.apply(function, closed_over, batch is not None, *roots, *cotangents))  # type: ignore[no-untyped-call]


class _Vjp(torch.autograd.Function):
    """The VJP of a function, as a Function of its arguments and cotangents, which can be differentiated again.

    Arguments are detached, since one may have been computed from another, whose gradient would then include it. Tensors
    that the function closes over cannot be detached: if one lies behind another, `_vjp` stops there.
    """

    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., list[Any]], closed_over: list[bool], batched: bool, *args: Any
    ) -> tuple[Any, ...]:
        ctx.function, ctx.closed_over, ctx.batched, count = function, closed_over, batched, len(closed_over)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*args)
        with torch.enable_grad():
            as_they_are = [*closed_over, *[False] * (len(args) - count)]
            detached = [
                arg if keep or arg is None else arg.detach().requires_grad_()
                for arg, keep in zip(args, as_they_are, strict=True)
            ]
            bars = _vjp(function, detached[:count], detached[count:], batched=batched, create=False)
            return clone_aliases(bars, detached)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        args, function, count = ctx.saved_tensors, ctx.function, len(ctx.closed_over)
        tensors = [k for k, arg in enumerate(args) if arg is not None]
        outputs = [k for k, cotangent in enumerate(cotangents) if cotangent is not None]

        def gradients(*values: Any) -> list[Any]:
            full = _put(args, tensors, values)
            by_root = _vjp(function, full[:count], full[count:], batched=ctx.batched, create=True)
            zeros = [cotangents[k].new_zeros(()).expand_as(cotangents[k]) for k in outputs]
            return [zero if by_root[k] is None else by_root[k] for k, zero in zip(outputs, zeros, strict=True)]

        closed_over = [k < count and ctx.closed_over[k] for k in tensors]
        roots, output_cotangents = [args[k] for k in tensors], [cotangents[k] for k in outputs]
        root_cotangents = _vjp_of(gradients, roots, output_cotangents, closed_over)
        return None, None, None, *_put(args, tensors, root_cotangents)


def _vjp(
    function: Callable[..., list[Any]], roots: Sequence[Any], cotangents: Sequence[Any], *, batched: bool, create: bool
) -> list[Any]:
    """The cotangents of roots by one call of the engine; None for unused roots."""
    leaves = [leaf_itself(root) for root in roots]
    hooked = [leaf for leaf in leaves if backward_hooks(leaf)]  # parameters; other roots are new
    edges = OutputEdges(batched=batched)
    for out, bar in zip(function(*roots), cotangents, strict=True):
        if isinstance(out, Tensor) and out.requires_grad:
            edges.add(gradient_edge(out), bar)
    wanted = [root if root.requires_grad else None for root in roots]  # constants of transforms are used as they are
    # A non-leaf tensor that the function closes over, with another root behind it: its gradient must end there.
    blocked = [edge_of(roots[k]) for k in with_others_behind(roots)]
    with LinearHooksOnly():  # loops in a step run their hooks again
        return root_gradients(edges, wanted, hooked, blocked, create=create)


def _adjoint_loop(
    call: TorchLoopCall, leaves: Sequence[Any], cotangents: Sequence[Any], batch: int | None
) -> list[Any]:
    """The gradients of all leaves as a differentiable function of leaves and cotangents; None where not active."""
    from remat.frameworks.torch.loops.scan import scan

    assert call.results is not None
    assert call.steps is not None
    (init, xs, captured), activity, steps = call.split(leaves), call.activity, call.steps
    all_captured = _captured_by(call, captured)
    flat, numbers = _with_contents(call, _flat_step(call), steps)
    xs, active_xs = [*xs, *numbers], [*activity.xs, *[False] * len(numbers)]
    request = LoopRequest(plan=call.plan, check="never")
    carry_bars, y_bars = call.results.expand_cotangents(cotangents)
    init = [_as_in_the_last_carry(leaf, spec) for leaf, spec in zip(init, call.results.carry_specs, strict=True)]
    weak = [not isinstance(leaf, Tensor) for leaf in init]
    active = [is_active and not number for is_active, number in zip(activity.carry, weak, strict=True)]

    def forward(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        return flat(all_captured(), carry, x)[: len(carry)], carry

    def backward(sums: Any, inputs: Any) -> Any:
        (carry_bar, totals), (carry, x, y_bar) = sums, inputs
        carry = [leaf.item() if number else leaf for leaf, number in zip(carry, weak, strict=True)]
        roots, put = _roots(carry, active, x, active_xs, all_captured())
        rest = iter(carry_bar)
        bars = [next(rest) if is_active else None for is_active in active] + list(y_bar)
        as_they_are = [False] * (len(roots) - len(captured)) + [not each for each in call.rebound[: len(captured)]]
        root_bars = _vjp_of(lambda *values: flat(*put(values)), roots, bars, as_they_are, batch)
        pairs = zip(roots, root_bars, strict=True)
        rest = iter([batched_zeros_like(root, batch) if bar is None else bar for root, bar in pairs])
        before = [next(rest) for is_active in active if is_active]
        x_bar = [next(rest) if is_active else None for is_active in active_xs]
        return (before, [total + bar for total, bar in zip(totals, rest, strict=True)]), x_bar

    after, states = scan(forward, init, xs, steps, request)
    _compare_last(call, leaves, after)
    last = zip(init, carry_bars, active, strict=True)
    last_bars = [batched_zeros_like(leaf, batch) if bar is None else bar for leaf, bar, is_active in last if is_active]
    rows = [None if bar is None else _for_every_step(by_step(bar, batch), steps, call.rows).flip(0) for bar in y_bars]
    flipped = [state.flip(0) for state in states], [x.flip(0) for x in xs], rows
    (init_bars, totals), x_bars = scan(
        backward, (last_bars, [batched_zeros_like(leaf, batch) for leaf in all_captured()]), flipped, steps, request
    )
    rest = iter(init_bars)
    return [
        *(next(rest) if is_active else None for is_active in active),
        *(None if bar is None else by_step(bar.flip(0), batch) for bar in x_bars[: len(activity.xs)]),
        *totals,
    ]


def _compare_last(call: TorchLoopCall, leaves: Sequence[Any], carry: Sequence[Any]) -> None:
    """Raise a DeterminismError if the steps have reached another last carry than in their first run."""
    has_outputs = call.results is None or call.results.output_specs  # the fingerprints include outputs
    if not in_transform() and not call.step.under_functorch and not has_outputs:
        # The backend runs nothing; it knows the names and dtypes of the leaves.
        backend, _ = call.new_backend(leaves, 0)
        call.compare_last(backend, call.carry.unflatten(list(map(leaf_ops.detached, carry))))


def _captured_by(call: TorchLoopCall, captured: Sequence[Any]) -> Callable[[], list[Any]]:
    """A function that returns the captured tensors, in which a loop can rebind those that the first loop has rebound.

    Steps close over the others themselves. These are in a frozenset, where nothing is rebound: otherwise a loop would
    replace only the reference here, and ask for the gradient of what no step uses. Tensors of a transform are always
    rebound.
    """
    pairs = zip(captured, call.rebound, strict=False)
    rebound = [each if is_rebound or is_wrapped(each) else None for each, is_rebound in pairs]
    closed_over = frozenset((k, each) for k, each in enumerate(captured) if rebound[k] is None)

    def all_captured() -> list[Any]:
        by_index = dict(closed_over)
        return [by_index.get(k, each) for k, each in enumerate(rebound)]

    return all_captured


def _with_contents(call: TorchLoopCall, flat: FlatStep, steps: int) -> tuple[FlatStep, list[Tensor]]:
    """The step with the contents of its place in the loop, and its number as another input; as it is without any."""
    if not (call.step.contents.containers or call.initial_rng):
        return flat, []
    every = [*global_rng_states(), *call.step.replayable_states]
    # Also contents that steps only read: a third derivative may be taken after they have changed.
    read = [
        first if state is call.step.contents else None for state, first in zip(every, call.initial_states, strict=True)
    ]
    contents = StepStates(every, call.initial_rng or read)

    def placed(captured: Sequence[Any], carry: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        return contents.run(int(x[-1]), lambda: flat(captured, carry, x[:-1]))

    return placed, [torch.arange(steps)]


def _as_in_the_last_carry(leaf: Any, spec: TensorSpec) -> Any:
    """A leaf of the first carry; a number that becomes a tensor in the loop is returned as such a tensor."""
    if isinstance(leaf, Tensor) or spec.weak or spec.opaque:
        return leaf
    return torch.tensor(leaf, dtype=spec.dtype, device=spec.device)


def _flat_step(call: TorchLoopCall) -> FlatStep:
    """The step as a function of leaves: captured, carry, x → carry and outputs."""

    def flat(captured: Sequence[Any], carry: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        assert call.results is not None
        modes = call.step.autocast.active(grad=torch.is_grad_enabled())
        of_modules = backward_hooks_exchanged(call.step.modules, linear_module_hook)
        with modes, call.rebind(captured) as step, LinearHooksOnly(carry), of_modules:
            after, y = unpack_output(leaf_ops, step(call.carry.unflatten(carry), call.xs.unflatten(x)), 0)
        outputs = call.results.outputs
        ys = [] if outputs is None or call.rows == {} else outputs.flatten_like(y, "y")
        return [*call.carry.flatten_like(after, "carry"), *ys]

    return flat


def _roots(
    carry: list[Any], active: list[bool], x: list[Any], active_xs: Sequence[bool], captured: list[Any]
) -> tuple[list[Any], Callable[[Sequence[Any]], tuple[list[Any], list[Any], list[Any]]]]:
    """The active inputs of one step, and a function that puts other values in their places."""
    leaves = [*carry, *x]
    places = [k for k, is_active in enumerate((*active, *active_xs)) if is_active]

    def put(values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        filled = _put(leaves, places, values[: len(places)])
        return list(values[len(places) :]), filled[: len(carry)], filled[len(carry) :]

    return [*(leaves[k] for k in places), *captured], put


def _for_every_step(bar: Tensor, steps: int, rows: dict[int, int] | None) -> Tensor:
    """Cotangents of some steps' outputs expanded to all steps, with zeros for the others."""
    if rows is None:
        return bar
    indices = torch.tensor([rows.get(i, len(rows)) for i in range(steps)], device=bar.device)
    return torch.cat([bar, torch.zeros_like(bar[:1])])[indices]

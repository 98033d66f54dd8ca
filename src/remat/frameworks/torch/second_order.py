"""Derivatives of derivatives: the adjoint of a loop is a loop again, so its gradient can be asked for, to any order.

The states come from one loop that puts them all out, and the gradient from a second loop that goes through them
backwards; both are loops like the first. All states are held at once, but no tapes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from remat.errors import StepError
from remat.frameworks.torch import leaves as leaf_ops
from remat.frameworks.torch.function import TorchLoopCall
from remat.frameworks.torch.loop_outputs import clone_aliases
from remat.loops.request import LoopRequest
from remat.loops.step_runner import unpack_output

__all__ = ["double_backward"]

Flat = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]]


def double_backward(
    call: TorchLoopCall, leaves: Sequence[Any], cotangents: Sequence[Any], again: Sequence[Any]
) -> list[Any]:
    """The gradients, with respect to leaves and cotangents, of the gradients that these give, weighted by `again`."""
    args = [*leaves, *cotangents]
    ends = [k for k, part in enumerate(again) if part is not None]
    places = [
        k for k, arg in enumerate(args) if leaf_ops.flows(arg) and (call.step.under_functorch or arg.requires_grad)
    ]

    def gradients(*values: Any) -> list[Any]:
        full = list(args)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        every = _adjoint_loop(call, full[: len(leaves)], full[len(leaves) :])
        return [torch.zeros_like(leaves[k]) if every[k] is None else every[k] for k in ends]

    inside = len(leaves) - len(call.step.is_leaf)
    closed = [inside <= k < len(leaves) and call.step.is_leaf[k - inside] for k in places]
    cotangents = [again[k] for k in ends]
    parts = _vjp_of(gradients, [args[k] for k in places], cotangents, closed, under_functorch=call.step.under_functorch)
    found: list[Any] = [None] * len(args)
    for place, part in zip(places, parts, strict=True):
        found[place] = part
    return found


def _vjp_of(
    function: Callable[..., list[Any]],
    roots: list[Any],
    cotangents: list[Any],
    closed: list[bool],
    *,
    under_functorch: bool,
) -> list[Any]:
    """The cotangents of roots, differentiable again where that is asked for; None for roots that are not used.

    Those that are `is_leaf` over by the function stay as they are.
    """
    if under_functorch:
        outs, pull = torch.func.vjp(function, *roots)  # type: ignore[misc]
        return list(
            pull([torch.zeros_like(o) if bar is None else bar for o, bar in zip(outs, cotangents, strict=True)])
        )
    return list(_Vjp.apply(function, closed, *roots, *cotangents))  # type: ignore[no-untyped-call]


class _Vjp(torch.autograd.Function):
    """Cotangents through a function, as a function of its arguments and the cotangents that come in.

    Arguments are cut off from what made them: one may have been made from another. Parameters that the function
    closes over cannot be, and need not.
    """

    @staticmethod
    def forward(ctx: Any, function: Callable[..., list[Any]], closed: list[bool], *args: Any) -> tuple[Any, ...]:
        ctx.function, ctx.is_leaf, count = function, closed, len(closed)
        ctx.set_materialize_grads(False)
        ctx.gaps = [arg is None for arg in args]
        ctx.save_for_backward(*args)
        with torch.enable_grad():
            marks = [*closed, *[False] * (len(args) - count)]
            own = [
                arg if mark or arg is None else arg.detach().requires_grad_()
                for arg, mark in zip(args, marks, strict=True)
            ]
            return clone_aliases(_vjp(function, own[:count], own[count:], create=False), own)

    @staticmethod
    def backward(ctx: Any, *again: Any) -> tuple[Any, ...]:
        args, function, count = ctx.saved_tensors, ctx.function, len(ctx.is_leaf)
        there = [k for k, gap in enumerate(ctx.gaps) if not gap]
        ends = [k for k, part in enumerate(again) if part is not None]

        def gradients(*values: Any) -> list[Any]:
            full: list[Any] = [None] * len(args)
            for k, value in zip(there, values, strict=True):
                full[k] = value
            found = _vjp(function, full[:count], full[count:], create=True)
            return [torch.zeros_like(full[k]) if found[k] is None else found[k] for k in ends]

        closed = [k < count and ctx.is_leaf[k] for k in there]
        parts = _vjp_of(gradients, [args[k] for k in there], [again[k] for k in ends], closed, under_functorch=False)
        found: list[Any] = [None] * len(args)
        for k, part in zip(there, parts, strict=True):
            found[k] = part
        return None, None, *found


def _vjp(
    function: Callable[..., list[Any]], roots: Sequence[Any], cotangents: Sequence[Any], *, create: bool
) -> list[Any]:
    pairs = [
        (out, bar)
        for out, bar in zip(function(*roots), cotangents, strict=True)
        if bar is not None and isinstance(out, Tensor) and out.requires_grad
    ]
    if not pairs or not roots:
        return [None] * len(roots)
    ends, given = zip(*pairs, strict=True)
    return list(torch.autograd.grad(ends, roots, given, create_graph=create, allow_unused=True))


def _adjoint_loop(call: TorchLoopCall, leaves: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """The gradients of all leaves as a differentiable function of leaves and cotangents; None where none flows."""
    from remat.frameworks.torch.scan import scan

    _refuse_random_step(call)
    assert call.results is not None
    assert call.steps is not None
    init, xs, captured = call.split(leaves)
    flows, steps, flat = call.step.activity, call.steps, _flat_step(call)
    request = LoopRequest(plan=call.plan, check="never")
    carry_bars, y_bars = call.results.expand_cotangents(cotangents)
    weak = [not isinstance(leaf, Tensor) for leaf in init]
    ends = [flow and not number for flow, number in zip(flows.carry, weak, strict=True)]

    def forward(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        return flat(captured, carry, x)[: len(carry)], carry

    def backward(sums: Any, inputs: Any) -> Any:
        (carry_bar, totals), (carry, x, y_bar) = sums, inputs
        carry = [leaf.item() if number else leaf for leaf, number in zip(carry, weak, strict=True)]
        roots, put = _roots(carry, ends, x, flows.xs, captured)
        rest = iter(carry_bar)
        every = [next(rest) if end else None for end in ends] + list(y_bar)
        closed = [False] * (len(roots) - len(captured)) + call.step.is_leaf
        found = _vjp_of(
            lambda *values: flat(*put(values)), roots, every, closed, under_functorch=call.step.under_functorch
        )
        rest = iter([torch.zeros_like(root) if part is None else part for root, part in zip(roots, found, strict=True)])
        before, x_bar = [next(rest) for end in ends if end], [next(rest) if flow else None for flow in flows.xs]
        return (before, [total + part for total, part in zip(totals, rest, strict=True)]), x_bar

    _, states = scan(forward, init, xs, steps, request)
    known = zip(init, carry_bars, ends, strict=True)
    first = [torch.zeros_like(leaf) if bar is None else bar for leaf, bar, end in known if end]
    rows = [None if bar is None else _for_every_step(bar, steps, call.rows).flip(0) for bar in y_bars]
    flipped = [state.flip(0) for state in states], [x.flip(0) for x in xs], rows
    (found, totals), x_bars = scan(
        backward, (first, [torch.zeros_like(leaf) for leaf in captured]), flipped, steps, request
    )
    rest = iter(found)
    return [
        *(next(rest) if end else None for end in ends),
        *(None if bar is None else bar.flip(0) for bar in x_bars),
        *totals,
    ]


def _refuse_random_step(call: TorchLoopCall) -> None:
    if call.initial_rng is not None:
        raise StepError(
            "second derivatives of a step that draws random numbers, or that gathers statistics, are not replayed: "
            "draw before the loop and pass the numbers in xs"
        )


def _flat_step(call: TorchLoopCall) -> Flat:
    """The step as a function of leaves: captured, carry, x to carry and outputs."""

    def flat(captured: Sequence[Any], carry: Sequence[Any], x: Sequence[Any]) -> list[Any]:
        assert call.results is not None
        with call.step.rebind(list(captured)) as step:
            after, y = unpack_output(leaf_ops, step(call.carry.unflatten(carry), call.xs.unflatten(x)), 0)
        outputs = call.results.outputs
        ys = [] if outputs is None or call.rows == {} else outputs.flatten_like(y, "y")
        return [*call.carry.flatten_like(after, "carry"), *ys]

    return flat


def _roots(
    carry: list[Any], ends: list[bool], x: list[Any], flows: list[bool], captured: list[Any]
) -> tuple[list[Any], Callable[[Sequence[Any]], tuple[list[Any], list[Any], list[Any]]]]:
    """The tensors of one step that gradients flow to, each by itself, and how to put others in their places."""
    marks = [*ends, *flows]
    leaves = [*carry, *x]
    roots = [leaf for leaf, mark in zip(leaves, marks, strict=True) if mark]

    def put(values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        rest = iter(values)
        filled = [next(rest) if mark else leaf for leaf, mark in zip(leaves, marks, strict=True)]
        return list(rest), filled[: len(carry)], filled[len(carry) :]

    return [*roots, *captured], put


def _for_every_step(part: Tensor, steps: int, rows: dict[int, int] | None) -> Tensor:
    """Cotangents of some steps' outputs as those of all: zero for the others."""
    if rows is None:
        return part
    places = torch.tensor([rows.get(i, len(rows)) for i in range(steps)], device=part.device)
    return torch.cat([part, torch.zeros_like(part[:1])])[places]

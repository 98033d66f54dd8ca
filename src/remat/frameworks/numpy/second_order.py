"""Derivatives of derivatives: the adjoint of a loop is a loop again, and so is its tangent.

Autograd asks for the gradient as a function of boxes in nested traces (a gradient of a gradient). Then the states come
from one loop that puts them all out, and the gradient from a second loop that goes through them backwards; both are
loops like the first, so this works to any order. All states are held at once, but no tapes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.builtins import tuple as boxed_tuple
from autograd.extend import vspace
from autograd.tracer import getval

from remat.closures.closure_search import CapturedReference
from remat.errors import StepError
from remat.execute.rng_state import ReplayableState
from remat.frameworks.numpy import leaves as leaf_ops
from remat.frameworks.numpy.leaves import ArraySpec, unpack
from remat.frameworks.numpy.primitive import NumpyCall
from remat.frameworks.numpy.tape import box_leaves, fresh_trace, pull_back, unbox
from remat.loops.request import LoopRequest
from remat.loops.step_runner import unpack_output
from remat.pytree import flatten

__all__ = ["adjoint", "tangent"]


@dataclass(frozen=True)
class _FlatStep:
    """A step that takes what other steps capture as its first argument."""

    function: Callable[[list[Any], Any, Any], Any]

    @property
    def cache_key(self) -> list[Any]:
        return []

    @property
    def references(self) -> list[CapturedReference]:
        return []

    @property
    def replayable_states(self) -> list[ReplayableState]:
        return []

    @contextmanager
    def rebind(self, values: list[Any]) -> Iterator[Callable[..., Any]]:
        yield lambda carry, x: self.function(values, carry, x)


def adjoint(call: NumpyCall, leaves: Sequence[Any], cotangents: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
    """The gradients of the wanted leaves as a differentiable function of leaves and cotangents."""
    from remat.frameworks.numpy.scan import scan_flat

    forward, n, request = _forward(call), call.steps, _same_plan(call)
    init, xs, captured = call.split(leaves)
    assert call.results is not None
    assert n is not None
    init = [_widened(leaf, spec) for leaf, spec in zip(init, call.results.specs, strict=False)]
    flows, flows_out = call.results.flows[: len(init)], call.results.flows[len(init) :]
    rest = iter([cotangents[i] for i in range(len(cotangents))])
    bars = [next(rest) for flow in flows if flow]
    ybars = [_for_every_step(part, n, call.rows) for part in rest]
    if n == 0:
        return _of_leaves(leaves, wanted, ((bars, flows), ((), [False] * (len(xs) + len(captured)))))
    marks = [i in wanted for i in range(len(leaves))]
    _, mark_xs, mark_captured = call.split(marks)

    def states(captured: list[Any], carry: list[Any], x: list[Any]) -> Any:
        return forward(captured, carry, x)[0], carry

    def backward(captured: list[Any], sums: Any, inputs: Any) -> Any:
        (bars, totals), (carry, x, ybars) = sums, inputs
        with fresh_trace() as trace:
            carry_in, carry_roots = box_leaves(carry, flows, trace)
            x_in, x_roots = box_leaves(x, mark_xs, trace)
            captured_in, captured_roots = box_leaves(captured, mark_captured, trace)
            carry_out, y = forward(captured_in, carry_in, x_in)
            nodes = [unbox(leaf, trace)[1] for leaf in [*_where(carry_out, flows), *_where(y, flows_out)]]
        ends = [(node, part) for node, part in zip(nodes, [*bars, *ybars], strict=True) if node is not None]
        found = pull_back([ends], {})

        def gradients(roots: list[Any], values: list[Any], marks: list[bool]) -> list[Any]:
            return [
                _like(found[node][0] if node in found else vspace(value).zeros(), value)
                for node, value, mark in zip(roots, values, marks, strict=True)
                if mark
            ]

        added = [a + b for a, b in zip(totals, gradients(captured_roots, captured, mark_captured), strict=True)]
        return (gradients(carry_roots, carry, flows), added), gradients(x_roots, x, mark_xs)

    _, trajectory = scan_flat(_FlatStep(states), init, xs, captured, n, request)
    totals = [vspace(leaf).zeros() for leaf in _where(captured, mark_captured)]
    backwards = [[leaf[::-1] for leaf in part] for part in (trajectory, xs, ybars)]
    (bars, totals), xbars = scan_flat(_FlatStep(backward), (bars, totals), tuple(backwards), captured, n, request)
    by_kind = ((bars, flows), ([part[::-1] for part in xbars], mark_xs), (totals, mark_captured))
    return _of_leaves(leaves, wanted, by_kind)


def _of_leaves(leaves: Sequence[Any], wanted: Sequence[int], by_kind: Sequence[tuple[Any, list[bool]]]) -> list[Any]:
    """The gradients of the wanted leaves, zeros where there is none, from those of all that are marked, by kind."""
    by_leaf: list[Any] = []
    for gradients, marks in by_kind:
        rest = iter(gradients)
        by_leaf += [next(rest) if mark else None for mark in marks]
    return [vspace(leaves[i]).zeros() if by_leaf[i] is None else by_leaf[i] for i in wanted]


def tangent(call: NumpyCall, leaves: Sequence[Any], given: dict[int, Any]) -> Any:
    """The tangents of the results, from those of some leaves, in one loop forward."""
    from remat.frameworks.numpy.scan import scan_flat

    forward, n, request = _forward(call), call.steps, _same_plan(call)
    call.pending = None  # no reverse sweep will come
    init, xs, captured = call.split(leaves)
    assert call.results is not None
    assert n is not None
    init = [_widened(leaf, spec) for leaf, spec in zip(init, call.results.specs, strict=False)]
    flows, flows_out = call.results.flows[: len(init)], call.results.flows[len(init) :]
    dots, xs_dots, captured_dots = call.split([given.get(i) for i in range(len(leaves))])
    mark_xs, mark_captured = [dot is not None for dot in xs_dots], [dot is not None for dot in captured_dots]
    dots = [
        vspace(leaf).zeros() if dot is None else _like(dot, leaf)
        for leaf, dot, flow in zip(init, dots, flows, strict=True)
        if flow
    ]

    def step(known: list[Any], pairs: Any, inputs: Any) -> Any:
        (carry, dots), (x, x_dots) = pairs, inputs
        captured, captured_dots = known[: len(mark_captured)], known[len(mark_captured) :]
        with fresh_trace() as trace:
            carry_in, _ = box_leaves(carry, flows, trace, dots)
            x_in, _ = box_leaves(x, mark_xs, trace, x_dots)
            captured_in, _ = box_leaves(captured, mark_captured, trace, captured_dots)
            carry_out, y = forward(captured_in, carry_in, x_in)
            values, nodes = zip(*[unbox(leaf, trace) for leaf in [*carry_out, *y]], strict=True)

        def tangents(low: int, mask: list[bool]) -> list[Any]:
            return [
                _like(vspace(values[low + i]).zeros() if nodes[low + i] is None else nodes[low + i].g, values[low + i])
                for i, mark in enumerate(mask)
                if mark
            ]

        count = len(carry_out)
        return (list(values[:count]), tangents(0, flows)), tangents(count, flows_out)

    known = [*captured, *_where(captured_dots, mark_captured)]
    inputs = (xs, _where(xs_dots, mark_xs))
    if n == 0:
        return boxed_tuple(dots)
    (_, dots), y_dots = scan_flat(_FlatStep(step), (init, dots), inputs, known, n, request, call.rows)
    return boxed_tuple([*dots, *(y_dots or ())])


def _forward(call: NumpyCall) -> Callable[[list[Any], list[Any], list[Any]], tuple[list[Any], list[Any]]]:
    """The step between leaves: captured, carry, x → carry, y."""
    if call.vjp is not None:
        raise StepError(
            "second derivatives and forward mode need the step itself: a vjp= of one's own is not differentiated. "
            "Leave vjp= out, if autograd can differentiate the step"
        )
    if call.initial_rng is not None:
        raise StepError(
            "second derivatives and forward mode of a step that draws from the global random generators are not "
            "replayed: draw before the loop and pass the numbers in xs"
        )
    results = call.results
    assert results is not None

    def forward(captured: list[Any], carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        with call.step.rebind(captured) as step:
            after, y = unpack_output(leaf_ops, step(call.carry.unflatten(carry), call.xs.unflatten(x)), 0)
        outputs = flatten(y, unpack)[0] if len(results.flows) > results.carry_size else []
        return call.carry.flatten_like(after, "carry", unpack), outputs

    return forward


def _same_plan(call: NumpyCall) -> LoopRequest:
    """What to ask of the loops here: the schedule of the first one."""
    return replace(call.request, memory=None, plan=call.plan)


def _widened(leaf: Any, spec: ArraySpec) -> Any:
    """A Python number as what it becomes in the loop."""
    return spec.dtype.type(leaf) if type(leaf) in (bool, int, float, complex) else leaf


def _where(items: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    return [item for item, mark in zip(items, mask, strict=True) if mark]


def _like(value: Any, other: Any) -> Any:
    """A value with the dtype of another, so that a carry keeps it."""
    dtype = np.asarray(getval(other)).dtype
    return value if np.asarray(getval(value)).dtype == dtype else anp.array(value).astype(dtype)


def _for_every_step(part: Any, steps: int, rows: dict[int, int] | None) -> Any:
    """Cotangents of outputs with a row for every step, where only some steps put one out."""
    if rows is None:
        return part
    places = np.array([rows.get(i, len(rows)) for i in range(steps)])
    return anp.concatenate([part, np.zeros((1, *part.shape[1:]), part.dtype)])[places]

"""Second derivatives: the VJP of a loop is a loop again, and so is its JVP.

In a gradient of a gradient, autograd calls the VJP of a loop with boxes. Then one loop computes all states as its
outputs, and a second loop over these states, in reverse order, computes the gradient. Both are loops like the first, so
this works to any order. All states are in memory at once, but no tapes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import vspace
from autograd.tracer import getval

from remat.errors import StepError
from remat.execute.rng_state import global_rng_states
from remat.execute.step_states import StepStates
from remat.frameworks.numpy import leaves as leaf_ops
from remat.frameworks.numpy.captured_state import CapturedStep
from remat.frameworks.numpy.leaves import ArraySpec, GeneratorSpec, is_boxed, numbers, unpack
from remat.frameworks.numpy.loops.primitive import NumpyCall, loop_primitive
from remat.frameworks.numpy.loops.scan import scan_flat
from remat.frameworks.numpy.multiple_results import define_derivatives, make_results
from remat.frameworks.numpy.protection import StepMode, copier
from remat.frameworks.numpy.tape import box_leaves, fresh_trace, pull_back, unbox
from remat.loops.request import LoopRequest
from remat.loops.step_runner import unpack_output
from remat.pytree import Leaf, PyTree, flatten

__all__ = ["adjoint", "tangent"]


class _FlatStep(CapturedStep):
    """A step that takes captured values as its first argument, so no closure is searched; it has no side effects."""

    cache_key, references, replayable_states, containers = (), (), (), ()  # type: ignore[assignment]

    def __init__(self, function: Callable[[list[Leaf], Any, Any], Any], mode: StepMode = StepMode.PLAIN) -> None:
        self.function, self.mode = function, mode

    @contextmanager
    def rebind(self, values: list[Leaf]) -> Iterator[Callable[..., PyTree]]:
        """A context that yields the step with these captured values."""
        yield lambda carry, x: self.function(values, carry, x)


def adjoint(call: NumpyCall, leaves: Sequence[Leaf], cotangents: Sequence[Leaf], indices: Sequence[int]) -> list[Leaf]:
    """The gradients of the leaves with these indices, as a differentiable function of leaves and cotangents."""
    forward, n, request = _forward(call), call.steps, _same_plan(call)
    (init, xs, captured), active, active_outputs = _loop_values(call, leaves)
    assert call.results is not None
    assert n is not None
    rest = iter(call.results.dense_cotangents(cotangents))
    bars = [next(rest) for is_active in active if is_active]
    ybars = [_for_every_step(bar, n, call.rows) for bar in rest]
    if n == 0:
        return _by_index(leaves, indices, ((bars, active), ((), [False] * (len(leaves) - len(init)))))
    _, active_xs, active_captured = call.split([i in indices for i in range(len(leaves))])
    active_xs.append(False)
    generators = [isinstance(spec, GeneratorSpec) for spec in call.results.specs[: len(init)]]

    def states(captured: list[Leaf], carry: list[Leaf], x: list[Leaf]) -> PyTree:
        return forward(captured, carry, x)[0], [leaf for leaf, k in zip(carry, generators, strict=True) if not k]

    def backward(captured: list[Leaf], sums: PyTree, inputs: PyTree) -> PyTree:
        (bars, totals), (carry, x, ybars) = sums, inputs
        rest = iter(carry)  # without generators, which are the same objects in every step
        carry = [leaf if is_generator else next(rest) for leaf, is_generator in zip(init, generators, strict=True)]
        with fresh_trace() as trace:  # inside the caller's trace, which records the pullback itself
            carry_in, carry_roots = box_leaves(carry, active, trace)
            x_in, x_roots = box_leaves(x, active_xs, trace)
            captured_in, captured_roots = box_leaves(captured, active_captured, trace)
            carry_out, y = forward(captured_in, carry_in, x_in)
            nodes = [unbox(leaf, trace)[1] for leaf in [*_where(carry_out, active), *_where(y, active_outputs)]]
        pairs = [(node, bar) for node, bar in zip(nodes, [*bars, *ybars], strict=True) if node is not None]
        by_node = pull_back([pairs], {})

        def gradients(roots: list[Leaf], values: list[Leaf], mask: list[bool]) -> list[Leaf]:
            return [
                _like(by_node[node][0] if node in by_node else vspace(value).zeros(), value)
                for node, value, is_active in zip(roots, values, mask, strict=True)
                if is_active
            ]

        added = [a + b for a, b in zip(totals, gradients(captured_roots, captured, active_captured), strict=True)]
        return (gradients(carry_roots, carry, active), added), gradients(x_roots, x, active_xs)

    # All states are outputs of this loop and inputs of the reverse one, so autograd sees how they depend on init.
    _, trajectory = scan_flat(_FlatStep(states, call.mode), init, xs, captured, n, request)
    totals = [vspace(leaf).zeros() for leaf in _where(captured, active_captured)]
    backwards = [[leaf[::-1] for leaf in leaves] for leaves in (trajectory, xs, ybars)]
    step = _FlatStep(backward)
    (bars, totals), xbars = scan_flat(step, (bars, totals), tuple(backwards), captured, n, request)
    groups = ((bars, active), ([bar[::-1] for bar in xbars], active_xs[:-1]), (totals, active_captured))
    return _by_index(leaves, indices, groups)


def _loop_values(
    call: NumpyCall, leaves: Sequence[Leaf]
) -> tuple[tuple[list[Leaf], list[Leaf], list[Leaf]], list[bool], list[bool]]:
    """Init, xs with step numbers as one more leaf, and captured values; and which leaves of carry and y are active."""
    init, xs, captured = call.split(leaves)
    assert call.results is not None
    # The carry of this loop must keep its dtypes, but a Python number gets one only in the first step.
    init = [_promoted(leaf, spec) for leaf, spec in zip(init, call.results.specs, strict=False)]
    active = call.results.differentiable
    return (init, [*xs, np.arange(call.steps or 0)], captured), active[: len(init)], active[len(init) :]


def _by_index(leaves: Sequence[Leaf], indices: Sequence[int], groups: Sequence[tuple[Any, list[bool]]]) -> list[Leaf]:
    """The gradients of the leaves with these indices, zeros where there is none.

    `groups` are carry, inputs and captured values: the gradients of the active leaves, and a mask of these.
    """
    by_leaf: list[Leaf] = []
    for gradients, active in groups:
        rest = iter(gradients)
        by_leaf += [next(rest) if is_active else None for is_active in active]
    return [vspace(leaves[i]).zeros() if by_leaf[i] is None else by_leaf[i] for i in indices]


def tangent(call: NumpyCall, leaves: Sequence[Leaf], tangents: dict[int, Leaf]) -> PyTree:
    """The tangents of the results, from the tangents of some leaves by index, in one forward loop."""
    forward, n, request = _forward(call), call.steps, _same_plan(call)
    call.abandon()
    (init, xs, captured), active, active_outputs = _loop_values(call, leaves)
    assert n is not None
    dots, xs_dots, captured_dots = call.split([tangents.get(i) for i in range(len(leaves))])
    xs_dots.append(None)
    active_xs, active_captured = [dot is not None for dot in xs_dots], [dot is not None for dot in captured_dots]
    dots = [
        vspace(leaf).zeros() if dot is None else _like(dot, leaf)
        for leaf, dot, is_active in zip(init, dots, active, strict=True)
        if is_active
    ]

    def step(values: list[Leaf], pairs: PyTree, inputs: PyTree) -> PyTree:
        (carry, dots), (x, x_dots) = pairs, inputs
        captured, captured_dots = values[: len(active_captured)], values[len(active_captured) :]
        with fresh_trace() as trace:
            carry_in, _ = box_leaves(carry, active, trace, dots)
            x_in, _ = box_leaves(x, active_xs, trace, x_dots)
            captured_in, _ = box_leaves(captured, active_captured, trace, captured_dots)
            carry_out, y = forward(captured_in, carry_in, x_in)
            primals, nodes = zip(*[unbox(leaf, trace) for leaf in [*carry_out, *y]], strict=True)

        def tangents_of(low: int, mask: list[bool]) -> list[Leaf]:
            return [
                _like(vspace(primals[k]).zeros() if nodes[k] is None else nodes[k].g, primals[k])
                for k, is_active in enumerate(mask, low)
                if is_active
            ]

        count = len(carry_out)  # outputs follow the carry among the primals
        return (list(primals[:count]), tangents_of(0, active)), tangents_of(count, active_outputs)

    values = [*captured, *_where(captured_dots, active_captured)]
    inputs = (xs, _where(xs_dots, active_xs))
    if n == 0:
        return make_results(*dots)
    (_, dots), y_dots = scan_flat(_FlatStep(step), (init, dots), inputs, values, n, request, call.rows)
    return make_results(*dots, *(y_dots or ()))


def _forward(call: NumpyCall) -> Callable[[list[Leaf], list[Leaf], list[Leaf]], tuple[list[Leaf], list[Leaf]]]:
    """The step as a function of leaves: captured, carry, x → carry, y; the last leaf of x is the step's number."""
    if call.vjp is not None:
        raise StepError(
            "second derivatives and forward mode need the step itself: vjp= is not differentiated. "
            "Leave it out, if autograd can differentiate the step"
        )
    results = call.results
    assert results is not None
    states = StepStates([*global_rng_states(), *call.step.replayable_states], call.initial_states)

    def forward(captured: list[Leaf], carry: list[Leaf], x: list[Leaf]) -> tuple[list[Leaf], list[Leaf]]:
        if call.mode is not StepMode.PLAIN:  # steps may write into leaves that no gradient flows to
            private, active = copier(), results.differentiable
            carry = [leaf if keep else private(numbers(leaf)) for leaf, keep in zip(carry, active, strict=False)]

        def run() -> PyTree:
            with call.step.rebind(captured) as step:
                return step(call.carry.unflatten(carry), call.xs.unflatten(x[:-1]))

        # Variables are rebound inside `states.run`, since they are also contents that it restores.
        after, y = unpack_output(leaf_ops, states.run(int(numbers(x[-1])), run), 0)
        outputs = flatten(y, unpack)[0] if len(results.differentiable) > results.carry_size else []
        return call.carry.flatten_like(after, "carry", unpack), outputs

    return forward


def _same_plan(call: NumpyCall) -> LoopRequest:
    """The request for the loops here, with the plan of the first loop."""
    return replace(call.request, memory=None, plan=call.plan)


def _promoted(leaf: Leaf, spec: ArraySpec) -> PyTree:
    """A Python number as a scalar of the dtype to which the loop promotes it; other leaves unchanged."""
    return spec.dtype.type(leaf) if type(leaf) in (bool, int, float, complex) else leaf


def _where(items: Sequence[Leaf], mask: Sequence[bool]) -> list[Leaf]:
    return [item for item, is_active in zip(items, mask, strict=True) if is_active]


def _like(value: Leaf, other: Leaf) -> PyTree:
    """A value cast to the dtype of another, so that the carry keeps its dtype."""
    dtype = np.asarray(getval(other)).dtype
    return value if np.asarray(getval(value)).dtype == dtype else anp.array(value).astype(dtype)


def _for_every_step(bar: Leaf, steps: int, rows: dict[int, int] | None) -> PyTree:
    """The cotangents of some steps' outputs, extended to all steps by zeros."""
    if rows is None:
        return bar
    indices = np.array([rows.get(i, len(rows)) for i in range(steps)])
    return anp.concatenate([bar, np.zeros((1, *bar.shape[1:]), bar.dtype)])[indices]


def _gradients(call: NumpyCall, leaves: Sequence[Leaf], bars: Sequence[Leaf], indices: Sequence[int]) -> list[Leaf]:
    """The gradients of the leaves with these indices: by the reverse sweep, or by `adjoint` if anything is traced."""
    is_traced = any(map(is_boxed, [*leaves, *bars]))
    return adjoint(call, leaves, bars, indices) if is_traced else call.reverse(leaves, bars, indices)


# Here and not next to the primitive, since higher derivatives call the primitive themselves.
define_derivatives(loop_primitive, _gradients, tangent)

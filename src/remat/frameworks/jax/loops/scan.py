"""`scan` and `while_loop` on JAX: from a user's step and values to a loop of flat arrays, and back.

In: a step, values in any JAX containers, and the request. Out: values in the same containers. In between, the loop is
one call of a `ScanFunction`, a `WhileFunction` or, if Python drives it, a `HostLoop`.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten, tree_unflatten

from remat.errors import ProblemError, StepError
from remat.frameworks.jax.avals import (
    Array,
    ClosedJaxpr,
    Flags,
    Tracer,
    is_symbolic,
    lax_scan,
    merge,
    row_aval,
    select,
    unrepeatable,
)
from remat.frameworks.jax.loops.host_loop import HostLoop
from remat.frameworks.jax.loops.planning import online_slots, plan_for_jit
from remat.frameworks.jax.loops.scan_function import ScanFunction
from remat.frameworks.jax.loops.sections import run_sections
from remat.frameworks.jax.loops.step_jaxpr import (
    TracedStep,
    hoist_invariants,
    names_of,
    trace_condition,
    trace_step,
    with_hoisted,
)
from remat.frameworks.jax.loops.while_function import WhileFunction
from remat.frameworks.jax.transforms.identities import forward_only
from remat.frameworks.jax.transforms.primitives import call
from remat.loops.common_mistakes import LIST_OF_STEPS, is_float, refuse_bool
from remat.loops.request import LoopRequest
from remat.pytree import Leaf, PyTree
from remat.units import to_count

__all__ = ["free_bytes", "scan", "while_loop"]

MOST = 2**31 - 1  # the largest int32, in which steps are counted on the device


def free_bytes(*values: PyTree) -> int | None:
    """Free bytes on the device of these arrays; None if that is the host, or if the device does not report it."""
    devices = [d for leaf in tree_flatten(values)[0] if isinstance(leaf, jax.Array) for d in _devices(leaf)]
    device = devices[0] if devices else jax.devices()[0]
    stats = None if device.platform == "cpu" else device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None
    return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))


def _devices(leaf: jax.Array) -> list[Leaf]:
    try:
        return list(leaf.devices())
    except Exception:  # a tracer is on no device
        return []


def scan(
    step: Callable[[PyTree, PyTree], PyTree],
    init: PyTree,
    xs: PyTree,
    length: int | None,
    request: LoopRequest,
    vjp: Callable[..., Any] | None = None,
    rows: dict[int, int] | None = None,
    driven: bool = False,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[PyTree, PyTree]:
    """The last carry, and the outputs of all steps or, with `rows`, of the steps that it maps to a row."""
    if vjp is not None:
        raise StepError("vjp= is for NumPy; on JAX write a jax.custom_vjp function and call it in the step")
    if isinstance(unroll, Tracer):
        raise ProblemError(f"unroll must be known when the loop is traced, and is {unroll}: make it a static argument")
    inputs, x_tree = tree_flatten(xs)
    inputs = [leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf) for leaf in inputs]
    steps = _count_steps(inputs, names_of(xs, "xs"), length)
    if not driven:
        _refuse_progress(request, "give driven=True, which runs the loop op by op")
    if reverse:  # a reversed loop runs over flipped rows
        inputs = [jnp.flip(leaf, 0) for leaf in inputs]
    x = tree_unflatten(x_tree, [row_aval(leaf) for leaf in inputs])  # one row of each input, to trace the step with
    if isinstance(steps, int):
        request.validate(steps)
        if steps == 0:  # nothing to plan; lax.scan returns outputs of the right shapes, without rows
            return lax_scan(step, init, xs, length=0)  # type: ignore[no-any-return]
        request.record(steps)
    whole = trace_step(step, init, x)
    if rows is not None and request.plan is not None:  # the older `checkpointed_loop`, whose outputs are its carries
        request.record(steps, request.plan)
        ends = sorted(rows)
        carry, states = run_sections(whole, [b - a for a, b in pairwise([-1, *ends, steps - 1])])
        return tree_unflatten(whole.carry_tree, carry), tree_unflatten(whole.y_tree, states)
    carry, ys = _run(whole, inputs, steps, request, unroll, driven=driven)
    ys = [jnp.flip(y, 0) for y in ys] if reverse else ys
    if rows is not None:
        selected = np.array(sorted(rows, key=rows.__getitem__), dtype=np.int32)
        ys = [y[selected] for y in ys]
    return tree_unflatten(whole.carry_tree, carry), tree_unflatten(whole.y_tree, ys)


def _run(
    whole: TracedStep, inputs: list[Array], steps: int, request: LoopRequest, unroll: int | bool, *, driven: bool
) -> tuple[list[Array], list[Array]]:
    """The last carry and the outputs of a loop: differentiable within the budget if possible, else forward only."""
    traced, invariant = hoist_invariants(whole)
    args = [*traced.consts, *traced.carry, *inputs]
    reason = _no_gradient(traced.step.program, steps)
    n_rows = steps if inputs or traced.step.y_avals or reason else None
    plain = ScanFunction(traced.step, n_rows, steps, plan_for_jit(request), unroll)
    if reason is None:
        loop = HostLoop(traced.step, n_rows, steps, request) if driven else plain
        results = call(loop, [np.int32(steps), *args])
    else:
        results = list(plain.run(steps, *forward_only(args, reason)))  # type: ignore[arg-type]
    n_carry = len(traced.carry)
    return merge([not flag for flag in invariant], results[:n_carry], whole.carry), results[n_carry:]


def _no_gradient(program: ClosedJaxpr, steps: object) -> str | None:
    """Why a loop with this step has no gradient, with advice; None if it has one."""
    if not isinstance(steps, int):
        return (
            f"the number of steps is the symbolic dimension {steps}, and a gradient in a budget needs a plan, which "
            "needs the number: export the gradient for a length that is known, or export the value alone"
        )
    what = unrepeatable(program)
    return what and (
        f"the step cannot be run again as it ran before, and a gradient in a budget runs steps again: {what}. Pass "
        "such values as inputs (xs), draw random numbers by jax.random from a key, or use jax.lax.scan"
    )


def _refuse_progress(request: LoopRequest, advice: str) -> None:
    if request.progress is not None:
        raise ProblemError(f"progress cannot be reported from inside a traced function: {advice}")


def _count_steps(leaves: list[Leaf], names: list[str], length: int | None) -> int:
    """The number of steps that `length` and all inputs agree on; in jax.export it may be a symbolic dimension."""
    counts = {}
    if length is not None:
        counts["length"] = length if is_symbolic(length) else to_count(length, "length")
    for leaf, name in zip(leaves, names, strict=True):
        if not leaf.shape:
            raise StepError(f"{name} is a single number: the leaves of xs have one row for each step")
        counts[name] = leaf.shape[0]
    if not counts:
        raise ProblemError("the number of steps is not known: give xs, or length= if there are none")
    if len(set(counts.values())) > 1:
        claims = ", ".join(f"{name} says {count}" for name, count in list(counts.items())[:6])
        rows = {count for name, count in counts.items() if name != "length"}
        # Arrays that differ in length are not meant as one entry for each step.
        is_list = len(rows) == 1 and any(name.startswith("xs[0]") for name in counts)
        hint = f"; {LIST_OF_STEPS}" if is_list else ""
        raise ProblemError(
            f"the number of steps is not clear: {claims}; every leaf of xs has one row for each step{hint}"
        )
    steps = next(iter(counts.values()))
    if isinstance(steps, int) and steps >= MOST:
        raise ProblemError(f"{steps} steps are more than a device can count: the most are {MOST - 1}")
    return steps


def while_loop(
    cond: Callable[[PyTree], PyTree],
    body: Callable[[PyTree], PyTree],
    init: PyTree,
    max_steps: int | None,
    request: LoopRequest,
    write_once: Flags | None = None,
) -> PyTree:
    """The first carry for which `cond` is false, or the carry after `max_steps`.

    `write_once` flags the leaves of the carry for which the caller makes the promise described in `WhileFunction`.
    """
    _refuse_progress(request, "call jax.debug.callback in the body")
    most = min(MOST, MOST if max_steps is None else to_count(max_steps, "max_steps"))
    number = is_float(init)
    whole = trace_step(lambda carry, _: (refuse_bool(body(carry)) if number else body(carry), None), init, None)
    condition, cond_consts = trace_condition(cond, whole)
    traced, invariant = hoist_invariants(whole)
    condition = with_hoisted(condition, invariant)
    cond_consts = [*cond_consts, *select(invariant, whole.carry)]
    if request.memory is not None and request.memory.device.capacity is None:
        request.validate(None)  # a budget in slots can be refused now; one in bytes needs the sizes of a step
    buffers = None if write_once is None else tuple(select([not flag for flag in invariant], write_once))
    loop = WhileFunction(condition, traced.step, online_slots(request), None if max_steps is None else most, buffers)
    args = [*cond_consts, *traced.consts, *traced.carry]
    reason = _no_gradient(traced.step.program, 0) or _no_gradient(condition.program, 0)
    if reason is None:
        results = call(loop, [np.int32(most), *args])
    else:
        results = list(loop.run(jnp.int32(most), *forward_only(args, reason)))
    return tree_unflatten(whole.carry_tree, merge([not flag for flag in invariant], results, whole.carry))

"""`scan` and `while_loop` on JAX: from a user's step and values to a loop of flat arrays, and back.

In: a step, values in any containers of JAX, and what the caller asks for. Out: values in the same containers. In
between the loop is one call of a `ScanFunction`, a `WhileFunction` or, driven by Python, a `HostLoop`.
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
from remat.frameworks.jax.host_loop import HostLoop
from remat.frameworks.jax.identities import forward_only
from remat.frameworks.jax.planning import online_slots, plan_for_jit
from remat.frameworks.jax.primitives import call
from remat.frameworks.jax.scan_function import ScanFunction
from remat.frameworks.jax.sections import run_sections
from remat.frameworks.jax.step_jaxpr import (
    TracedStep,
    hoist_invariants,
    names_of,
    trace_condition,
    trace_step,
    with_hoisted,
)
from remat.frameworks.jax.while_function import WhileFunction
from remat.loops.common_mistakes import LIST_OF_STEPS
from remat.loops.request import LoopRequest
from remat.pytree import Leaf, PyTree
from remat.units import to_count

__all__ = ["free_bytes", "scan", "while_loop"]

MOST = 2**31 - 1  # the largest int32: steps are counted on the device


def free_bytes(*values: PyTree) -> int | None:
    """Free bytes of the device of these arrays; None if that is this machine's own memory, or does not tell."""
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
    """The last carry and the outputs of all steps, or of the steps in `rows`, which maps each to its row."""
    if vjp is not None:
        raise StepError("vjp= is for NumPy; on JAX write a jax.custom_vjp function and call it in the step")
    if isinstance(unroll, Tracer):
        raise ProblemError(f"unroll must be known when the loop is traced, and is {unroll}: make it a static argument")
    inputs, x_tree = tree_flatten(xs)
    inputs = [leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf) for leaf in inputs]
    steps = _count_steps(inputs, names_of(xs, "xs"), length)
    if not driven:
        _refuse_progress(request, "give driven=True, which runs the loop op by op")
    if reverse:  # a loop that runs back is one over flipped rows
        inputs = [jnp.flip(leaf, 0) for leaf in inputs]
    x = tree_unflatten(x_tree, [row_aval(leaf) for leaf in inputs])  # the step is traced with one row of each input
    if isinstance(steps, int):
        request.validate(steps)
        if steps == 0:  # nothing to plan; lax.scan makes outputs of the right shapes, without rows
            return lax_scan(step, init, xs, length=0)  # type: ignore[no-any-return]
        request.record(steps)
    whole = trace_step(step, init, x)
    if rows is not None and request.plan is not None:  # the older `checkpointed_loop`, which puts out its carry
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
    """The last carry and the outputs of a loop: differentiable in the budget, or where that cannot be, forward only."""
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
    """Why a loop of this step has no gradient, in words with advice; None if it has one."""
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
        raise ProblemError(f"nobody can be told of progress from inside a traced function: {advice}")


def _count_steps(leaves: list[Leaf], names: list[str], length: int | None) -> int:
    """The number of steps that all inputs and `length` agree on; in jax.export it may be a symbolic dimension."""
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
        hint = f"; {LIST_OF_STEPS}" if any(name.startswith("xs[0]") for name in counts) else ""
        raise ProblemError(
            f"the number of steps is not clear: {claims}; every leaf of xs has one row for each step{hint}"
        )
    steps = next(iter(counts.values()))
    if isinstance(steps, int) and steps >= MOST:
        raise ProblemError(f"{steps} steps are more than can be counted on a device: {MOST - 1} are the most")
    return steps


def while_loop(
    cond: Callable[[PyTree], PyTree],
    body: Callable[[PyTree], PyTree],
    init: PyTree,
    max_steps: int | None,
    request: LoopRequest,
    write_once: Flags | None = None,
) -> PyTree:
    """The first carry for which `cond` does not hold, or the one after `max_steps`.

    `write_once` flags the leaves of the carry of which the caller promises what `WhileFunction` says of such.
    """
    _refuse_progress(request, "call jax.debug.callback in the body")
    most = min(MOST, MOST if max_steps is None else to_count(max_steps, "max_steps"))
    whole = trace_step(lambda carry, _: (body(carry), None), init, None)
    condition, cond_consts = trace_condition(cond, whole)
    traced, invariant = hoist_invariants(whole)
    condition = with_hoisted(condition, invariant)
    cond_consts = [*cond_consts, *select(invariant, whole.carry)]
    if request.memory is not None and request.memory.device.capacity is None:
        request.validate(None)  # a budget in slots may be refused now; one in bytes needs the sizes of a step
    buffers = None if write_once is None else tuple(select([not flag for flag in invariant], write_once))
    loop = WhileFunction(condition, traced.step, online_slots(request), None if max_steps is None else most, buffers)
    args = [*cond_consts, *traced.consts, *traced.carry]
    reason = _no_gradient(traced.step.program, 0) or _no_gradient(condition.program, 0)
    if reason is None:
        results = call(loop, [np.int32(most), *args])
    else:
        results = list(loop.run(jnp.int32(most), *forward_only(args, reason)))
    return tree_unflatten(whole.carry_tree, merge([not flag for flag in invariant], results, whole.carry))

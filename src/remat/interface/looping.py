"""Loops: `scan` for a known number of steps, `while_loop` for an unknown one."""

from collections.abc import Callable
from typing import Any

from remat.errors import ProblemError
from remat.frameworks import find_framework, outside_compilers
from remat.loops.request import LoopRequest
from remat.planners import Plan
from remat.problem.memory import Capacity
from remat.profiling.profiler import recorded_call
from remat.progress import Progress

__all__ = ["scan", "while_loop"]


@outside_compilers
def scan(
    step: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    memory: Capacity | float = None,
    slots: int | None = None,
    plan: Plan | None = None,
    vjp: Callable[..., Any] | None = None,
    check: str = "first",
    progress: Progress | None = None,
    driven: bool = False,
) -> tuple[Any, Any]:
    """The last carry and the stacked outputs of `step(carry, x) -> (carry, y)`, differentiable inside a memory budget.

    Carry, x and y are arrays and numbers in any nesting of tuples, named tuples, lists, dicts and dataclasses; leaves
    of `xs` have one row for each step, or `length` says how many there are. Gradients flow to `init`, to `xs` and to
    all that the step closes over. The budget is `memory` (bytes, "64 MiB", or a fraction of what is free), `slots` (a
    count of states) or a `plan`. Without a gradient to compute it is a plain loop.

    `check` compares recomputed states with the first ones, in the "first" reverse sweep of a call, "always" or "never".
    `vjp(carry, x, carry_bar, y_bar) -> (carry_bar, x_bar)` is used instead of differentiating the step; where the step
    closes over traced variables it also returns their gradients: `(carry_bar, x_bar, {"W": W_bar})`.

    On JAX the loop is part of the traced function, with the contract of `jax.lax.scan`. `driven` runs it op by op
    instead, outside of jit, so that progress is told and traces are taken; elsewhere loops are always driven.

    >>> import autograd.numpy as np
    >>> from autograd import grad
    >>> def last(x):
    ...     return scan(lambda x, _: (np.tanh(1.1 * x + 0.1), None), x, length=6, slots=2)[0]
    >>> print(f"{grad(last)(0.3):.15f}")
    0.143826393402950
    """
    _check_callable(step, "step")
    if vjp is not None:
        _check_callable(vjp, "vjp")
    room = find_framework(init, xs, using=(step,))
    request = LoopRequest.parse(memory, slots, plan, check, progress, lambda: room.free_bytes(init, xs))
    with recorded_call("scan", step) as call:
        return room.scan(step, init, xs, length, request.for_profile(call, room.NAME), vjp, driven=driven)  # type: ignore[no-any-return]


@outside_compilers
def while_loop(
    cond: Callable[[Any], Any],
    body: Callable[[Any], Any],
    init: Any,
    *,
    max_steps: int | None = None,
    memory: Capacity | float = None,
    slots: int | None = None,
    check: str = "first",
    progress: Progress | None = None,
) -> Any:
    """The carry after `carry = body(carry)` was run as long as `cond(carry)` held, `max_steps` times at the most.

    The number of steps need not be known: states are kept as the loop goes on, `slots` of them at the most (or as many
    as fit `memory`), and the reverse sweep recomputes the others from these.

    >>> import autograd.numpy as np
    >>> from autograd import grad
    >>> print(grad(lambda x: while_loop(lambda x: x > 1.0, lambda x: x / 2.0, x, slots=3))(100.0))
    0.0078125
    """
    _check_callable(cond, "cond")
    _check_callable(body, "body")
    room = find_framework(init, using=(cond, body))
    request = LoopRequest.parse(memory, slots, None, check, progress, lambda: room.free_bytes(init))
    with recorded_call("while_loop", body) as call:
        return room.while_loop(cond, body, init, max_steps, request.for_profile(call, room.NAME))


def _check_callable(function: Any, name: str) -> None:
    if not callable(function):
        raise ProblemError(f"{name} must be a function, not {function!r:.60}")

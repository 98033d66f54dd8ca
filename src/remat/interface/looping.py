"""Loops: `scan` for a known number of steps, `while_loop` for an unknown one."""

from collections.abc import Callable
from typing import Any, TypeVar

from remat.errors import ProblemError
from remat.execute.determinism import Check
from remat.frameworks import Framework, find_framework
from remat.frameworks.compilers import not_compiled
from remat.loops.common_mistakes import explaining_mistakes
from remat.loops.request import LoopRequest
from remat.planners import Plan
from remat.problem.memory import Capacity, Memory
from remat.profiling.profiler import recorded_call
from remat.progress import Progress

__all__ = ["scan", "while_loop"]

# Stacked rows have the type of one row, as in jax.lax.scan; this holds for tensors and containers of tensors. Rows of a
# NumPy vector are numbers, so `xs` is `X | Any`: X is inferred where possible, and loops over numbers still type-check.
Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")


@not_compiled
def scan(
    step: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X | Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    memory: Capacity | float = None,
    slots: int | None = None,
    plan: Plan | None = None,
    vjp: Callable[..., Any] | None = None,
    check: Check = "first",
    progress: Progress | None = None,
    driven: bool = False,
) -> tuple[Carry, Y]:
    """Loop `step(carry, x) -> (carry, y)` over `xs`, differentiable inside a memory budget.

    Args:
        step: One step. Carry, x and y are arrays and numbers in any nesting of containers and dataclasses.
        init: The first carry.
        xs: The inputs; each leaf has one row per step. If None, the step gets None.
        length: The number of steps, required without `xs`.
        reverse: On JAX, as in `jax.lax.scan`; on other frameworks, flip `xs` and the outputs instead.
        unroll: On JAX, as in `jax.lax.scan`.
        memory: The budget for the peak: bytes, text such as "64 MiB", a fraction of what is free, or a `Memory`.
        slots: The budget as a number of kept states, instead of `memory`.
        plan: A plan to run, instead of a budget.
        vjp: `vjp(carry, x, carry_bar, y_bar) -> (carry_bar, x_bar)`, and `{"W": W_bar}` for captured variables by name.
        check: When recomputed states are compared with the originals: the "first" reverse sweep, "always", "never".
        progress: An object with `update(done, total)`.
        driven: On JAX, run op by op outside jit, with progress and traces; other frameworks always do.

    Returns:
        The last carry and the stacked outputs, with gradients for `init`, `xs` and everything the step closes over.

    Raises:
        ProblemError, StepError: If arguments contradict each other, or the step does not return a matching pair.
        InfeasibleError, DeterminismError: If no plan fits the budget; if a recomputed state differs from the original.

    Example:
        >>> from autograd import grad, numpy as np
        >>> print(f"{grad(lambda x: scan(lambda x, _: (np.tanh(x), None), x, length=6, slots=2)[0])(0.3):.6f}")
        0.627032
    """
    framework = _framework_of_scan(step, init, xs, length, vjp)
    options = _scan_options(framework, driven, reverse, unroll)
    asked = LoopRequest.parse(memory, slots, plan, check, progress, lambda: framework.free_bytes(init, xs))
    with recorded_call("scan", step) as call, explaining_mistakes(step, xs):
        return framework.scan(step, init, xs, length, asked.for_call(step, call, framework.TRAITS.name), vjp, **options)


def _framework_of_scan(step: Any, init: Any, xs: Any, length: Any, vjp: Any) -> Framework:
    """The framework of a scan; raise a ProblemError if its arguments are in another order."""
    _check_callables("remat.scan(step, init, xs, ...)", init, xs, step=step, vjp=vjp or step)
    return find_framework(init, _inputs(xs, length), using=(step,))


def _scan_options(framework: Framework, driven: bool, reverse: bool, unroll: int | bool) -> dict[str, Any]:
    """With the options of `jax.lax.scan` for JAX; on other frameworks, `reverse=True` is a ProblemError."""
    if framework.TRAITS.has_scan_options:
        return {"driven": driven, "reverse": bool(reverse), "unroll": unroll}
    if reverse:
        raise ProblemError(
            f"reverse=True is for JAX, and this runs on {framework.TRAITS.title}: flip the rows of xs, as xs[::-1] "
            "does for NumPy and xs.flip(0) for PyTorch, and flip the outputs, too"
        )
    return {"driven": driven}


@not_compiled
def while_loop(
    cond: Callable[[Carry], Any],
    body: Callable[[Carry], Carry],
    init: Carry,
    *,
    max_steps: int | None = None,
    memory: Capacity | float = None,
    slots: int | None = None,
    check: Check = "first",
    progress: Progress | None = None,
) -> Carry:
    """Run `carry = body(carry)` while `cond(carry)` is true, and return the last carry.

    The number of steps need not be known: some states are kept as the loop runs, and the reverse sweep recomputes the
    others from them.

    Args:
        cond: Whether to go on; returns one bool.
        body: One step, from a carry to the next.
        init: The first carry: arrays and numbers in any nesting of containers and dataclasses.
        max_steps: The most steps to run; the loop ends there without an error.
        memory: The budget for the peak: bytes, text such as "64 MiB", a fraction of what is free, or a `Memory`.
        slots: The budget as a number of kept states, instead of `memory`.
        check: When recomputed states are compared with the originals: the "first" reverse sweep, "always", "never".
        progress: An object with `update(done, total)`.

    Returns:
        The first carry for which `cond` is false, or the carry after `max_steps`. Gradients flow to `init` and to
        everything the body closes over.

    Raises:
        ProblemError, StepError, InfeasibleError, DeterminismError: As in `scan`.

    Example:
        >>> import autograd.numpy as np
        >>> from autograd import grad
        >>> print(grad(lambda x: while_loop(lambda x: x > 1.0, lambda x: x / 2.0, x, slots=3))(100.0))
        0.0078125
    """
    _check_callables("remat.while_loop(cond, body, init, slots=...)", init, cond=cond, body=body)
    framework = find_framework(init, using=(cond, body))
    request = LoopRequest.parse(memory, slots, None, check, progress, lambda: framework.free_bytes(init))
    with recorded_call("while_loop", body) as call:
        return framework.while_loop(  # type: ignore[no-any-return]
            cond, body, init, max_steps, request.for_call(body, call, framework.TRAITS.name)
        )


def _check_callables(call: str, *others: Any, **functions: Any) -> None:
    """Raise a ProblemError that shows the correct call if one of `functions` is not callable."""
    for name, function in functions.items():
        if not callable(function):
            order = f": write {call}" if any(map(callable, others)) else ""
            raise ProblemError(f"{name} must be a function, not {_kind(function)}{order}")


def _inputs(xs: X, length: Any) -> X:
    """Return `xs`; raise a ProblemError if a budget was passed as the length, or a length as the inputs."""
    # A float is a fraction of what is free; above 1 it is neither that nor a length, and counting steps refuses it.
    if isinstance(length, str | Memory) or (isinstance(length, float) and 0 < length <= 1):
        raise ProblemError(f"length={length!r} is not a number of steps: did you mean memory={length!r}?")
    if type(xs) is int:
        raise ProblemError(
            f"xs={xs} is a single number, and xs are the inputs, one row for each step: for {xs} steps without inputs "
            f"write length={xs}"
        )
    return xs


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{value!r:.60}" if shape is None else f"an array of shape {list(shape)}"

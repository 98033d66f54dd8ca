"""Segments: functions and modules whose residuals are not kept, but recomputed in the backward."""

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, overload

from remat.errors import ProblemError, StepError
from remat.execute.determinism import Check, parse_check
from remat.frameworks import Framework, find_framework_of_call, framework_of_module
from remat.frameworks.compilers import (
    compiled_checkpoint,
    is_compiling,
    looks_at_calls,
    run_uncompiled,
    traces_segments,
)
from remat.profiling.profiler import recorded_call
from remat.segments import CheckpointOptions
from remat.units import to_bytes

__all__ = ["adaptive_checkpoint", "check_callable", "checkpoint", "drop", "run_segment"]

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Policy = Callable[..., Any] | str | None
_ALWAYS = CheckpointOptions()
_NO_FUNCTION_YET = object()  # no function yet: drop is used as a decorator with options
_FOREIGN = {  # options of other checkpoints and of remat.scan, and why segments do not need them
    "use_reentrant": "there is one way to do it here, which nests",
    "preserve_rng_state": "random generators are always replayed",
    "determinism_check": "remat.drop(fn, check=...) says when values are compared",
    "early_stop": "remat.drop(fn, early_stop=...) has it",
    "context_fn": "call what it does inside the function",
    "debug": "errors name the tensor that changed",
    "policy": "remat.drop(fn, policy=...) has it",
    "memory": "a segment keeps its inputs alone. remat.auto_checkpoint(model, memory=...) fits a network into a "
    "budget, remat.scan(step, init, xs, memory=...) a loop",
    "slots": "a segment keeps its inputs alone. remat.scan(step, init, xs, slots=...) fits a loop into a budget",
    "prevent_cse": "what is recomputed is never merged with what was computed first",
    "static_argnums": "what is no array stays as it is",
    "static_argnames": "what is no array stays as it is",
    "concrete": "what is no array stays as it is",
}


def checkpoint(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `fn(*args, **kwargs)` without keeping its residuals; they are recomputed when its backward needs them.

    Gradients are those of the plain call, for the arguments and for everything else that `fn` uses. A recomputation
    draws the same random numbers; module statistics are updated only once. Segments nest: an inner one keeps nothing
    while the outer one runs for the first time. On PyTorch, a recomputation stops as soon as it has everything that the
    backward needs; with autograd, it runs to the end. On JAX this is `jax.checkpoint`: JAX and NumPy arrays are
    traced, and other arguments are passed through.

    Args:
        fn: A function or module; it must compute the same each time.
        *args: Its arguments: anything, with arrays in any nesting of containers.
        **kwargs: Its keyword arguments.

    Returns:
        What `fn` returns.

    Raises:
        ProblemError: If `fn` is not callable.
        StepError: If `fn` cannot be recomputed, or is passed an option of another library that it does not take.
        DeterminismError: In the backward, if recomputing `fn` gave a different result.

    Example:
        >>> import autograd.numpy as np, numpy
        >>> from autograd import grad
        >>> a, b = numpy.array([[1.0, 2.0], [3.0, 4.0]]), numpy.array([[5.0, 6.0], [7.0, 8.0]])
        >>> grad(lambda a: np.sum(checkpoint(np.dot, a, b) ** 2))(a)
        array([[ 454.,  618.],
               [1030., 1402.]])
    """
    result: T = run_segment("checkpoint", fn, args, kwargs, _ALWAYS)
    return result


@overload
def drop(
    fn: F, *, check: Check = "first", early_stop: bool = True, policy: Policy = None, memory: int | str | None = None
) -> F: ...


@overload
def drop(
    *, check: Check = "first", early_stop: bool = True, policy: Policy = None, memory: int | str | None = None
) -> Callable[[F], F]: ...


def drop(
    fn: Any = _NO_FUNCTION_YET,
    *,
    check: Check = "first",
    early_stop: bool = True,
    policy: Policy = None,
    memory: int | str | None = None,
) -> Any:
    """Make each call of a function or module a `checkpoint`; without `fn`, return a decorator that does so.

    A PyTorch module becomes a new module of the same class with the same contents, whose `forward` is recomputed while
    its own hooks are not; the original is not changed. An equinox module, or any other callable JAX pytree, becomes a
    pytree.

    Args:
        fn: A function or module.
        check: When recomputed values are compared with the originals: until the "first" backward through `fn` has
            found no difference, "always", or "never", which still compares shapes and dtypes. No effect on JAX.
        early_stop: Whether a recomputation ends as soon as it has everything that is needed. No effect on JAX.
        policy: What JAX saves anyway: one of `jax.checkpoint_policies` or its name, such as "dots_saveable".
        memory: The bytes that JAX may save anyway, such as "64 MiB", besides arguments and results; the values that
            save most time are chosen. For a PyTorch model, use `auto_checkpoint`.

    Returns:
        A function or module of the same signature.

    Raises:
        ProblemError: If `fn` is not callable, or an option is invalid or not for this framework.

    Example:
        >>> import autograd.numpy as np
        >>> from autograd import grad
        >>> block = drop(lambda x: np.sin(np.sin(x)))
        >>> print(f"{grad(block)(0.5):.6f}")
        0.778644
    """
    if fn is _NO_FUNCTION_YET:
        return partial(drop, check=check, early_stop=early_stop, policy=policy, memory=memory)
    check_callable(fn)
    options = _drop_options(check, early_stop, policy, memory)
    framework = framework_of_module(fn)
    if framework is not None:
        _check_policy(framework, options)
        return framework.checkpoint_module(fn, options)

    @wraps(fn)
    def dropped(*args: Any, **kwargs: Any) -> Any:
        return run_segment("drop", fn, args, kwargs, options)

    return dropped


def _drop_options(check: Check, early_stop: bool, policy: Policy, memory: int | str | None) -> CheckpointOptions:
    if not isinstance(early_stop, bool):
        raise ProblemError(f"early_stop must be True or False, not {early_stop!r:.40}")
    if not (policy is None or isinstance(policy, str) or callable(policy)):
        raise ProblemError(f"policy must be a function or its name, not {policy!r:.40}")
    if policy is not None and memory is not None:
        raise ProblemError("policy= and memory= both say what is kept: give one of them")
    size = None if memory is None else to_bytes(memory, "memory")
    return CheckpointOptions(parse_check(check), early_stop, policy=policy, memory=size)


def adaptive_checkpoint(fn: Callable[..., T], *args: Any, threshold: int | str = "10 KiB", **kwargs: Any) -> T:
    """Call `fn` as a `checkpoint` if the arrays of its result have more than `threshold` bytes in total.

    For a smaller result the residuals are kept as usual. The forward runs `fn` once either way.

    Args:
        fn: A function or module; it must compute the same each time.
        *args: Its arguments.
        threshold: Bytes of the result, as a number or text.
        **kwargs: Its keyword arguments.

    Returns:
        What `fn` returns.

    Raises:
        ProblemError: If `fn` is not callable or `threshold` is not a size.
        StepError, DeterminismError: As in `checkpoint`.

    Example:
        >>> import autograd.numpy as np, numpy
        >>> from autograd import grad
        >>> grad(lambda x: np.sum(adaptive_checkpoint(np.sin, x, threshold=1000)))(numpy.zeros(4))
        array([1., 1., 1., 1.])
    """
    if not is_compiling():
        _check_threshold_place(fn, args, kwargs)
    size = to_bytes(threshold, "threshold")
    try:
        result: T = run_segment("adaptive_checkpoint", fn, args, kwargs, CheckpointOptions(threshold=size))
    except TypeError as error:
        if args and type(args[-1]) in (int, str):  # a builtin, which does not say how many arguments it takes
            error.add_note(
                f"Everything after fn is passed to it. If {args[-1]!r:.40} is the threshold, write "
                f"remat.adaptive_checkpoint(fn, ..., threshold={args[-1]!r:.40})"
            )
        raise
    return result


def run_segment(
    what: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: CheckpointOptions
) -> Any:
    """Call `fn` as a segment; `what` is the name of the public function, for messages and profiles."""
    if is_compiling():  # the compiler understands torch's own checkpoint, and traces into it
        if options.policy is not None or options.memory is not None:
            raise ProblemError(_refusal(options, "torch"))
        if traces_segments():
            return compiled_checkpoint(fn, args, kwargs)
    if is_compiling() or looks_at_calls():
        return run_uncompiled(run_segment, what, fn, args, kwargs, options)
    check_callable(fn, what, *args)
    if kwargs:
        _check_options(what, fn, kwargs)
    framework = find_framework_of_call(fn, args, kwargs)
    _check_policy(framework, options)
    with recorded_call(what, fn) as call:
        return framework.checkpoint(fn, args, kwargs, options, call)


def _refusal(options: CheckpointOptions, framework: str) -> str:
    if options.memory is not None:
        instead = "auto_checkpoint(model, memory=...) plans a model" if framework == "torch" else "chain(...) plans one"
        return f"memory= is for JAX, and this runs on {framework}: leave it out; {instead}"
    return (
        f"policy= is for JAX, and this runs on {framework}: leave it out, and put what is to be kept outside of the "
        "segment, or give arrays of JAX"
    )


def _check_policy(framework: Framework, options: CheckpointOptions) -> None:
    if (options.policy is not None or options.memory is not None) and not framework.TRAITS.has_policies:
        raise ProblemError(_refusal(options, framework.TRAITS.name))


def check_callable(fn: Any, what: str = "checkpoint", *args: Any) -> None:
    """Raise a ProblemError if `fn` is not callable; if it is an array, show the call that was probably meant."""
    if callable(fn):
        return
    if any(map(callable, args)):
        raise ProblemError(f"the function comes before its arguments: write remat.{what}(fn, x)")
    if not (hasattr(fn, "shape") and hasattr(fn, "dtype")):
        raise ProblemError(f"fn must be a function or a module, not {fn!r:.60}")
    # The function that made the array has already run and kept its residuals: it must be passed in instead.
    threshold = f", threshold={args[0]!r:.20}" if what == "adaptive_checkpoint" and args else ""
    shown = f", {args[0]!r:.20}" if threshold else ""
    raise ProblemError(
        f"fn must be a function or a module, not an array ({type(fn).__name__} of shape {list(fn.shape)}): what "
        f"computed it has already run. Give the function and its arguments: write remat.{what}(f, x{threshold}) "
        f"for remat.{what}(f(x){shown})"
    )


def _check_threshold_place(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise a ProblemError if the last argument is one too many for the function and looks like a threshold."""
    check_callable(fn, "adaptive_checkpoint", *args)
    if not args or type(args[-1]) not in (int, str):
        return
    try:
        signature = inspect.signature(getattr(fn, "forward", fn))
        signature.bind(*args[:-1], **kwargs)
    except (TypeError, ValueError):  # a builtin, or a call that is wrong in another way: calling it will say so
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        raise ProblemError(
            f"fn takes {signature}, and {args[-1]!r:.40} is one argument too many: everything after fn is passed "
            f"to it. Give the threshold by name: remat.adaptive_checkpoint(fn, ..., threshold={args[-1]!r:.40})"
        ) from None


def _check_options(what: str, fn: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Raise a StepError for options of other functions that `fn` does not take."""
    for name in kwargs.keys() & _FOREIGN.keys():
        taken = _parameters(fn)
        if taken is not None and name not in taken and all(each.kind != each.VAR_KEYWORD for each in taken.values()):
            raise StepError(
                f"remat.{what} needs no {name}=: {_FOREIGN[name]}. Keyword arguments go to fn, which takes no "
                f"{name}; leave it out"
            )


def _parameters(fn: Callable[..., Any]) -> Any:
    """The parameters of a function or module; None if unknown."""
    try:
        return inspect.signature(getattr(fn, "forward", fn)).parameters
    except (TypeError, ValueError):
        return None

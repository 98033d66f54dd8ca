"""Segments under older names, with all inputs in one value: `checkpoint_segment` and `CheckpointGroup`.

In the older systems, one of the two takes the inputs before the function and the other after it. Here either order
works: the callable argument is the function, and if both are callable, the order is that of the signature.
"""

import inspect
from collections.abc import Callable
from typing import Any, Never, TypeVar

from remat.errors import ProblemError, StepError
from remat.interface.checkpointing import check_callable, run_segment
from remat.segments import CheckpointOptions

__all__ = ["CheckpointGroup", "checkpoint_segment", "checkpoint_segment_flex"]

T = TypeVar("T")
_ALWAYS = CheckpointOptions()


def checkpoint_segment(fn: Callable[..., T], inputs: Any, *context: Never) -> T:
    """Call `fn(inputs)`, or `fn(*inputs)` if it takes them separately, as a `checkpoint`.

    `checkpoint_segment(inputs, fn)` is the same, and `checkpoint_segment_flex` is another name for it.

    Args:
        fn: A function or module that takes all inputs as one argument, or one argument per input.
        inputs: A tuple or list of arrays, or one array.

    Returns:
        What `fn` returns.

    Raises:
        ProblemError: If neither argument is callable.
        StepError: If `fn` takes the inputs in neither way, and as in `checkpoint`.

    Example:
        >>> import autograd.numpy as np
        >>> from autograd import grad
        >>> print(grad(lambda a: checkpoint_segment(lambda inputs: inputs[0] * inputs[1], [a, 3.0]))(2.0))
        3.0
    """
    _refuse_context("checkpoint_segment(fn, inputs)", context)
    result: T = _segment("checkpoint_segment", fn, inputs)
    return result


checkpoint_segment_flex = checkpoint_segment


class CheckpointGroup:
    """Checkpoints of functions with any number of inputs and results.

    `checkpoint_fn_flex`, `checkpoint_fn_flex2` and `checkpoint_fn_flex3` are other names for `checkpoint_fn`.

    Example:
        >>> import autograd.numpy as np, numpy
        >>> from autograd import grad
        >>> def loss(a):
        ...     c, transposed = CheckpointGroup().checkpoint_fn((a, numpy.eye(2)), lambda a, b: (a @ b, (a @ b).T))
        ...     return np.sum(c) + np.sum(transposed)
        >>> grad(loss)(numpy.ones((2, 2)))
        array([[2., 2.],
               [2., 2.]])
    """

    def __init__(self, *context: Never) -> None:
        _refuse_context("CheckpointGroup()", context)

    def checkpoint_fn(self, inputs: Any, fn: Callable[..., T]) -> T:
        """Call `fn(inputs)`, or `fn(*inputs)` if it takes them separately, as a `checkpoint`.

        `checkpoint_fn(fn, inputs)` is the same.

        Args:
            inputs: A tuple or list of arrays, or one array.
            fn: A function or module that takes all inputs as one argument, or one argument per input.

        Returns:
            What `fn` returns.
        """
        result: T = _segment("CheckpointGroup", fn, inputs)
        return result

    checkpoint_fn_flex = checkpoint_fn
    checkpoint_fn_flex2 = checkpoint_fn
    checkpoint_fn_flex3 = checkpoint_fn


def _refuse_context(call: str, given: tuple[object, ...]) -> None:
    """Raise a ProblemError for extra arguments, such as the context that other libraries take."""
    if given:
        raise ProblemError(f"too many arguments; no context is needed here: write remat.{call}")


def _segment(what: str, fn: Any, inputs: Any) -> Any:
    """Run a segment whose function and inputs are given in either order."""
    if not callable(fn) and callable(inputs):
        fn, inputs = inputs, fn
    return run_segment(what, fn, _spread(fn, inputs), {}, _ALWAYS)


def _spread(fn: Callable[..., Any], inputs: Any) -> tuple[Any, ...]:
    """The arguments to call `fn` with: the inputs as one argument, or separately if it does not take just one."""
    check_callable(fn)
    if not isinstance(inputs, tuple | list):
        return (inputs,)
    try:
        signature = inspect.signature(getattr(fn, "forward", fn))
    except (TypeError, ValueError):  # a builtin, such as torch.matmul
        return tuple(inputs)
    any_number = any(each.kind == each.VAR_POSITIONAL for each in list(signature.parameters.values())[:1])
    if _binds(signature, inputs) and not any_number:
        return (inputs,)
    if _binds(signature, *inputs):
        return tuple(inputs)
    raise StepError(f"fn must take its {len(inputs)} inputs as one argument or one by one, and takes {signature}")


def _binds(signature: inspect.Signature, *args: Any) -> bool:
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True

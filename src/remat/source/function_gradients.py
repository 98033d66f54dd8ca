"""`remat.grad` and `remat.grad_with_checkpointing`: gradients of functions in plain NumPy, by autograd."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from remat.errors import ProblemError
from remat.frameworks.numpy.gradients_of import gradients_of
from remat.source.decorator import transformed
from remat.source.settings import Settings, settings_of_call

__all__ = ["grad", "grad_with_checkpointing"]


def grad_with_checkpointing(
    f: Callable[..., Any],
    wrt: int | str | Sequence[int | str] = (0,),
    num_checkpoints: int | None = None,
    *,
    memory: Any = None,
    init_grad: Any = None,
) -> Callable[..., Any]:
    """The gradient of `f`, whose loops keep few states and recompute the others.

    Args:
        f: A function in plain NumPy; its loops are rewritten as by `remat.checkpointed`.
        wrt: The arguments to differentiate with respect to, by position or name; one gives one gradient, several a
            tuple.
        num_checkpoints: The number of states that each loop keeps. By default, a function decorated with
            `remat.checkpointed` keeps its own budget, and others keep √n states for n iterations.
        memory: A budget in bytes for each loop instead, as in `remat.scan`.
        init_grad: The cotangent of the result; ones by default, so that an array's gradient is that of its sum.

    Returns:
        A function of the arguments of `f` that returns the gradients.

    Example:
        >>> import numpy as np, remat
        >>> def model(x, W):
        ...     for i in range(100):
        ...         x = np.tanh(W @ x)
        ...     return x
        >>> dx, dW = remat.grad_with_checkpointing(model, wrt=(0, 1), num_checkpoints=10)(x, W)  # doctest: +SKIP
    """
    asked = num_checkpoints is not None or memory is not None
    own: Settings | None = getattr(f, "remat_settings", None)
    if not asked and own is not None and own.given:
        return _gradient(f, wrt, init_grad, None)
    return _gradient(f, wrt, init_grad, Settings.parse(num_checkpoints, memory, root=not asked))


def grad(
    f: Callable[..., Any], wrt: int | str | Sequence[int | str] = (0,), *, init_grad: Any = None
) -> Callable[..., Any]:
    """The gradient of `f`, a function in plain NumPy; its loops run unchanged, or as `remat.checkpointed` rewrote them.

    Args:
        f: The function.
        wrt: The arguments to differentiate with respect to, by position or name; one gives one gradient, several a
            tuple.
        init_grad: The cotangent of the result; ones by default.

    Returns:
        A function of the arguments of `f` that returns the gradients.
    """
    return _gradient(f, wrt, init_grad, None)


def _gradient(f: Callable[..., Any], wrt: Any, init_grad: Any, settings: Settings | None) -> Callable[..., Any]:
    if callable(wrt) and not callable(f):
        raise ProblemError(f"the function comes first: write remat.grad(f, wrt={f!r:.40})")
    function = f if settings is None and hasattr(f, "remat_original") else transformed(f, settings or Settings())
    one = isinstance(wrt, int | str)
    signature = inspect.signature(function)
    positions = [_position(which, signature, f) for which in ((wrt,) if one else wrt)]

    @functools.wraps(f)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        names = [list(bound.arguments)[position] for position in positions]

        def of(values: Sequence[Any]) -> Any:
            bound.arguments.update(zip(names, values, strict=True))
            with settings_of_call(settings):
                return function(*bound.args, **bound.kwargs)

        for name in names:
            _check_is_numpy(bound.arguments[name], name)
        gradients = gradients_of(of, [bound.arguments[name] for name in names], init_grad)
        return gradients[0] if len(gradients) == 1 else gradients

    return gradient


def _check_is_numpy(value: Any, name: str) -> None:
    """Raise a ProblemError for an array of another framework, which autograd cannot differentiate."""
    framework = type(value).__module__.partition(".")[0]
    if framework in ("torch", "jax", "jaxlib"):
        title, how = ("PyTorch", "loss.backward()") if framework == "torch" else ("JAX", "jax.grad")
        raise ProblemError(
            f"{name} is an array of {title}, and remat.grad and grad_with_checkpointing differentiate NumPy "
            f"functions: decorate the function with @remat.checkpointed, and differentiate it with {how}"
        )


def _name(f: Any) -> str:
    return str(getattr(f, "__qualname__", None) or f"{f!r:.60}")


def _position(which: int | str, signature: inspect.Signature, f: Any) -> int:
    names = list(signature.parameters)
    if isinstance(which, str):
        if which not in names:
            raise ProblemError(f"wrt names {which!r}, and {_name(f)} has the arguments {', '.join(names)}")
        return names.index(which)
    if not -len(names) <= which < len(names):
        raise ProblemError(f"wrt has argument {which}, and {_name(f)} has {len(names)}: {', '.join(names)}")
    return which % len(names)

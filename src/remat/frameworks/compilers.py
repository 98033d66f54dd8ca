"""What becomes of remat's functions inside torch.compile.

This module is what the compiler traces into, so it is kept free of anything else: a loop is run as it is, since a
schedule is no graph to be compiled; a segment becomes one of torch's own, which the compiler knows and sees into.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

__all__ = ["compiled_checkpoint", "is_compiling", "not_compiled"]

P = ParamSpec("P")
T = TypeVar("T")


def is_compiling() -> bool:
    """Whether the calling code is being compiled."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def not_compiled(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which runs as it is where a compiler comes upon it."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if is_compiling():
            return sys.modules["torch"].compiler.disable(function)(*args, **kwargs)  # type: ignore[no-any-return]
        return function(*args, **kwargs)

    return run


def compiled_checkpoint(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `fn(*args, **kwargs)` returns, as a segment that the compiler knows."""
    checkpoint = sys.modules["torch"].utils.checkpoint.checkpoint
    return checkpoint(fn, *args, use_reentrant=False, **kwargs)

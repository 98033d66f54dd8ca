"""What becomes of remat's functions inside torch.compile.

This module is what the compiler traces into, so it is kept free of anything else. A loop is run as it is, since a
schedule is no graph to be compiled. A segment becomes one of torch's own, which the compiler knows and sees into, if
the back end differentiates the graph itself (AOTAutograd, which is inductor's): it takes the random state and the
buffers of modules along as values. Back ends that run the graph as it is ("eager") would run torch's segment in it
without either: other dropout masks, statistics gathered twice. There a segment is run as it is, outside of the graph.
Hooks of segments are not compiled: the compiler comes upon them where compiled code runs inside a segment.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

__all__ = ["compiled_checkpoint", "is_compiling", "not_compiled", "run_uncompiled", "traces_segments"]

P = ParamSpec("P")
T = TypeVar("T")


def is_compiling() -> bool:
    """Whether the calling code is being compiled."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def traces_segments() -> bool:
    """Whether the compiler is to trace a segment of the calling code; otherwise it runs outside of the graph."""
    return _differentiates_graph() or bool(getattr(_translator(), "one_graph", False))


def _differentiates_graph() -> bool:
    """Whether the back end that compiles the calling code differentiates the graph, so that torch's segments are exact.

    Of torch's own back ends all do but those that run the graph as it is; of others, those that call inductor.
    Without an answer, as in an export, it is yes.
    """
    backend: Any = getattr(getattr(_translator(), "output", None), "compiler_fn", None)
    while inner := getattr(backend, "compiler_fn", None) or getattr(backend, "_torchdynamo_orig_backend", None):
        backend = inner
    code = getattr(backend, "__code__", None)
    if code is None:  # an object: AOTAutograd, inductor
        return True
    if str(backend.__module__).startswith("torch."):
        return "eager" not in backend.__name__ or "aot" in backend.__name__
    return "compile_fx" in code.co_names


def _translator() -> Any:
    """The compiler's state in this thread, or None. There is no public query for the back end."""
    translator = getattr(sys.modules.get("torch._dynamo.symbolic_convert"), "InstructionTranslator", None)
    try:
        return translator.current_tx()  # type: ignore[union-attr]
    except AttributeError:
        return None


# The compiler calls these instead of tracing into them. This is what torch.compiler.assume_constant_result sets; torch
# may not have been imported.
for _constant in (traces_segments, _differentiates_graph):
    _constant._dynamo_marked_constant = True  # type: ignore[attr-defined]


def not_compiled(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which runs as it is where a compiler comes upon it."""
    torch = sys.modules.get("torch")
    # Asked for each saved tensor, so that it is looked up once, where torch is there.
    asked = is_compiling if torch is None else torch.compiler.is_compiling

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if asked():
            return run_uncompiled(function, *args, **kwargs)
        return function(*args, **kwargs)

    return run


def run_uncompiled(function: Callable[..., T], *args: object, **kwargs: object) -> T:
    """What the function returns, in code that is being compiled: the graph ends before it, and begins anew after it."""
    result: T = sys.modules["torch"].compiler.disable(function)(*args, **kwargs)
    return result


def compiled_checkpoint(fn: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> T:
    """What `fn(*args, **kwargs)` returns, as a segment that the compiler knows, where that is exact.

    It is a plain call in an export, which has no use for segments, and with fullgraph=True on a back end that runs the
    graph as it is.
    """
    torch = sys.modules["torch"]
    if torch.compiler.is_exporting() or not _differentiates_graph():
        return fn(*args, **kwargs)
    result: T = torch.utils.checkpoint.checkpoint(fn, *args, use_reentrant=False, **kwargs)
    return result

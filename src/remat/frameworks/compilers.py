"""How remat's functions behave inside torch.compile.

The compiler traces into this module, so it contains nothing else. A loop runs uncompiled, because a schedule is not a
graph that can be compiled. A segment becomes torch.utils.checkpoint, which the compiler supports, if the back end
differentiates the graph itself (AOTAutograd, used by inductor): it passes the rng state and module buffers through the
graph as values. A back end that runs the graph as it is ("eager") does neither, and would draw other dropout masks and
update statistics twice in the recomputation. There, a segment runs uncompiled, outside of the graph. The hooks of
segments are never compiled; the compiler meets them when compiled code runs inside a segment.

While compiled code runs, the compiler looks at every function that is called in it. It passes over those without
tensors among their arguments, but looks at what these call. So it would find the inside of remat, and compile the
second run of a segment whose first run was not compiled; `looks_at_calls` says when this can happen.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

__all__ = ["compiled_checkpoint", "is_compiling", "looks_at_calls", "not_compiled", "run_uncompiled", "traces_segments"]

P = ParamSpec("P")
T = TypeVar("T")


def is_compiling() -> bool:
    """Whether the calling code is being compiled."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def looks_at_calls() -> bool:
    """Whether a compiler would compile what the calling code calls, which it does not compile itself."""
    torch = sys.modules.get("torch")
    return torch is not None and torch._C._dynamo.eval_frame.get_eval_frame_callback() is not None


def traces_segments() -> bool:
    """Whether the compiler should trace segments of the calling code; otherwise they run outside of the graph."""
    return _differentiates_graph() or bool(getattr(_translator(), "one_graph", False))


def _differentiates_graph() -> bool:
    """Whether the back end that compiles the calling code differentiates the graph, which makes torch's segments exact.

    All of torch's own back ends do, except those that run the graph as it is. Other back ends do if they call inductor.
    If there is no back end to ask, as in an export, the answer is True.
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
    """The compiler's state in this thread, or None; there is no public way to ask for the back end."""
    translator = getattr(sys.modules.get("torch._dynamo.symbolic_convert"), "InstructionTranslator", None)
    try:
        return translator.current_tx()  # type: ignore[union-attr]
    except AttributeError:
        return None


# The compiler calls these functions instead of tracing into them. The attribute is what
# torch.compiler.assume_constant_result sets; torch may not be imported yet, so it is set directly.
for _constant in (traces_segments, _differentiates_graph):
    _constant._dynamo_marked_constant = True  # type: ignore[attr-defined]


def not_compiled(function: Callable[P, T]) -> Callable[P, T]:
    """The function, wrapped so that the compiler runs it uncompiled instead of tracing into it."""
    torch = sys.modules.get("torch")
    # Called for each saved tensor, so look the function up once if torch is already imported.
    asked = is_compiling if torch is None else torch.compiler.is_compiling

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if asked() or looks_at_calls():
            return run_uncompiled(function, *args, **kwargs)
        return function(*args, **kwargs)

    return run


def run_uncompiled(function: Callable[..., T], *args: object, **kwargs: object) -> T:
    """Call the function, uncompiled, from code that is being compiled: there is a graph break around it."""
    result: T = sys.modules["torch"].compiler.disable(function)(*args, **kwargs)
    return result


def compiled_checkpoint(fn: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> T:
    """What `fn(*args, **kwargs)` returns, run as torch.utils.checkpoint where that is exact.

    It is a plain call in an export, where segments have no effect, and with fullgraph=True on a back end that runs the
    graph as it is.
    """
    torch = sys.modules["torch"]
    if torch.compiler.is_exporting() or not _differentiates_graph():
        return fn(*args, **kwargs)
    result: T = torch.utils.checkpoint.checkpoint(fn, *args, use_reentrant=False, **kwargs)
    return result

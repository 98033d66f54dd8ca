"""`remat.checkpointed`: a function whose loops are checkpointed, and what it says about them."""

import ast
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any, ParamSpec, TypeVar, overload

from remat.errors import ProblemError, SourceError
from remat.source.analysis import Analysis, local_names
from remat.source.function_source import function_tree, new_function
from remat.source.last_items import use_last_items
from remat.source.loop_explanation import explained
from remat.source.mutation import is_fresh
from remat.source.nests import merge_nests
from remat.source.numpy_names import differentiable_names, replace_names
from remat.source.rewriting import rewritten
from remat.source.run_time import RunTime
from remat.source.settings import Settings
from remat.source.syntax import visible
from remat.source.updates import functional_updates, replace_copies

__all__ = ["checkpointed", "transformed"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def checkpointed(
    *, slots: int | None = None, memory: Any = None, check: Any = "first", on_unsupported: str = "raise"
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def checkpointed(fn: Callable[P, R], /) -> Callable[P, R]: ...
def checkpointed(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    slots: int | None = None,
    memory: Any = None,
    check: Any = "first",
    on_unsupported: str = "raise",
) -> Any:
    """The function with its `for` and `while` loops checkpointed: the same results and gradients, in less memory.

    Args:
        fn: The function, if the decorator has no arguments: then only loops over `remat.range` are checkpointed.
        slots, memory: The budget of each loop, as in `remat.scan`.
        check: When recomputed states are compared with the first ones, as in `remat.scan`.
        on_unsupported: "raise" refuses a loop that cannot be rewritten; "keep" leaves it as it is, with all its memory,
            which `fn.explain()` says.

    Returns:
        A function with `explain()`, which says for every loop what it carries and how it was planned, and `source`,
        the rewritten code.

    Raises:
        SourceError: If a loop cannot be rewritten; with file, line, code, and how to write it instead.

    Example:
        >>> import numpy as np, remat
        >>> from autograd import grad
        >>> @remat.checkpointed(slots=3)
        ... def decay(x):
        ...     for i in range(10):
        ...         x = np.tanh(1.1 * x + 0.1)
        ...     return x
        >>> print(f"{grad(decay)(0.3):.6f}")
        0.015047
    """
    if on_unsupported not in ("raise", "keep"):
        raise ProblemError(f'on_unsupported must be "raise" or "keep", not {on_unsupported!r:.40}')
    settings = Settings.parse(slots, memory, check)
    if fn is None:
        return lambda fn: transformed(fn, settings, keep=on_unsupported == "keep")
    return transformed(fn, settings, keep=on_unsupported == "keep")


def transformed(fn: Any, settings: Settings, *, keep: bool = False) -> Any:
    """The rewritten function; one that is rewritten already is rewritten again from its text, with these settings."""
    if isinstance(fn, MethodType):
        return MethodType(transformed(fn.__func__, settings, keep=keep), fn.__self__)
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(transformed(fn.__func__, settings, keep=keep))
    original = getattr(fn, "remat_original", fn)
    if not isinstance(original, FunctionType):
        how = "Give the function itself, or a method."
        if isinstance(fn, int | float | str):  # a budget in the place of the function
            how = f"Name the budget, as in @remat.checkpointed({'memory' if isinstance(fn, str) else 'slots'}={fn!r})."
        raise SourceError(f"{fn!r:.80} is no plain function, and has no text to rewrite\n{how}")
    tree = function_tree(original)
    replace_copies(tree)
    modules = _modules(original, tree)
    names, _, _ = local_names(tree, modules)
    use_last_items(tree, names)
    tree.body = functional_updates(tree.body, names, names - _others(tree, modules))
    merge_nests(tree)
    analysis = Analysis(tree, original.__code__.co_filename, modules, keep, settings.given).run()
    log: dict[int, Any] = {}
    hidden: dict[str, Any] = {".remat": RunTime(analysis.infos, settings, log)}
    replaced = differentiable_names(original, tree)
    makers, tree.body = rewritten(analysis)
    source = visible(ast.unparse(ast.fix_missing_locations(ast.Module([*makers, tree], []))))
    for name, value in replaced.items():
        hidden[f".{name}"] = value
    for part in (*makers, tree):
        replace_names(part, {name: f".{name}" for name in replaced})
    new = new_function(original, tree, makers, hidden)
    new.remat_original, new.source = original, source  # type: ignore[attr-defined]
    new.loops, new.explain = tuple(analysis.infos), lambda: explained(analysis.infos, settings, log)  # type: ignore[attr-defined]
    return new


def _modules(function: FunctionType, tree: ast.FunctionDef) -> frozenset[str]:
    """The names that stand for modules in a function."""
    found = {name for name, value in function.__globals__.items() if isinstance(value, ModuleType)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            if isinstance(cell.cell_contents, ModuleType):
                found.add(name)
        except ValueError:  # not bound yet
            continue
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return frozenset((found | {".remat"}) - stored - {n.arg for n in ast.walk(tree.args) if isinstance(n, ast.arg)})


def _others(tree: ast.FunctionDef, modules: frozenset[str]) -> set[str]:
    """The local names that may stand for somebody else's objects: parameters, and what is not made on the spot."""
    found = {n.arg for n in ast.walk(tree.args) if isinstance(n, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
            if not is_fresh(node.value, modules, ()):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not _is_plain_target(tree, node):
            found.add(node.id)
    return found


def _is_plain_target(tree: ast.FunctionDef, name: ast.Name) -> bool:
    """Whether a stored name is a target of a plain assignment, whose value is looked at there."""
    return any(isinstance(n, ast.Assign | ast.AugAssign) and name in getattr(n, "targets", [n]) for n in ast.walk(tree))

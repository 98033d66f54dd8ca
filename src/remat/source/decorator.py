"""`remat.checkpointed`: a function whose loops are checkpointed, and what it says about them."""

import ast
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, ParamSpec, TypeVar, overload

from remat.errors import ProblemError, SourceError
from remat.source.data_flow.analysis import Analysis, local_names
from remat.source.data_flow.mutation import is_fresh
from remat.source.loop_explanation import explained
from remat.source.marked_range import MarkedRange
from remat.source.rewrite.function_source import function_tree, has_loops, new_function
from remat.source.rewrite.last_items import use_last_items
from remat.source.rewrite.nests import merge_nests
from remat.source.rewrite.numpy_names import differentiable_names, replace_names, with_differentiable_names
from remat.source.rewrite.rewriting import rewritten
from remat.source.rewrite.updates import functional_updates, replace_copies
from remat.source.run_time.turns import RunTime
from remat.source.settings import Settings
from remat.source.syntax import assigned_pairs, visible

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
        slots: The budget of each loop as a number of kept states, as in `remat.scan`.
        memory: The budget of each loop in bytes, as in `remat.scan`.
        check: When recomputed states are compared with the first ones, as in `remat.scan`.
        on_unsupported: "raise" refuses a loop that cannot be rewritten; "keep" leaves it unchanged, with all its
            memory, and `fn.explain()` says so.

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
    decorate = partial(transformed, settings=settings, keep=on_unsupported == "keep", needs_budget=True)
    return decorate if fn is None else decorate(fn)


def transformed(fn: Any, settings: Settings, *, keep: bool = False, needs_budget: bool = False) -> Any:
    """The rewritten function; one that is already rewritten is rewritten anew from its source, with these settings."""
    if isinstance(fn, MethodType):
        return MethodType(transformed(fn.__func__, settings, keep=keep, needs_budget=needs_budget), fn.__self__)
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(transformed(fn.__func__, settings, keep=keep, needs_budget=needs_budget))
    original = getattr(fn, "remat_original", fn)
    if not isinstance(original, FunctionType):
        how = "Give the function itself, or a method."
        if isinstance(fn, int | float | str):  # a budget in place of the function
            how = f"Name the budget, as in @remat.checkpointed({'memory' if isinstance(fn, str) else 'slots'}={fn!r})."
        raise SourceError(f"{fn!r:.80} is not a plain function, so there is no source to rewrite\n{how}")
    try:
        tree = function_tree(original)
    except SourceError:
        if needs_budget or has_loops(original.__code__) or hasattr(original, "__wrapped__"):
            raise
        return with_differentiable_names(original)  # its gradient is the plain one: there is nothing to rewrite
    replace_copies(tree)
    modules = _modules(original, tree)
    names, _, _ = local_names(tree, modules)
    use_last_items(tree, names)
    tree.body = functional_updates(tree.body, names, names - _others(tree, modules))
    merge_nests(tree)
    analysis = Analysis(tree, original.__code__.co_filename, modules, keep, _outside(original), settings.given).run()
    if needs_budget and not settings.given and analysis.infos and not _may_mark_loops(original):
        raise ProblemError(
            f"give the loops of {original.__qualname__} a budget: @remat.checkpointed(slots=31), a number of states, "
            'or memory="64 MiB". Without one they would keep everything; remat.range(n, slots=31) gives one to a '
            "single loop"
        )
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
    new.remat_original, new.remat_settings, new.source = original, settings, source  # type: ignore[attr-defined]
    new.loops, new.explain = tuple(analysis.infos), lambda: explained(analysis.infos, settings, log)  # type: ignore[attr-defined]
    return new


def _may_mark_loops(function: FunctionType) -> bool:
    """Whether a function refers to `remat.range`, or to a module that has it."""
    values = [function.__globals__.get(name) for name in function.__code__.co_names]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not bound yet
            values.append(cell.cell_contents)
    return any(value is MarkedRange or _has_marked_range(value) for value in values)


def _has_marked_range(value: object) -> bool:
    """Whether a value is the module `remat`, or one that has its `range`."""
    return isinstance(value, ModuleType) and getattr(value, "range", None) is MarkedRange


def _outside(function: FunctionType) -> dict[str, Any]:
    """The values of the names that a function has from outside: globals, and variables of functions around it."""
    found = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not bound yet
            found[name] = cell.cell_contents
    return found


def _modules(function: FunctionType, tree: ast.FunctionDef) -> frozenset[str]:
    """The names that refer to modules in a function."""
    found = {name for name, value in _outside(function).items() if isinstance(value, ModuleType)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return frozenset((found | {".remat"}) - stored - {n.arg for n in ast.walk(tree.args) if isinstance(n, ast.arg)})


def _others(tree: ast.FunctionDef, modules: frozenset[str]) -> set[str]:
    """The local names that may refer to objects of others: parameters, and names that are not bound to new objects."""
    found = {n.arg for n in ast.walk(tree.args) if isinstance(n, ast.arg)}
    plain: set[int] = set()  # the targets of assignments, whose values are looked at
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Assign | ast.AugAssign)):
        for target, value in assigned_pairs(node) if isinstance(node, ast.Assign) else ((node.target, None),):
            if isinstance(target, ast.Name):
                plain.add(id(target))
                if value is not None and not is_fresh(value, modules, ()):
                    found.add(target.id)
    stored = (n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return found | {name.id for name in stored if id(name) not in plain}

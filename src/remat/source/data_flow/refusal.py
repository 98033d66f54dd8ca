"""Errors for what cannot be rewritten: with file, line, the offending code, and how to write it instead."""

import ast
import linecache
from collections.abc import Callable, Collection, Iterator
from typing import NoReturn

from remat.errors import SourceError
from remat.source.data_flow.flow import Change, FlowVisitor, Loop
from remat.source.data_flow.scopes import own_nodes

__all__ = ["check_function", "check_loop", "refuse"]

Refuse = Callable[[ast.AST, str, str], NoReturn]
_SEES_VARIABLES = ("locals", "vars", "eval", "exec", "globals", "dir")


def refuse(file: str, node: ast.AST, why: str, how: str) -> NoReturn:
    """Raise the SourceError for a node."""
    line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
    code = linecache.getline(file, line).strip() or ast.unparse(node).splitlines()[0]
    raise SourceError(f"{file}, line {line}: {why}\n    {code}\n{how}", file, line, column, code)


def check_function(function: ast.AST, refuse: Refuse) -> None:
    """Refuse what makes a whole function impossible to rewrite."""
    if isinstance(function, ast.AsyncFunctionDef):
        refuse(function, "an async function cannot be differentiated", "Make it a plain function.")
    for node in own_nodes(list(ast.iter_child_nodes(function))):
        if isinstance(node, ast.Yield | ast.YieldFrom):
            refuse(node, "a generator has no result to differentiate", "Return a list or an array in place of yield.")
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
            refuse(node, "await and async have no place in a differentiated loop", "Wait for the values before it.")
    for node in ast.walk(function):
        if isinstance(node, ast.Nonlocal):
            refuse(
                node,
                "an inner function assigns a variable of this one, which loops cannot follow",
                "Return the value from the inner function.",
            )


def check_loop(loop: Loop, flow: FlowVisitor, outputs: Collection[ast.AST], declared: set[str], refuse: Refuse) -> None:
    """Refuse what a step must not do: change objects that are not its own."""
    for part in loop.body if isinstance(loop, ast.For) else [loop.test, *loop.body]:
        for node in ast.walk(part):
            _check_node(node, refuse)
    for name in sorted(flow.written & declared):
        node = next(n for n in ast.walk(loop) if isinstance(n, ast.Name) and n.id == name)
        refuse(node, f"the loop assigns {name}, which is a variable of another scope", "Use a local name in the loop.")
    given = {id(node) for node in outputs} | set(map(id, _counters(loop)))
    for change in flow.changes:
        if not change.fresh and id(change.node) not in given:
            _refuse_change(change, refuse)


def _counters(loop: Loop) -> Iterator[ast.expr]:
    """The attributes in which a loop counts, as in `self.n += 1`: they are replayed, as those that functions set."""
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            counts = isinstance(node.op, ast.Add | ast.Sub) and isinstance(node.value, ast.Constant)
            if counts and type(node.value.value) is int and isinstance(node.target.value, ast.Name):  # type: ignore[attr-defined]
                yield node.target


def _check_node(node: ast.AST, refuse: Refuse) -> None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SEES_VARIABLES:
        of_an_object = node.func.id in ("vars", "dir") and node.args
        if not of_an_object:
            refuse(node, f"{node.func.id}() sees the variables of a step, not of the function", "Name the variables.")
    if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await):
        refuse(node, "an iteration of the loop cannot be left and entered again", "Collect the values in a list.")


def _refuse_change(change: Change, refuse: Refuse) -> NoReturn:
    what = change.name or "an object"
    why = f"{change.how} changes {what} in place, which the turns of the loop share"
    if "append" in change.how:
        how = (
            f"Append once in every turn, as a statement of the loop itself and before any continue, and do not use "
            f"{what} in the loop otherwise; or carry an array."
        )
    elif "attribute" in change.how:
        how = f"Use a local variable in the loop, and assign it to {what} after the loop."
    else:
        how = f"Make a new object in every turn, as in {what} = …, or copy what you change."
    refuse(change.node, why, how)

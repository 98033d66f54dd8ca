"""What a step computes with Python integers, which are unbounded, while integers in arrays are bounded.

The rule: the variable of a loop, and what is computed from it, may be traced as an array unless something is raised to
its power or shifted by it in the body, or its type or text is used: in the body, or in a function that it is passed to.
Whether its products stay within the bounds of an array is checked when the step is traced. The cost: a walk over the
body, and over the instructions of such functions.
"""

import ast
import dis
from collections.abc import Collection
from types import CodeType

from remat.source.syntax import names_in

__all__ = ["asks", "hands_on", "is_traceable", "multiplied_names"]

# Functions that distinguish an array from the number that it represents.
_ASKS = frozenset({"isinstance", "type", "str", "repr", "format", "id", "callable", "hasattr", "getattr"})

_TEXTS = ("FORMAT_", "BUILD_STRING", "CONVERT_VALUE")  # instructions of f-strings, by version
_GROWING = (ast.Pow, ast.LShift)


def asks(code: CodeType) -> bool:
    """Whether a function, or one inside it, uses the type or the text of something."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    texts = any(each.opname.startswith(_TEXTS) for each in dis.get_instructions(code))
    return texts or not _ASKS.isdisjoint(code.co_names) or any(map(asks, inner))


def hands_on(loop: ast.For | ast.While, modules: Collection[str]) -> bool:
    """Whether the variable of a loop, or what is computed from it, is passed to a user's function."""
    if isinstance(loop, ast.While):
        return False
    nodes = [node for part in loop.body for node in ast.walk(part)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and not _is_of_module(node.func, modules)]
    tainted = _tainted(loop, nodes)
    return any(_names(part) & tainted for call in calls for part in (*call.args, *(k.value for k in call.keywords)))


def _is_of_module(called: ast.expr, modules: Collection[str]) -> bool:
    while isinstance(called, ast.Attribute):
        called = called.value
    return isinstance(called, ast.Name) and called.id in modules


def is_traceable(loop: ast.For | ast.While) -> bool:
    """Whether the variable of a loop may be an integer array in place of a Python integer."""
    if isinstance(loop, ast.While):
        return True
    nodes = [node for part in loop.body for node in ast.walk(part)]
    tainted = _tainted(loop, nodes)
    whole = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)} | _whole_names(nodes, tainted)
    for node in nodes:
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, _GROWING):
            sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
            if any(_names(side) & whole for side in sides):
                return False
        if _asks(node):
            return False
    return True


def _tainted(loop: ast.For, nodes: list[ast.AST]) -> set[str]:
    """The variable of a loop, and the names that are computed from it."""
    tainted = _names(loop.target)
    for _ in range(2):  # names computed from it, and names computed from these
        for node in nodes:
            value = getattr(node, "value", None)
            assigns = isinstance(node, ast.Assign | ast.AugAssign | ast.NamedExpr) and value is not None
            if assigns and _names(value) & tainted:  # type: ignore[arg-type]
                targets = getattr(node, "targets", None) or [node.target]  # type: ignore[attr-defined]
                tainted |= {name for target in targets for name in _names(target)}
    return tainted


def _asks(node: ast.AST) -> bool:
    """Whether an expression uses the type or the text of something."""
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute):
        return called.attr == "format"
    of_text = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant)
    return isinstance(node, ast.FormattedValue) or of_text or (isinstance(called, ast.Name) and called.id in _ASKS)


def _whole_names(nodes: list[ast.AST], tainted: set[str]) -> set[str]:
    """Tainted names that may be whole numbers: computed without a division, a float, a call or a matrix product."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and _names(node.value) & tainted:
            inside = list(ast.walk(node.value))
            real = any(
                isinstance(n, ast.Call | ast.MatMult | ast.Div)
                or (isinstance(n, ast.Constant) and isinstance(n.value, float))
                for n in inside
            )
            if not real:
                found |= {name for target in node.targets for name in _names(target)}
    return found


def multiplied_names(loop: ast.For | ast.While) -> set[str]:
    """The names to which a loop assigns products, powers or shifts."""
    found: set[str] = set()
    for part in loop.body:
        for node in ast.walk(part):
            if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Mult, *_GROWING)):
                found |= _names(node.target)
            elif isinstance(node, ast.Assign):
                grows = [n for n in ast.walk(node.value) if isinstance(n, ast.Mult | ast.Pow | ast.LShift)]
                found |= {name for target in node.targets for name in _names(target)} if grows else set()
    return found


def _names(node: ast.AST) -> set[str]:
    return set(names_in(node))

"""Statements that print or log: they are marked, so that a step runs them only in its first run."""

import ast
from collections.abc import Collection

from remat.source.syntax import words

__all__ = ["mark_emissions"]

_METHODS = words("debug info warning warn error exception critical log write flush writelines")


def mark_emissions(body: list[ast.stmt], locals_: Collection[str]) -> bool:
    """Mark the statements that print or log (`node.remat_emits`); return whether there are any."""
    found = False
    for part in body:
        for node in ast.walk(part):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _emits(node.value, locals_):
                node.remat_emits = True  # type: ignore[attr-defined]
                found = True
    return found


def _emits(call: ast.Call, locals_: Collection[str]) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id == "print" and "print" not in locals_
    if not (isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS):
        return False
    owner = ast.unparse(call.func.value).lower()
    return any(word in owner for word in ("log", "warnings", "stdout", "stderr", "file", "writer", "console"))

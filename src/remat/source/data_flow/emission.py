"""Calls that may print, log or write to a file: they are marked, so that a step makes them once per turn.

The rule: calls of `print`, and of methods with the names below, are marked; at run time `run_time/speech.py` decides by
the object whether it is one that writes, and all others are ordinary calls. A stream that the loop also uses otherwise
is marked as read: a step cannot read what is only written after its turn. The cost: one call for each of these calls.
"""

import ast
from collections.abc import Collection, Iterator

from remat.source.syntax import words

__all__ = ["mark_emissions"]

_WRITES = words("write writelines writerow writerows flush")
_LOGS = words("debug info warning warn error exception critical log")  # only as statements: `x.log()` is a number


def mark_emissions(body: list[ast.stmt], locals_: Collection[str]) -> bool:
    """Mark the calls that may write (`node.remat_emits`, "once" or "read"); return whether there are any."""
    nodes = [node for part in body for node in ast.walk(part)]
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    calls = [n for n in nodes if isinstance(n, ast.Call) and _emits(n, locals_, id(n) in statements)]
    streams = [stream for call in calls for stream in _streams(call)]
    given = {id(stream) for stream in streams}
    others = {n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in given}
    for call in calls:
        is_read = any(stream.id in others for stream in _streams(call))
        was_read = getattr(call, "remat_emits", "") == "read"  # in the loop around it
        call.remat_emits = "read" if is_read or was_read else "once"  # type: ignore[attr-defined]
    return bool(calls)


def _emits(call: ast.Call, locals_: Collection[str], is_statement: bool) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id == "print" and "print" not in locals_
    if not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr in _WRITES or (is_statement and call.func.attr in _LOGS)


def _streams(call: ast.Call) -> Iterator[ast.Name]:
    """The names of the streams that a call writes to."""
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        yield call.func.value
    for keyword in call.keywords:
        if keyword.arg == "file" and isinstance(keyword.value, ast.Name):
            yield keyword.value

"""Dicts that a loop gives an item under a new key in every turn, as in `tape[f"k{i}"] = x`.

The rule: the dict is a local name that the function only binds to new dicts, and the key is made of constants and of
variables of the loop that have another value in every turn and that the body does not assign: the number of a range or
of `enumerate`, or the key of a dict. Different values give different keys, so the loop holds as many items as the dict
has in the end. Keys are computed after the turns, from the items of the loop. What it can miss: keys that repeat, as
`i % 3`, and counters of `while` loops; the dict is carried then, and must not grow.
"""

import ast
from collections.abc import Collection, Iterable, Iterator

from remat.source.syntax import assigned_pairs, names_in

__all__ = ["dicts_made", "is_new_key", "stored_names"]


def dicts_made(function: ast.FunctionDef) -> frozenset[str]:
    """The names that a function only binds to new dicts."""
    made: set[str] = set()
    plain: set[int] = set()  # the targets of these bindings, and of item assignments
    for node in ast.walk(function):
        pairs = assigned_pairs(node) if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = [(node.target, node.value)]
        for target, value in pairs:
            is_dict = _is_new_dict(value)
            if isinstance(target, ast.Name) and (is_dict or hasattr(node, "puts_into")):
                plain.add(id(target))
                made |= {target.id} if is_dict else set()
    bound = (n for n in ast.walk(function) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    others = {name.id for name in bound if id(name) not in plain}
    return frozenset(made - others - {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)})


def is_new_key(loop: ast.For, key: ast.expr, name: str, locals_: Collection[str]) -> bool:
    """Whether a key of the dict `name` is another one in every turn, and only depends on numbers of the turns."""
    numbers = set(_numbered(loop.target, loop.iter)) - stored_names(loop.body)
    return (
        set(names_in(key)) <= numbers | ({"str"} - set(locals_))
        and name not in names_in(loop.iter)
        and any(_tells_apart(key, number) for number in numbers)
    )


def stored_names(body: Iterable[ast.stmt]) -> set[str]:
    """The names that statements bind or delete."""
    nodes = (n for part in body for n in ast.walk(part) if isinstance(n, ast.Name))
    return {n.id for n in nodes if not isinstance(n.ctx, ast.Load)}


def _is_new_dict(value: ast.expr) -> bool:
    is_call = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict"
    return isinstance(value, ast.Dict | ast.DictComp) or is_call


def _numbered(target: ast.expr, items: ast.expr) -> Iterator[str]:
    """The variables of a loop that have another value in every turn."""
    if not isinstance(items, ast.Call):
        return
    called, arguments = ast.unparse(items.func), items.args
    parts: Collection[ast.expr] = target.elts if isinstance(target, ast.Tuple) else ()
    if isinstance(target, ast.Name) and called in ("range", "remat.range"):
        yield target.id
    elif isinstance(target, ast.Name) and called == "reversed" and arguments:
        yield from _numbered(target, arguments[0])
    elif called == "zip" and len(parts) == len(arguments):
        for part, argument in zip(parts, arguments, strict=True):
            yield from _numbered(part, argument)
    elif (called == "enumerate" or called.endswith(".items")) and len(parts) == 2:
        first = next(iter(parts))
        if isinstance(first, ast.Name):
            yield first.id


def _tells_apart(key: ast.expr, variable: str) -> bool:
    """Whether a key differs where the variable does."""
    if isinstance(key, ast.Name):
        return key.id == variable
    if isinstance(key, ast.Tuple):
        return any(_tells_apart(part, variable) for part in key.elts)
    if isinstance(key, ast.Call):
        is_text = isinstance(key.func, ast.Name) and key.func.id == "str" and len(key.args) == 1 and not key.keywords
        return is_text and _tells_apart(key.args[0], variable)
    if isinstance(key, ast.JoinedStr):  # with one value, so that two cannot run together
        values = [part for part in key.values if isinstance(part, ast.FormattedValue)]
        return len(values) == 1 and values[0].format_spec is None and _tells_apart(values[0].value, variable)
    if isinstance(key, ast.BinOp) and isinstance(key.op, ast.Add | ast.Sub):
        constants = [isinstance(side, ast.Constant) for side in (key.left, key.right)]
        return any(constants) and any(_tells_apart(side, variable) for side in (key.left, key.right))
    return False

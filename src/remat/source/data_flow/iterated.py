"""Loops that change what they iterate over: Python reads the next item after the change, a step may read it before.

The rule: a loop is refused if its body assigns items of, appends to, or writes `+=` for a name that leads to the object
it iterates over. Only an item that is not read again may be assigned: `u[i] = …` as the last statement of
`for i, v in enumerate(u)`, and `d[k] = …` for the key of `for k in d` or `for k, v in d.items()`. What it can miss:
other names of the object, and functions that change it, which `run_time/iterated_objects.py` finds. The cost: none.
"""

import ast
from collections.abc import Collection, Iterator

from remat.source.data_flow.mutation import root_name
from remat.source.data_flow.outputs import Output
from remat.source.syntax import names_in, words

__all__ = ["changes_of_iterated", "own_items"]

_COPIES = words("range len list tuple sorted set dict copy clone deepcopy tolist")  # of what they are given


def changes_of_iterated(
    loop: ast.For, outputs: Collection[Output], live: Collection[str]
) -> Iterator[tuple[str, ast.AST]]:
    """The names of iterated objects that the body changes, and where; not those whose own items are assigned."""
    names = set(_iterated(loop.iter)) - own_items(loop, live)
    for output in outputs:
        if output.name in names:
            yield output.name, output.node
    for part in loop.body:
        for node in ast.walk(part):
            changed = getattr(node, "puts_into", None)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                changed = node.target.id
            if changed in names:
                yield changed, node


def own_items(loop: ast.For, live: Collection[str]) -> frozenset[str]:
    """The names of iterated objects of which the body assigns only the item of its turn, which is not read again."""
    names = set(_iterated(loop.iter))
    puts = [n for part in loop.body for n in ast.walk(part) if getattr(n, "puts_into", None) in names]
    stored = {n.id for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Name) and _is_stored(n)}
    found = set()
    for name in {n.puts_into for n in puts}:  # type: ignore[attr-defined]
        mine = [n for n in puts if n.puts_into == name]  # type: ignore[attr-defined]
        key, is_last = _key(loop, name)
        kept = set(names_in(loop.target)) & set(live) if is_last else set()
        if key is None or key in stored or kept or (is_last and mine != loop.body[-1:]):
            continue
        if all(isinstance(index := _index(n), ast.Name) and index.id == key for n in mine):
            found.add(name)
    return frozenset(found)


def _key(loop: ast.For, name: str) -> tuple[str | None, bool]:
    """The variable of a loop that is the place of its item in the object; whether the item may be a view of it."""
    text, target = ast.unparse(loop.iter), loop.target
    first = target.elts[0] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else None
    if text in (name, f"{name}.keys()"):
        return (target.id if isinstance(target, ast.Name) else None), False
    if text in (f"enumerate({name})", f"{name}.items()") and isinstance(first, ast.Name):
        return first.id, text.startswith("enumerate")
    return None, False


def _index(node: ast.AST) -> ast.expr:
    target = getattr(node, "put_target", None)
    return target.slice if target is not None else node.value.args[2]  # type: ignore[attr-defined, no-any-return]


def _is_stored(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def _iterated(node: ast.expr) -> Iterator[str]:
    """The names that lead to objects from which items are taken while the loop runs."""
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in _COPIES:
            return
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        parts += [node.func.value] if isinstance(node.func, ast.Attribute) else []
    else:
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        root = root_name(node)
        if root is not None:
            yield root
            return
    own: set[str] = set()  # the variables of a comprehension, which are not the function's
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        own = {name for generator in node.generators for name in names_in(generator.target)}
    for part in parts:
        yield from (name for name in _iterated(part) if name not in own)

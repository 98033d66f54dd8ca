"""Functional item assignment: `x[i] = v` becomes `x = put(x, i, v)`, so that data flow sees a plain assignment.

In: the body of a function. Out: the same with item assignments to local names rewritten; each such statement is marked
with `puts_into`. If one of several targets is an item, all of them first get hidden names, and are then assigned from
left to right, as Python does: `x[i], i = v` reads the old i. Items of attributes (`self.x[i] = v`) and of items
(`x[i][j] = v`) are not rewritten, and refused in loops: it is not known here whose memory they write into.
"""

import ast
import operator
from collections.abc import Callable, Collection
from typing import Any

from remat.source.syntax import OwnScope, at, clone, expression, flattened, statements

__all__ = ["AUGMENTED", "PLAIN", "functional_updates", "replace_copies"]

_OPERATIONS = {
    "Add": "add", "Sub": "sub", "Mult": "mul", "Div": "truediv", "FloorDiv": "floordiv", "Mod": "mod", "Pow": "pow",
    "MatMult": "matmul", "LShift": "lshift", "RShift": "rshift", "BitAnd": "and", "BitOr": "or", "BitXor": "xor",
}  # fmt: skip
# By the name of an operator in a syntax tree: the function of `x += v`, and that of `x + v`.
AUGMENTED: dict[str, Callable[[Any, Any], Any]] = {k: getattr(operator, f"i{name}") for k, name in _OPERATIONS.items()}
PLAIN: dict[str, Callable[[Any, Any], Any]] = {k: getattr(operator, f"__{name}__") for k, name in _OPERATIONS.items()}


def functional_updates(body: list[ast.stmt], names: Collection[str], made: Collection[str]) -> list[ast.stmt]:
    """The statements, with items of these local names assigned by `put`; `made` are names bound only to new objects."""
    updates = _Updates(names, made)
    return flattened([updates.visit(node) for node in body])


def replace_copies(tree: ast.AST) -> None:
    """Rewrite `x.copy()`, in place, to a call of the run time, since autograd's boxes have no such method."""
    for node in ast.walk(tree):
        plain = isinstance(node, ast.Call) and not node.args and not node.keywords
        if plain and isinstance(node.func, ast.Attribute) and node.func.attr == "copy":  # type: ignore[attr-defined]
            node.args = [node.func.value]  # type: ignore[attr-defined]
            node.func = expression(".remat.copy", node.func)  # type: ignore[attr-defined]


class _Updates(OwnScope):
    def __init__(self, names: Collection[str], made: Collection[str]) -> None:
        self.names, self.made, self.count, self.depth = names, made, 0, 0

    def _loop(self, node: ast.For | ast.While) -> ast.AST:
        self.depth += 1
        node.body = flattened([self.visit(part) for part in node.body])
        self.depth -= 1
        node.orelse = flattened([self.visit(part) for part in node.orelse])
        return node

    visit_For = visit_While = _loop

    def _whose(self, name: str) -> str:
        """What `put` may do with a list or dict: write into it outside loops, or inside if the loop owns it."""
        return repr("here" if self.depth == 0 else "own" if name in self.made else "other")

    def _is_item(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in self.names

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        """One target, or a hidden name for each of several."""
        if len(node.targets) == 1 and self._is_item(node.targets[0]):
            return self._put(node.targets[0], node.value, node)
        parts = [part for target in node.targets for part in ast.walk(target)]
        if not any(self._is_item(part) and isinstance(part.ctx, ast.Store) for part in parts):  # type: ignore[attr-defined]
            return node
        after: list[ast.stmt] = []
        node.targets = [self._renamed(target, after) for target in node.targets]
        return [node, *after]

    def _renamed(self, target: ast.expr, after: list[ast.stmt]) -> ast.expr:
        """The target with hidden names in place of its parts, which are assigned in `after`."""
        if isinstance(target, ast.Starred):
            target.value = self._renamed(target.value, after)
            return target
        if isinstance(target, ast.Tuple | ast.List):
            target.elts = [self._renamed(part, after) for part in target.elts]
            return target
        self.count += 1
        name = f".item{self.count}"
        value = expression(name, target)
        if self._is_item(target):
            after.append(self._put(target, value, target))
        else:
            after.append(at(ast.Assign([target], value), target))
        return at(ast.Name(name, ast.Store()), target)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        """The item is read and written once, by the run time."""
        if not self._is_item(node.target):
            return node
        assert isinstance(node.target, ast.Subscript)
        assert isinstance(node.target.value, ast.Name)
        name = node.target.value.id
        [new] = statements(
            f"x = .remat.put_augmented({self._whose(name)}, x, None, {type(node.op).__name__!r}, None)", node
        )
        assert isinstance(new, ast.Assign)
        assert isinstance(new.value, ast.Call)
        new.targets = [at(ast.Name(name, ast.Store()), node.target)]
        new.value.args[1] = at(ast.Name(name, ast.Load()), node.target)
        new.value.args[2], new.value.args[4] = _index(node.target.slice), node.value
        new.puts_into = name  # type: ignore[attr-defined]
        return new

    def _put(self, target: ast.expr, value: ast.expr, place: ast.AST) -> ast.stmt:
        assert isinstance(target, ast.Subscript)
        assert isinstance(target.value, ast.Name)
        name = target.value.id
        [new] = statements(f"x = .remat.put({self._whose(name)}, None, x, None)", place)
        assert isinstance(new, ast.Assign)
        assert isinstance(new.value, ast.Call)
        new.targets = [at(ast.Name(name, ast.Store()), target)]
        # In the order in which Python evaluates them: the value, the object, the index.
        new.value.args[1:] = [value, at(ast.Name(name, ast.Load()), target), _index(target.slice)]
        new.puts_into, new.put_target = name, clone(target)  # type: ignore[attr-defined]
        return new


def _index(node: ast.expr) -> ast.expr:
    """The index of a subscript as an expression outside of it."""
    if isinstance(node, ast.Slice):
        call = expression(".remat.slice(None, None, None)", node)
        assert isinstance(call, ast.Call)
        call.args = [part or at(ast.Constant(None), node) for part in (node.lower, node.upper, node.step)]
        return call
    if isinstance(node, ast.Tuple):
        return ast.copy_location(ast.Tuple([_index(part) for part in node.elts], ast.Load()), node)
    return node

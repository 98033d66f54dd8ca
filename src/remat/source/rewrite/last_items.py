"""`ys[-1]` in a loop that appends to `ys`: the last item becomes a separate variable, which the loop carries.

The rule: if a loop uses a local list only to append to it, as a statement of its body, and to read `ys[-1]`, then the
appended value is first assigned to a hidden variable, which is read in place of `ys[-1]`. So the list stays an output.
A function that handles an IndexError is left unchanged, since the error must be raised in its turn.
"""

import ast
from collections.abc import Collection

from remat.source.data_flow.outputs import appended_list
from remat.source.syntax import OwnScope, at, expression, flattened, statements, turn_parts

__all__ = ["use_last_items"]


def use_last_items(function: ast.FunctionDef, locals_: Collection[str]) -> None:
    """Rewrite the loops of a function, in place."""
    if any(isinstance(node, ast.Name) and node.id in ("IndexError", "LookupError") for node in ast.walk(function)):
        return
    blocks = _Blocks(locals_)
    function.body = flattened([blocks.visit(node) for node in function.body])


class _Blocks(OwnScope):
    def __init__(self, locals_: Collection[str]) -> None:
        self.locals = locals_

    def _loop(self, node: ast.For | ast.While) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        before: list[ast.stmt] = []
        for name in sorted({name for name in map(appended_list, node.body) if name is not None}):
            if name in self.locals and _is_only_appended_and_last_read(node, name):
                before += statements(f".last_{name} = .remat.last_item({name})", node)
                _Last(name).visit_loop(node)
        return [*before, node] if before else node

    visit_For = visit_While = _loop


def _is_only_appended_and_last_read(node: ast.For | ast.While, name: str) -> bool:
    uses = sum(isinstance(n, ast.Name) and n.id == name for part in turn_parts(node) for n in ast.walk(part))
    appended = sum(appended_list(part) == name for part in node.body)
    last = sum(_is_last_item(n, name) for part in turn_parts(node) for n in ast.walk(part))
    return bool(last) and uses == appended + last


def _is_last_item(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        and ast.unparse(node.slice) == "-1"
    )


class _Last(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self.name = name

    def visit_loop(self, node: ast.For | ast.While) -> None:
        """Replace the last items of the list in a loop."""
        if isinstance(node, ast.While):
            node.test = self.visit(node.test)
        body: list[ast.stmt] = []
        for part in node.body:
            is_append = appended_list(part) == self.name
            part = self.visit(part)
            if is_append:
                assert isinstance(part, ast.Expr)
                assert isinstance(part.value, ast.Call)
                [first] = statements(f".last_{self.name} = None", part)
                assert isinstance(first, ast.Assign)
                first.value = part.value.args[0]
                part.value.args[0] = at(ast.Name(f".last_{self.name}", ast.Load()), part.value.args[0])
                body.append(first)
            body.append(part)
        node.body = body

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace the last item by the variable."""
        if _is_last_item(node, self.name):
            return expression(f".remat.read_last(.last_{self.name})", node)
        return self.generic_visit(node)

"""`ys[-1]` in a loop that appends to `ys`: the last item becomes a separate variable, which the loop carries.

The rule: if a loop uses a local list only to append to it, as a statement of its body, and to read `ys[-1]`, `ys[-2]`
and so on, and `len(ys)`, then the appended value is first assigned to a hidden variable, which is read in place of
`ys[-1]`; those of earlier items move on, and the length is counted. So the list stays an output. A function that
handles an IndexError is left unchanged, since the error must be raised in its turn.
"""

import ast
from collections.abc import Collection

from remat.source.data_flow.outputs import appended_list
from remat.source.syntax import OwnScope, at, expression, flattened, statements, turn_parts

__all__ = ["use_last_items"]

MOST = 8  # items from the end that are variables


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
            most, counts = _last_read(node, name) if name in self.locals and "len" not in self.locals else (0, False)
            for place in range(1, most + 1):
                before += statements(f"{_variable(name, place)} = .remat.last_item({name}, {place})", node)
            before += statements(f".count_{name} = .remat.last_item({name}, 0)", node) if counts else []
            if most or counts:
                _Last(name, most, counts).visit_loop(node)
        return [*before, node] if before else node

    visit_For = visit_While = _loop


def _variable(name: str, place: int) -> str:
    return f".last_{name}" if place == 1 else f".last{place}_{name}"


def _last_read(node: ast.For | ast.While, name: str) -> tuple[int, bool]:
    """How far from its end a loop reads a list to which it only appends otherwise, and whether it reads its length.

    If it uses the list in other ways, too: 0 and False.
    """
    nodes = [n for part in turn_parts(node) for n in ast.walk(part)]
    uses = sum(isinstance(n, ast.Name) and n.id == name for n in nodes)
    appended = sum(appended_list(part) == name for part in node.body)
    places = [place for n in nodes if (place := _place(n, name))]
    lengths = sum(_is_length(n, name) for n in nodes)
    if uses != appended + len(places) + lengths or max(places, default=0) > MOST:
        return 0, False
    return max(places, default=0), bool(lengths)


def _is_length(node: ast.AST, name: str) -> bool:
    """Whether this is `len(name)`."""
    return isinstance(node, ast.Call) and ast.unparse(node) == f"len({name})"


def _place(node: ast.AST, name: str) -> int:
    """The k of `name[-k]`; 0 for anything else."""
    is_item = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    if not (is_item and isinstance(node.value, ast.Name) and node.value.id == name):  # type: ignore[attr-defined]
        return 0
    index = ast.unparse(node.slice)  # type: ignore[attr-defined]
    return int(index[1:]) if index[:1] == "-" and index[1:].isdecimal() else 0


class _Last(ast.NodeTransformer):
    def __init__(self, name: str, most: int, counts: bool) -> None:
        self.name, self.most, self.counts = name, most, counts

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
                if self.most:
                    body += self._moved(part.value.args[0], part)
                    part.value.args[0] = at(ast.Name(_variable(self.name, 1), ast.Load()), part.value.args[0])
            body.append(part)
            if is_append and self.counts:
                body += statements(f".count_{self.name} = .count_{self.name} + 1", part)
        node.body = body

    def _moved(self, value: ast.expr, place: ast.stmt) -> list[ast.stmt]:
        """Statements that move the last items by one, and make this value the last."""
        names = [_variable(self.name, k + 1) for k in range(self.most)]
        if self.most == 1:
            [first] = statements(f"{names[0]} = None", place)
        else:
            names_before = ", ".join(names[:-1])
            [first] = statements(f"{', '.join(names)} = None, {names_before}", place)
        assert isinstance(first, ast.Assign)
        if isinstance(first.value, ast.Tuple):
            first.value.elts[0] = value
        else:
            first.value = value
        return [first]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace the length of the list by its variable."""
        if _is_length(node, self.name):
            return expression(f".count_{self.name}", node)
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace a last item by its variable."""
        place = _place(node, self.name)
        if place:
            return expression(f".remat.read_last({_variable(self.name, place)})", node)
        return self.generic_visit(node)

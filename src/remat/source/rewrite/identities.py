"""`a is b` in a step: the run time compares, where a side may be the object of a carried variable.

The rule: an iteration gets other arrays than a plain loop, with the same values, for what it carries. The names that
may lead to such objects are found by following assignments from the carried variables; a comparison of anything that
they lead to becomes `.remat.same(a, b)`, which refuses arrays that are two objects. What the loop only reads keeps its
identity, and so do the items that it runs over, except on JAX: these are compared by `.remat.same(a, b, True)`.

What it can miss: `operator.is_`, `in`, and objects that calls return though they do not get them. The cost: a few walks
over functions that compare by `is`.
"""

import ast
from collections.abc import Iterable, Iterator
from typing import TypeVar

from remat.source.data_flow.mutation import change_of_call, root_name
from remat.source.data_flow.scopes import bound_names, captured_names
from remat.source.loop_info import LoopInfo
from remat.source.syntax import assigned_pairs, at, clone, expression, names_in

__all__ = ["Identities"]

N = TypeVar("N", bound=ast.AST)
_BY_IDENTITY = ast.Is | ast.IsNot
_PASSED = ".passed"  # any argument of a call, which may be that of an inner function


class Identities(ast.NodeTransformer):
    """Rewrites comparisons by identity in the steps of a function."""

    def __init__(self, body: list[ast.stmt], infos: Iterable[LoopInfo]) -> None:
        nodes = [node for part in body for node in ast.walk(part)]
        self.carried: set[str] = set()
        self.items: set[str] = set()
        if not any(
            isinstance(node, ast.Compare) and isinstance(op, _BY_IDENTITY) for node in nodes for op in _ops(node)
        ):
            return
        flows = [flow for node in nodes for flow in _flows(node)]
        self.carried = _reached({name for info in infos for name in (*info.carry, *info.lists, *info.arrays)}, flows)
        targets = {name for node in nodes if isinstance(node, ast.For) for name in names_in(node.target)}
        self.items = _reached(targets, flows)

    def in_step(self, node: N) -> N:
        """A copy of a tree for a step."""
        new: N = self.visit(clone(node))
        return new

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Replace it by the conjunction of its parts, if the run time is to compare one of them."""
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        if not any(self._is_asked(*part) for part in zip(sides, node.ops, sides[1:], strict=False)):
            return node
        parts: list[ast.expr] = []
        left = node.left
        for k, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            again = right
            if k < len(node.ops) - 1 and not isinstance(right, ast.Name | ast.Constant):  # evaluated once
                name = f".side{k}"
                right = at(ast.NamedExpr(ast.Name(name, ast.Store()), right), node)
                again = at(ast.Name(name, ast.Load()), node)
            parts.append(self._part(left, op, right, node))
            left = clone(again)
        return parts[0] if len(parts) == 1 else ast.copy_location(ast.BoolOp(ast.And(), parts), node)

    def _is_asked(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool:
        names = {*_handed_on(left), *_handed_on(right)}
        constant = isinstance(left, ast.Constant) or isinstance(right, ast.Constant)
        return isinstance(op, _BY_IDENTITY) and not constant and bool(names & (self.carried | self.items))

    def _part(self, left: ast.expr, op: ast.cmpop, right: ast.expr, node: ast.Compare) -> ast.expr:
        if not self._is_asked(left, op, right):
            return ast.copy_location(ast.Compare(left, [op], [right]), node)
        only_items = self.carried.isdisjoint((*_handed_on(left), *_handed_on(right)))
        call = expression(f".remat.same(None, None{', True' if only_items else ''})", node)
        assert isinstance(call, ast.Call)
        call.args[:2] = left, right
        return call if isinstance(op, ast.Is) else ast.copy_location(ast.UnaryOp(ast.Not(), call), node)


def _ops(node: ast.AST) -> list[ast.cmpop]:
    return node.ops if isinstance(node, ast.Compare) else []


def _reached(names: set[str], flows: list[tuple[set[str], set[str]]]) -> set[str]:
    """These names and those that get objects from them."""
    found = set(names)
    size = 0
    while size != len(found):
        size = len(found)
        for targets, sources in flows:
            if sources & found:
                found |= targets
    return found


def _flows(node: ast.AST) -> Iterator[tuple[set[str], set[str]]]:
    """The names that get objects in a node, not in what is inside it, and those that lead to these objects."""
    if isinstance(node, ast.Assign):
        for target, value in assigned_pairs(node):
            yield _got(target), set(_handed_on(value))
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield _got(node.target), set(_handed_on(node.value))
    elif isinstance(node, ast.For | ast.comprehension):
        yield _got(node.target), set(_handed_on(node.iter))
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield _got(node.optional_vars), set(_handed_on(node.context_expr))
    elif isinstance(node, ast.Match):
        for case in node.cases:
            yield captured_names(case.pattern), set(_handed_on(node.subject))
    elif isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
        yield bound_names(node.args), {_PASSED}
        if not isinstance(node, ast.Lambda):
            yield {node.name}, set(names_in(node))
    elif isinstance(node, ast.Call):
        given = {name for part in (*node.args, *node.keywords) for name in _handed_on(part)}
        yield {root for root, _ in change_of_call(node, ()) if root is not None}, given
        yield {_PASSED}, given


def _got(target: ast.expr) -> set[str]:
    """The names of a target; for `a.b = c` and `a[i] = c`, that of the object that holds it."""
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    if parts != [target]:
        return {name for part in parts for name in _got(part)}
    return {name for name in [root_name(target)] if name is not None}


def _handed_on(node: ast.AST) -> Iterator[str]:
    """The names that may lead to the object of an expression; not those that only choose it, as an index does."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Compare):
        return
    elif isinstance(node, ast.Subscript):
        yield from _handed_on(node.value)
    elif isinstance(node, ast.IfExp):
        yield from (*_handed_on(node.body), *_handed_on(node.orelse))
    else:
        for part in ast.iter_child_nodes(node):
            yield from _handed_on(part)

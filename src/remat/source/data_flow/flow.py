"""The data flow of names through a piece of code: one visitor over structured statements.

In: statements or expressions, run in order. Out, as attributes of the visitor:

    exposed    names that may be read before they are surely written here
    written    names that may be written (or deleted)
    sure       names that are surely written at the end of the code, on every path to it
    at_exits   the same for each `break` and `continue` that leaves the code
    changes    objects that are changed in place, with the name that leads to them
    ends       "break", "continue", "return": how the code may be left early

Exceptions: a `try` may stop anywhere, so nothing that its body writes is sure in a handler; a `with` may swallow an
exception, so nothing that it writes is sure after it.
"""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from remat.source.data_flow.mutation import change_of_call, is_fresh, root_name
from remat.source.data_flow.scopes import bound_names, free_names
from remat.source.syntax import assigned_pairs

__all__ = ["Change", "FlowVisitor", "flow_of", "loop_flow"]

Loop: TypeAlias = ast.For | ast.While
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Change:
    """An in-place change of an object: the local name that leads to it, how, where, and whether the object is new.

    An object is `fresh` if the same piece of code has made it, so that nobody else sees the change.
    """

    name: str | None
    how: str
    node: ast.AST
    fresh: bool


class FlowVisitor(ast.NodeVisitor):
    """The data flow of the visited code; `modules` are names of modules, whose functions do not change the module."""

    def __init__(self, modules: frozenset[str] = frozenset(), entries: dict[int, frozenset[str]] | None = None) -> None:
        self.modules, self.entries = modules, entries
        self.exposed: set[str] = set()
        self.written: set[str] = set()
        self.sure: set[str] = set()
        self.fresh: set[str] = set()
        self.changes: list[Change] = []
        self.ends: set[str] = set()
        self.at_exits: list[set[str]] = []
        self.left = False  # whether the end of the visited code cannot be reached
        self._own: tuple[str, ...] = ()  # names of the comprehensions around the node

    def run(self, nodes: Iterable[ast.AST]) -> "FlowVisitor":
        """Visit nodes one after the other."""
        for node in nodes:
            self.visit(node)
        return self

    def sure_at_every_end(self) -> set[str]:
        """The names that are surely written at the end, and wherever `break` or `continue` leaves the code."""
        ends = [*self.at_exits, *([] if self.left else [self.sure])]
        return set.intersection(*ends) if ends else set()

    def _branch(self, nodes: Sequence[ast.AST], own_exits: bool = False) -> "FlowVisitor":
        """The flow of a branch that starts here; what may happen in it is added to this flow."""
        other = FlowVisitor(self.modules, self.entries)
        other.sure, other.fresh, other._own = set(self.sure), set(self.fresh), self._own
        other.run(nodes)
        self._take(other, own_exits)
        return other

    def _take(self, other: "FlowVisitor", own_exits: bool) -> None:
        self.exposed |= other.exposed
        self.written |= other.written
        self.changes += other.changes
        self.ends |= {end for end in other.ends if end == "return" or not own_exits}
        self.at_exits += [] if own_exits else other.at_exits

    def _join(self, branches: Sequence["FlowVisitor"]) -> None:
        """Continue after one of these branches has ended."""
        arriving = [branch for branch in branches if not branch.left]
        self.left = not arriving
        if arriving:
            self.sure = set.intersection(*(branch.sure for branch in arriving))
            self.fresh = set.intersection(*(branch.fresh for branch in arriving))

    def read(self, name: str) -> None:
        """Note that a name is read."""
        if name not in self.sure and name not in self._own:
            self.exposed.add(name)

    def write(self, name: str, *, fresh: bool = False) -> None:
        """Note that a name is written; `fresh` if it is bound to an object made here."""
        self.written.add(name)
        if self._own:  # a walrus in a comprehension, which may never run
            return
        self.sure.add(name)
        (self.fresh.add if fresh else self.fresh.discard)(name)

    def change(self, name: str | None, how: str, node: ast.AST) -> None:
        """Note that the object that a name leads to is changed in place."""
        if name is None or name not in self._own:
            self.changes.append(Change(name, how, node, name in self.fresh))

    def visit_Name(self, node: ast.Name) -> None:
        """A name."""
        if isinstance(node.ctx, ast.Store):
            self.write(node.id)
            return
        self.read(node.id)
        if isinstance(node.ctx, ast.Del):
            self.written.add(node.id)
            self.sure.discard(node.id)
            self.fresh.discard(node.id)

    def target(self, target: ast.expr, *, fresh: bool = False) -> None:
        """Note an assignment to this target."""
        if isinstance(target, ast.Subscript | ast.Attribute):
            self.visit(target.value)
            if isinstance(target, ast.Subscript):
                self.visit(target.slice)
            deleted = isinstance(target.ctx, ast.Del)
            kind = "an item" if isinstance(target, ast.Subscript) else "an attribute"
            self.change(root_name(target), f"{'deletion' if deleted else 'assignment'} of {kind}", target)
        elif isinstance(target, ast.Starred):
            self.target(target.value, fresh=True)  # a new list
        elif isinstance(target, ast.Tuple | ast.List):
            for item in target.elts:
                self.target(item)
        elif isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
            self.write(target.id, fresh=fresh)
        else:
            self.visit(target)

    def visit_Assign(self, node: ast.Assign) -> None:
        """The value, then the targets from left to right."""
        self.visit(node.value)
        for target, value in [*assigned_pairs(node)]:
            self.target(target, fresh=is_fresh(value, self.modules, self.fresh))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """An annotation alone assigns nothing."""
        if node.value is not None:
            self.visit(node.value)
            self.target(node.target, fresh=is_fresh(node.value, self.modules, self.fresh))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """A read, the value, a write."""
        if isinstance(node.target, ast.Name):
            self.read(node.target.id)
            self.visit(node.value)
            self.write(node.target.id, fresh=node.target.id in self.fresh)
        else:
            self.visit(node.value)
            self.target(node.target)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """A walrus binds in the function, even inside a comprehension."""
        self.visit(node.value)
        self.write(node.target.id, fresh=is_fresh(node.value, self.modules, self.fresh))

    def visit_Delete(self, node: ast.Delete) -> None:
        """Names, items, attributes."""
        for target in node.targets:
            self.target(target)

    def visit_If(self, node: ast.If) -> None:
        """What both branches write is sure; a branch that leaves does not count."""
        self.visit(node.test)
        self._join([self._branch(node.body), self._branch(node.orelse)])

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """The same for an expression."""
        self.visit(node.test)
        self._join([self._branch([node.body]), self._branch([node.orelse])])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Only the first operand is surely evaluated."""
        self.visit(node.values[0])
        for value in node.values[1:]:
            self._branch([value])

    def visit_Compare(self, node: ast.Compare) -> None:
        """A chain of comparisons stops at the first that is false, so only two operands are surely evaluated."""
        self.visit(node.left)
        self.visit(node.comparators[0])
        for value in node.comparators[1:]:
            self._branch([value])

    def _loop(self, node: Loop) -> None:
        if self.entries is not None:
            self.entries[id(node)] = frozenset(self.sure)
        if isinstance(node, ast.For):
            self.visit(node.iter)
        else:
            self.visit(node.test)
        inner = FlowVisitor(self.modules, self.entries)
        inner.sure, inner._own = set(self.sure), self._own
        inner.fresh = set(self.fresh)
        if isinstance(node, ast.For):
            inner.target(node.target)
        inner.run(node.body)
        self._take(inner, own_exits=True)
        self.fresh &= inner.fresh
        self._branch(node.orelse)

    visit_For = visit_While = _loop

    def visit_With(self, node: ast.With) -> None:
        """A context may swallow an exception, so nothing that its body writes is sure."""
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self.target(item.optional_vars)
        self.fresh &= self._branch(node.body).fresh

    def visit_Try(self, node: ast.Try) -> None:
        """After it, either the body has run to its end, or a handler has."""
        body = self._branch(node.body)
        after = body._branch(node.orelse) if not body.left else body
        if after is not body:
            self._take(after, own_exits=False)
        ways = [after]
        for handler in node.handlers:
            if handler.type is not None:
                self.visit(handler.type)
            other = FlowVisitor(self.modules, self.entries)
            other.sure, other._own = set(self.sure), self._own
            if handler.name:
                other.write(handler.name)
            other.run(handler.body)
            if handler.name:
                other.sure.discard(handler.name)
            self._take(other, own_exits=False)
            ways.append(other)
        if node.finalbody:
            last = self._branch(node.finalbody)
            for way in ways:
                way.sure |= last.sure - self.sure
        self._join(ways)

    visit_TryStar = visit_Try  # type: ignore[assignment]

    def visit_Match(self, node: ast.Match) -> None:
        """Patterns bind names; without a catch-all case, none may match."""
        self.visit(node.subject)
        ways = []
        for case in node.cases:
            other = FlowVisitor(self.modules, self.entries)
            other.sure, other.fresh, other._own = set(self.sure), set(self.fresh), self._own
            for part in ast.walk(case.pattern):
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if isinstance(name, str):
                    other.write(name)
                elif isinstance(part, ast.expr):
                    other.visit(part)
            other.run([] if case.guard is None else [case.guard])
            other.run(case.body)
            self._take(other, own_exits=False)
            ways.append(other)
        last = node.cases[-1]
        if not (isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None):
            ways.append(self._branch([]))
        self._join(ways)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)
        around = self._own
        for k, generator in enumerate(node.generators):
            if k:
                self.visit(generator.iter)
            own = tuple(n.id for n in ast.walk(generator.target) if isinstance(n, ast.Name))
            self._own = (*self._own, *own, "")  # never empty: it also marks code that may never run
            for test in generator.ifs:
                self.visit(test)
        for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(part)
        self._own = around

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _function(self, node: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        for decorator in getattr(node, "decorator_list", ()):
            self.visit(decorator)
        free = free_names(node)
        for name in free:
            self.read(name)
        body = node.body if isinstance(node.body, list) else [node.body]
        inner = FlowVisitor(self.modules).run(body)
        own = bound_names(node.args)
        self.changes += [
            Change(change.name, change.how, change.node, False)
            for change in inner.changes
            if change.name not in own and (change.name in free) and not change.fresh
        ]
        if isinstance(node, _FUNCTIONS):
            self.write(node.name)

    visit_Lambda = visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """The body of a class runs at once, and its methods later; both read names of the function."""
        for part in (*node.decorator_list, *node.bases):
            self.visit(part)
        for name in free_names(node):
            self.read(name)
        self.write(node.name)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self.write((alias.asname or alias.name).partition(".")[0])

    visit_Import = visit_ImportFrom = _import

    def visit_Call(self, node: ast.Call) -> None:
        """Calls that change an object in place are known by their names."""
        self.generic_visit(node)
        for name, how in change_of_call(node, self.modules):
            self.change(name, how, node)

    def _leave(self, end: str) -> None:
        self.ends.add(end)
        if end != "return":
            self.at_exits.append(set(self.sure))
        self.left = True

    def visit_Break(self, node: ast.Break) -> None:
        """Leaves the loop."""
        self._leave("break")

    def visit_Continue(self, node: ast.Continue) -> None:
        """Leaves the turn."""
        self._leave("continue")

    def visit_Return(self, node: ast.Return) -> None:
        """Leaves the function."""
        if node.value is not None:
            self.visit(node.value)
        self._leave("return")

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leaves the code, for a handler around it, where nothing written here is sure."""
        self.generic_visit(node)
        self.left = True


def flow_of(nodes: Iterable[ast.AST], modules: frozenset[str] = frozenset()) -> FlowVisitor:
    """The data flow of nodes that run one after the other."""
    return FlowVisitor(modules).run(nodes)


def loop_flow(node: Loop, modules: frozenset[str] = frozenset()) -> FlowVisitor:
    """The data flow of one turn of a loop: its test or its target, and its body."""
    flow = FlowVisitor(modules)
    if isinstance(node, ast.While):
        flow.visit(node.test)
    else:
        flow.target(node.target)
    return flow.run(node.body)

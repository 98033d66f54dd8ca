"""Liveness: for each loop, and each statement that changes an object, the names that may be read after it.

One walk backwards over structured code. `after` is what is live after a statement, `on_break` and `on_continue` what is
live where these lead. A loop's body is walked twice, which reaches the fixed point, since liveness flows around a loop
at most once. In a `try`, `with` or `match`, control may go anywhere, so everything that is read in it or after it is
live. So is what an inner function from outside the loop reads, since it may be called after the loop.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from remat.source.data_flow.flow import Loop, flow_of
from remat.source.data_flow.scopes import scopes_in

__all__ = ["live_after"]


def live_after(function: ast.FunctionDef) -> dict[int, set[str]]:
    """By the id of a loop, an item assignment or a `+=`: the names that may be read after it."""
    walk = _Backwards()
    walk.block(function.body, set(), set(), set())
    scopes = [scope for scope in scopes_in(function) if not scope.used_up]
    for node in ast.walk(function) if scopes else ():
        if id(node) in walk.found:
            inside = set(map(id, ast.walk(node)))
            walk.found[id(node)].update(*(scope.free for scope in scopes if id(scope.node) not in inside))
    return walk.found


@dataclass
class _Backwards:
    found: dict[int, set[str]] = field(default_factory=dict)

    def block(self, body: Sequence[ast.stmt], after: set[str], on_break: set[str], on_continue: set[str]) -> set[str]:
        """What is live before a block."""
        for node in reversed(body):
            after = self.statement(node, after, on_break, on_continue)
        return after

    def statement(self, node: ast.stmt, after: set[str], on_break: set[str], on_continue: set[str]) -> set[str]:
        """What is live before a statement."""
        if isinstance(node, ast.If):
            test = flow_of([node.test])
            ways = self.block(node.body, after, on_break, on_continue)
            ways = ways | self.block(node.orelse, after, on_break, on_continue)
            return (ways - test.sure) | test.exposed
        if isinstance(node, ast.For | ast.While):
            return self.loop(node, after, on_break, on_continue)
        if isinstance(node, ast.Break | ast.Continue):
            return set(on_break if isinstance(node, ast.Break) else on_continue)
        if isinstance(node, ast.Return | ast.Raise):
            return flow_of(ast.iter_child_nodes(node)).exposed
        if isinstance(node, ast.With | ast.Try | ast.TryStar | ast.Match):
            return self.anywhere(node, after | on_break | on_continue)
        if _is_change(node):
            self.found.setdefault(id(node), set()).update(after)
        flow = flow_of([node])
        return (after - flow.sure) | flow.exposed

    def loop(self, node: Loop, after: set[str], on_break: set[str], on_continue: set[str]) -> set[str]:
        """What is live before a loop; what is live after it is noted."""
        at_end = self.block(node.orelse, after, on_break, on_continue)
        self.found.setdefault(id(node), set()).update(after, at_end)
        head = set(at_end)
        for _ in range(2):
            start = self.block(node.body, head, after, head)
            if isinstance(node, ast.For):
                start = start - flow_of([node.target]).sure
            else:
                test = flow_of([node.test])
                start = (start - test.sure) | test.exposed
            head |= start
        return head | flow_of([node.iter]).exposed if isinstance(node, ast.For) else head

    def anywhere(self, node: ast.stmt, after: set[str]) -> set[str]:
        """What is live before a statement that may be left at any point, and after every loop and change in it."""
        live = after | {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        for sub in ast.walk(node):
            if isinstance(sub, ast.For | ast.While) or _is_change(sub):
                self.found.setdefault(id(sub), set()).update(live)
        return live


def _is_change(node: ast.AST) -> bool:
    return hasattr(node, "puts_into") or (isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name))

"""The body of a loop as a step: leaving a turn becomes returning from the step.

continue          ->  return (carry, outputs)
break, return     ->  return STOP: the turn does not count, and is rerun in place with the real statement
ys.append(v)      ->  .y0 = v, and for `out[i] = v`, if it is an output, .row0 = v
h += v            ->  h = augmented("Add", h, v): a carried array is not written into
a is b            ->  same(a, b), if an iteration may get other arrays there (identities.py)
print(...)        ->  say(print, ...), which holds back what it writes until the turn is done (speech.py)
"""

import ast
from typing import Any

from remat.source.data_flow.outputs import Output
from remat.source.loop_info import LoopInfo
from remat.source.rewrite.identities import Identities
from remat.source.syntax import OwnScope, at, expression, flattened, statements

__all__ = ["ITEM", "bound_values", "step_body"]

ITEM = ".y"  # what the variables of items for lists begin with


def bound_values(names: tuple[str, ...], unbound: frozenset[str]) -> str:
    """The source of a tuple of these variables; one that may have no value is read through the run time."""
    parts = [f".remat.bound(lambda: {name})" if name in unbound else name for name in names]
    return f"({', '.join(parts)}{',' if parts else ''})"


def step_body(body: list[ast.stmt], info: LoopInfo, outputs: list[Output], identities: Identities) -> list[ast.stmt]:
    """The statements of a step, made from copies of the loop's statements."""
    names = {id(output.node): _name_of(k, output) for k, output in enumerate(outputs)}
    for part in body:  # the mark is copied with the node
        if id(part) in names:
            part.remat_output = names[id(part)]  # type: ignore[attr-defined]
    copies = [identities.in_step(part) for part in body]
    for part in body:
        part.__dict__.pop("remat_output", None)
    ys = f"({', '.join(map(_name_of, range(len(outputs)), outputs))},)" if outputs else "None"
    carry = bound_values(info.carry, info.unbound)
    result = f"return ({carry[1:-2] if len(info.carry) == 1 else carry}, {ys})"
    keeps_continue = _continues_through_finally(body)
    ends = _Ends(result, keeps_continue, frozenset(info.carry))
    new = flattened([ends.visit(part) for part in copies])
    if keeps_continue:  # a loop of one turn, so that `finally` runs before the carry is read
        [once] = statements("for .once in .remat.once:\n  pass", body[0])
        assert isinstance(once, ast.For)
        once.body, new = new, [once]
    return [*new, *statements(result, body[-1])]


def _name_of(number: int, output: Output) -> str:
    """The variable of an output. A list holds its item, which must not be replaced after that (shared_arrays.py)."""
    return f".row{number}" if output.filled else f"{ITEM}{number}"


def _continues_through_finally(body: list[ast.stmt]) -> bool:
    tries = [n for part in body for n in ast.walk(part) if isinstance(n, ast.Try | ast.TryStar) and n.finalbody]
    return any(isinstance(n, ast.Continue) for part in tries for n in ast.walk(part))


class _Ends(OwnScope):
    def __init__(self, result: str, keeps_continue: bool, carry: frozenset[str]) -> None:
        self.result, self.keeps_continue, self.carry, self.depth = result, keeps_continue, carry, 0

    def _loop(self, node: ast.For | ast.While) -> ast.AST:
        self.depth += 1
        node.body = flattened([self.visit(part) for part in node.body])
        self.depth -= 1
        node.orelse = flattened([self.visit(part) for part in node.orelse])  # `break` there leaves the loop around
        return node

    visit_For = visit_While = _loop

    def visit_Continue(self, node: ast.Continue) -> ast.AST:
        """The turn ends here: return the carry and the outputs."""
        return node if self.depth or self.keeps_continue else statements(self.result, node)[0]

    def visit_Break(self, node: ast.Break) -> ast.AST:
        """The loop ends here: return STOP."""
        return node if self.depth else statements("return .remat.ended", node)[0]

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """The function ends here, and with it the loop: return STOP."""
        return statements("return .remat.ended", node)[0]

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """A carried tensor is not written into, since kept states may hold it."""
        if not (isinstance(node.target, ast.Name) and node.target.id in self.carry):
            return self.generic_visit(node)
        name = node.target.id
        [new] = statements(f"{name} = .remat.augmented({type(node.op).__name__!r}, {name}, None)", node)
        assert isinstance(new, ast.Assign)
        assert isinstance(new.value, ast.Call)
        new.value.args[2] = self.visit(node.value)
        if node.live:  # type: ignore[attr-defined]
            live: Any = (name, node.live)  # type: ignore[attr-defined]
            new.value.args.append(at(ast.Constant(live), node))
        return new

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Rewrite outputs and calls that print, wherever they are."""
        output = getattr(node, "remat_output", None)
        if output is not None:
            assert isinstance(node, ast.Expr | ast.Assign)
            assert isinstance(node.value, ast.Call)
            new = statements(f"{output} = None", node)[0]
            assert isinstance(new, ast.Assign)
            new.value = self.visit(node.value.args[0 if isinstance(node, ast.Expr) else 1])
            return new
        emits = getattr(node, "remat_emits", None)
        if emits is not None:
            assert isinstance(node, ast.Call)
            super().generic_visit(node)
            node.args.insert(0, node.func)
            node.func = expression(".remat.say" if emits == "once" else ".remat.say_unread", node)
            return node
        return super().generic_visit(node)

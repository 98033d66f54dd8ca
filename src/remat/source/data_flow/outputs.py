"""Lists that a loop only appends to, and arrays that it only fills row by row: outputs of the step, not state.

The rule: `ys.append(v)` is an output if it is a statement of the body itself, before any `continue`, and the loop does
not use `ys` otherwise. So is `out[i] = v` if `i` is the variable of a loop over a range and is not assigned in the
body, and the loop does not use `out` otherwise. What it can miss: nothing that would be wrong; other uses of a list in
a loop are refused, and other item assignments carry the whole array.
"""

import ast
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from remat.source.data_flow.flow import FlowVisitor, Loop
from remat.source.syntax import names_in, turn_parts

__all__ = ["Output", "appended_list", "outputs_of"]


@dataclass(frozen=True)
class Output:
    """An output of a loop: the name of the list or array, and the statement that writes into it."""

    name: str
    filled: bool  # whether it is an array that is filled, rather than a list
    node: ast.stmt

    @property
    def value(self) -> ast.expr:
        """The expression whose value is the output."""
        if isinstance(self.node, ast.Expr):
            assert isinstance(self.node.value, ast.Call)
            return self.node.value.args[0]
        assert isinstance(self.node, ast.Assign)
        assert isinstance(self.node.value, ast.Call)
        return self.node.value.args[1]


def outputs_of(loop: Loop, locals_: Collection[str], modules: frozenset[str]) -> list[Output]:
    """The outputs of a loop, those of lists first; their statements are in its body."""
    found: list[Output] = []
    before = FlowVisitor(modules)
    if isinstance(loop, ast.For):
        before.target(loop.target)
    for node in loop.body:
        output = _output(loop, node)
        if output is not None and output.name in locals_ and "continue" not in before.ends:
            found.append(output)
        before.visit(node)
    names = [name for part in turn_parts(loop) for name in names_in(part)]
    given = Counter(output.name for output in found for _ in range(1 + output.filled))  # `out = put(v, out, i)`: twice
    filled = Counter(output.name for output in found if output.filled)
    stored = {n.id for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Name) and _is_stored(n)}
    found.sort(key=lambda output: output.filled)
    return [
        output
        for output in found
        if names.count(output.name) == given[output.name]
        and (filled[output.name] == 1 if output.filled else output.name not in stored)
    ]


def _is_stored(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def appended_list(node: ast.stmt) -> str | None:
    """The name of the list to which a statement appends one value, or None."""
    call = node.value if isinstance(node, ast.Expr) else None
    if (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "append"
        and isinstance(call.func.value, ast.Name)
        and len(call.args) == 1
        and not call.keywords
        and not isinstance(call.args[0], ast.Starred)
    ):
        return call.func.value.id
    return None


def _output(loop: Loop, node: ast.stmt) -> Output | None:
    appended = appended_list(node)
    if appended is not None:
        return Output(appended, False, node)
    target = getattr(node, "put_target", None)
    if target is not None and isinstance(loop, ast.For) and isinstance(loop.target, ast.Name):
        over_range = isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) in ("range", "remat.range")
        is_index = isinstance(target.slice, ast.Name) and target.slice.id == loop.target.id
        stored = [n for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Name)]
        reassigned = any(n.id == loop.target.id and not isinstance(n.ctx, ast.Load) for n in stored)
        if over_range and is_index and not reassigned:
            return Output(node.puts_into, True, node)  # type: ignore[attr-defined]
    return None

"""Lists that a loop only appends to, arrays and dicts that it only fills row by row: outputs of the step, not state.

The rule: `ys.append(v)` is an output if it is a statement of the body itself, before any `continue`, and the loop does
not use `ys` otherwise. So is `out[i] = v` if `i` is the variable of a loop over a range and is not assigned in the
body, and the loop does not use `out` otherwise. If `out` is only bound to new dicts, `i` may be another key that is new
in every turn (dict_keys.py). What it can miss: nothing that would be wrong; other uses of a list in a loop are refused,
and other item assignments carry the whole array or dict.
"""

import ast
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from remat.source.data_flow.dict_keys import is_new_key, stored_names
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

    @property
    def key(self) -> ast.expr:
        """The expression of the place that is filled."""
        target: ast.Subscript = self.node.put_target  # type: ignore[attr-defined]
        return target.slice


def outputs_of(
    loop: Loop, locals_: Collection[str], modules: frozenset[str], dicts: Collection[str] = ()
) -> list[Output]:
    """The outputs of a loop, those of lists first; their statements are in its body. `dicts` are names of dicts."""
    found: list[Output] = []
    before = FlowVisitor(modules)
    if isinstance(loop, ast.For):
        before.target(loop.target)
    for node in loop.body:
        output = _output(loop, node, dicts, locals_)
        if output is not None and output.name in locals_ and "continue" not in before.ends:
            found.append(output)
        before.visit(node)
    names = [name for part in turn_parts(loop) for name in names_in(part)]
    given = Counter(output.name for output in found for _ in range(1 + output.filled))  # `out = put(v, out, i)`: twice
    filled = Counter(output.name for output in found if output.filled)
    stored = stored_names(loop.body)
    found.sort(key=lambda output: output.filled)
    return [
        output
        for output in found
        if names.count(output.name) == given[output.name]
        and (filled[output.name] == 1 if output.filled else output.name not in stored)
    ]


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


def _output(loop: Loop, node: ast.stmt, dicts: Collection[str], locals_: Collection[str]) -> Output | None:
    appended = appended_list(node)
    if appended is not None:
        return Output(appended, False, node)
    target = getattr(node, "put_target", None)
    if target is not None and isinstance(loop, ast.For):
        name: str = node.puts_into  # type: ignore[attr-defined]
        if _is_row(loop, target.slice) or (name in dicts and is_new_key(loop, target.slice, name, locals_)):
            return Output(name, True, node)
    return None


def _is_row(loop: ast.For, index: ast.expr) -> bool:
    """Whether an index is the variable of a loop over a range."""
    if not (isinstance(index, ast.Name) and isinstance(loop.target, ast.Name) and index.id == loop.target.id):
        return False
    over_range = isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) in ("range", "remat.range")
    return over_range and index.id not in stored_names(loop.body)

"""Perfect nests: `for i in A: for j in B: body` as one loop of len(A)·len(B) turns.

The rule: the outer body is only the inner loop, neither has an `else`, the inner one has no `break`, its iterable
consists of names, numbers and `range` and reads nothing that the loops assign, and the outer variable is not read after
the loops. One loop has one plan, which is better than a plan inside a plan. The inner iterable is evaluated once the
outer loop has a turn, since it may raise.
"""

import ast

from remat.source.data_flow.flow import flow_of, loop_flow
from remat.source.data_flow.liveness import live_after
from remat.source.syntax import expression, is_hidden

__all__ = ["merge_nests"]


def merge_nests(function: ast.FunctionDef) -> None:
    """Merge the perfect nests of a function, in place, the innermost first."""
    live = live_after(function)
    for node in reversed([n for n in ast.walk(function) if isinstance(n, ast.For)]):
        inner = node.body[0]
        if len(node.body) == 1 and isinstance(inner, ast.For) and _is_perfect(node, inner, live[id(node)]):
            _merge(node, inner)


def _is_perfect(outer: ast.For, inner: ast.For, live: set[str]) -> bool:
    if outer.orelse or inner.orelse or not _is_simple(inner.iter) or not _is_simple(outer.iter):
        return False
    flow = loop_flow(inner)
    target = flow_of([outer.target])
    if "break" in flow.ends or target.written & (live | flow.written) or target.changes:
        return False
    reads = flow_of([inner.iter]).exposed
    return not reads & (flow.written | target.written)


def _is_simple(node: ast.expr) -> bool:
    """Whether an iterable may be evaluated only once: a range of names, numbers and lengths.

    A plain name is not enough: it may refer to an iterator, which the first turn of the outer loop would exhaust.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return isinstance(node.func.value, ast.Name) and is_hidden(node.func.value.id)  # an already merged nest
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "range"
        and not node.keywords
        and all(_is_number(arg) for arg in node.args)
    )


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "len" and isinstance(node.args[0], ast.Name)
    return isinstance(node, ast.Name | ast.Constant) or (isinstance(node, ast.UnaryOp) and _is_number(node.operand))


def _merge(outer: ast.For, inner: ast.For) -> None:
    texts = [text for text in (getattr(inner, "merged", ""), f"the loop in line {inner.lineno}") if text]
    call = expression(".remat.product(None, lambda: None)", outer.iter)
    assert isinstance(call, ast.Call)
    assert isinstance(call.args[1], ast.Lambda)
    call.args[0], call.args[1].body = outer.iter, inner.iter
    target = ast.Tuple([outer.target, inner.target], ast.Store())
    outer.target = ast.copy_location(target, outer.target)
    outer.iter, outer.body = call, inner.body
    outer.merged = " and ".join(reversed(texts))  # type: ignore[attr-defined]

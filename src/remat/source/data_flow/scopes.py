"""Names by scope: what inner functions, lambdas and generator expressions read from the function around them.

The rule: such a scope reads variables when it runs, not where it is defined. A loop's step has its own variables, so a
scope that is defined outside the loop and reads a name that the loop assigns would read an old value: `late_readers`
finds these. What it can miss: code in strings. The cost: one walk over the function.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from remat.source.syntax import is_hidden, words

__all__ = ["Scope", "bound_names", "captured_names", "free_names", "late_readers", "own_nodes", "scopes_in"]

_SCOPES = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.GeneratorExp)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Calls that exhaust a generator expression before they return.
_CONSUMERS = words(
    "sum max min any all list tuple dict set frozenset sorted join array stack concatenate vstack hstack "
    "fromiter Counter deque extend len cat prod fsum"
)


@dataclass(frozen=True)
class Scope:
    """An inner scope: its node, the names that it reads from the function, and the name it is bound to, if any."""

    node: ast.AST
    free: frozenset[str]
    name: str | None
    used_up: bool  # whether it has run to its end once the expression around it is evaluated


def bound_names(arguments: ast.arguments) -> set[str]:
    """The names of parameters."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {a.arg for a in [*every, *filter(None, (arguments.vararg, arguments.kwarg))]}


def captured_names(pattern: ast.pattern) -> set[str]:
    """The names that a pattern of `match` binds."""
    names = (getattr(part, "name", None) or getattr(part, "rest", None) for part in ast.walk(pattern))
    return {name for name in names if name is not None}


def free_names(node: ast.AST) -> frozenset[str]:
    """The names that a scope reads and does not bind itself."""
    if isinstance(node, _COMPREHENSIONS):
        return frozenset(_free_of_comprehension(node))
    if isinstance(node, ast.ClassDef):
        return frozenset(_free(node.body) - _bound(node.body))
    assert isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef)
    body: list[ast.AST] = list(node.body) if isinstance(node.body, list) else [node.body]
    return frozenset(_free(body) - _bound(body) - bound_names(node.args))


def _free_of_comprehension(node: ast.AST) -> set[str]:
    assert isinstance(node, _COMPREHENSIONS)
    parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    own = {n.id for gen in node.generators for n in ast.walk(gen.target) if isinstance(n, ast.Name)}
    tests = [test for gen in node.generators for test in gen.ifs]
    later = [gen.iter for gen in node.generators[1:]]
    return (_free([*parts, *tests, *later]) - own) | _free([node.generators[0].iter])


def _free(nodes: list[ast.AST] | list[ast.stmt] | list[ast.expr]) -> set[str]:
    found: set[str] = set()
    for node in own_nodes(nodes):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Nonlocal | ast.Global):
            found |= set(node.names) if isinstance(node, ast.Nonlocal) else set()
        elif isinstance(node, (*_SCOPES, *_COMPREHENSIONS, ast.ClassDef)):
            found |= free_names(node)
    return found


def _bound(nodes: list[ast.AST] | list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    outer: set[str] = set()
    for node in own_nodes(nodes):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Nonlocal | ast.Global):
            outer |= set(node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        elif isinstance(node, _COMPREHENSIONS):  # a walrus in it binds here
            found |= {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
    return found - outer


def own_nodes(nodes: list[ast.AST] | list[ast.stmt] | list[ast.expr]) -> Iterator[ast.AST]:
    """The nodes of these trees; of inner scopes only the scope itself, its decorators and its defaults."""
    rest: list[ast.AST] = list(nodes)
    while rest:
        node = rest.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            rest += [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.Lambda):
            rest += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        elif isinstance(node, ast.ClassDef):
            rest += [*node.decorator_list, *node.bases]
        elif not isinstance(node, _COMPREHENSIONS):
            rest += ast.iter_child_nodes(node)


def scopes_in(function: ast.FunctionDef) -> list[Scope]:
    """The scopes in a function whose code may run later than the statement that contains them."""
    found: list[Scope] = []
    names: dict[int, str] = {}
    used_up: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                names[id(node.value)] = target.id
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in _CONSUMERS and len(node.args) == 1:
                used_up.add(id(node.args[0]))
            if isinstance(node.func, ast.Attribute) and is_hidden(getattr(node.func.value, "id", "")):
                used_up |= set(map(id, node.args))  # generated code: a merged nest calls its lambda at once
            used_up |= {id(keyword.value) for keyword in node.keywords if keyword.arg == "key"}
        if isinstance(node, _SCOPES) and node is not function:
            name = node.name if isinstance(node, ast.FunctionDef) else names.get(id(node))
            found.append(Scope(node, free_names(node), name, id(node) in used_up))
    return found


def late_readers(
    scopes: list[Scope], function: ast.FunctionDef, loop: ast.For | ast.While, outer: ast.AST | None, names: set[str]
) -> Iterator[Scope]:
    """The scopes outside a loop's body that may run in it and read one of these names.

    `outer` is the outermost loop around the loop: in it, code after the loop may run before the loop's next run.
    """
    inside = {id(node) for part in loop.body for node in ast.walk(part)}
    if isinstance(loop, ast.While):
        inside |= {id(node) for node in ast.walk(loop.test)}
    named = inside | ({id(node) for node in ast.walk(loop.iter)} if isinstance(loop, ast.For) else set())
    again = {id(node) for node in ast.walk(outer)} if outer is not None else set()
    for scope in scopes:
        if id(scope.node) in inside or scope.used_up or not scope.free & names:
            continue
        if not (_before(scope.node, loop) or id(scope.node) in again):
            continue
        if scope.name is None or _is_generator(scope.node) or _may_be_called_in(scope.name, function, named):
            yield scope


def _before(node: ast.AST, loop: ast.For | ast.While) -> bool:
    head = loop.body[0]
    return (node.lineno, node.col_offset) < (head.lineno, head.col_offset)  # type: ignore[attr-defined]


def _is_generator(scope: ast.AST) -> bool:
    """Whether a scope continues to run after its call."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(scope))


def _may_be_called_in(name: str, function: ast.FunctionDef, inside: set[int]) -> bool:
    """Whether a function of this name may be called in a loop: it is named there, or used other than in a call."""
    called = {id(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)}
    inner = {id(n) for s in ast.walk(function) if isinstance(s, _SCOPES) and s is not function for n in ast.walk(s)}
    for node in ast.walk(function):
        is_read = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        if is_read and (id(node) in inside or id(node) not in called or id(node) in inner):
            return True
    return False

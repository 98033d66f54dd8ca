"""Two names for one object that is changed in place: found by tracking which names may share an object.

The rule: item assignment is rewritten to `x = put(x, i, v)`, which makes a new array; a second name for the old array
would not see the change, as it would in plain Python. So the function is refused if a name that may share an object
with `x` is read after `x` was changed, without having been reassigned. Augmented assignment is in place only for plain
arrays and tensors, and rebinds numbers and traced arrays: there the run time decides (`LoopInfo.augmented`). An array
copies what is put into it, while lists and dicts hold it: if a read is stale only because an object is held, the
statements that put it are marked (`node.holds`), and the run time refuses these for lists and dicts.

What it can miss: views by functions that are not listed in `mutation.py`, and functions that keep their argument. The
run time compares the objects themselves (`run_time/shared_arrays.py`); it cannot do so for a `+=` of NumPy arrays
inside a step, some of which stand for traced ones. The cost: two walks over the function.
"""

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from remat.source.data_flow.mutation import change_of_call, is_view, root_name
from remat.source.data_flow.scopes import captured_names
from remat.source.syntax import assigned_pairs, pairs_of

__all__ = ["StaleRead", "find_stale_reads", "is_augmented_put"]


@dataclass(frozen=True)
class StaleRead:
    """A read of a name after `change` has changed the object that it may share with `other`."""

    node: ast.Name
    other: str
    change: ast.AST
    augmented: bool
    held: tuple[ast.Assign, ...] = ()  # earlier statements that put something into an object that may hold it


@dataclass
class _State:
    shared: frozenset[frozenset[str]] = frozenset()  # pairs of names that may share an object
    stale: dict[str, tuple[str, ast.AST, bool]] = field(default_factory=dict)

    def joined(self, other: "_State") -> "_State":
        return _State(self.shared | other.shared, {**self.stale, **other.stale})


def find_stale_reads(function: ast.FunctionDef, locals_: Collection[str], modules: Collection[str]) -> list[StaleRead]:
    """The reads in a function that would see an old object; for `+=`, reads that may, as the run time decides."""
    found, with_held = (_Walk(set(locals_), modules, holds).run(function) for holds in (False, True))
    for key in with_held.keys() - found.keys():
        read = with_held[key]
        for put in read.held:
            rebinds = read.augmented and getattr(put, "holds", ("", True))[1]  # `+=` rebinds what is traced
            put.holds = read.node.id, rebinds  # type: ignore[attr-defined]
    return list(found.values())


def is_augmented_put(node: ast.AST) -> bool:
    """Whether a statement is a rewritten `x[i] += v`."""
    return hasattr(node, "puts_into") and len(node.value.args) > 4  # type: ignore[attr-defined]


def _put_value(node: ast.Assign) -> ast.expr:
    """The value of a rewritten item assignment: the first argument of `put`, the last of `put_augmented`."""
    assert isinstance(node.value, ast.Call)
    return node.value.args[-1 if is_augmented_put(node) else 1]


def _items_of(name: str) -> str:
    """A name for the items of a container, which are objects of their own."""
    return f"{name}[]"


def _containers(function: ast.FunctionDef) -> set[str]:
    """The names that are only bound to lists and dicts that are written out, whose items are no views of them."""
    targets = [n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    made = Counter(name for node in ast.walk(function) if isinstance(node, ast.Assign) for name in _made(node))
    counts = Counter(target.id for target in targets)
    given = {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
    return {name for name, count in made.items() if count == counts[name]} - given


def _made(node: ast.Assign) -> Iterator[str]:
    """The names that an assignment binds to a list or dict that is written out, or to one with an item assigned."""
    if hasattr(node, "puts_into"):
        yield node.puts_into
    for target, value in assigned_pairs(node):
        if isinstance(target, ast.Name) and isinstance(value, ast.List | ast.Dict | ast.ListComp | ast.DictComp):
            yield target.id


class _Walk:
    def __init__(self, locals_: set[str], modules: Collection[str], holds: bool) -> None:
        self.locals, self.modules, self.holds = locals_, modules, holds
        self.found: list[StaleRead] = []
        self.puts: list[ast.Assign] = []  # statements that put something into an object that may hold it

    def run(self, function: ast.FunctionDef) -> dict[tuple[int, int], StaleRead]:
        """The stale reads, by the nodes of the read and of the change."""
        self.containers = _containers(function)
        self.block(function.body, _State())
        return {(id(read.node), id(read.change)): read for read in self.found}

    def block(self, body: Iterable[ast.stmt], state: _State) -> _State:
        for node in body:
            state = self.statement(node, state)
        return state

    def statement(self, node: ast.stmt, state: _State) -> _State:
        if isinstance(node, ast.If):
            state = self.evaluated(node.test, state)
            return self.block(node.body, state).joined(self.block(node.orelse, state))
        if isinstance(node, ast.For | ast.While):
            if isinstance(node, ast.For):
                self.reads(node.iter, state)
            for _ in range(2):
                start = state
                if isinstance(node, ast.For):
                    start = self.assigned(node.target, self.roots(node.iter), state)
                else:
                    start = self.evaluated(node.test, state)
                state = state.joined(self.block(node.body, start))
            return self.block(node.orelse, state)
        if isinstance(node, ast.With | ast.Try | ast.TryStar | ast.Match):
            return self.compound(node, state)
        if isinstance(node, ast.Assign):
            return self.assign(node, state)
        if isinstance(node, ast.AnnAssign):
            state = state if node.value is None else self.evaluated(node.value, state)
            return state if node.value is None else self.assigned(node.target, self.roots(node.value), state)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self.reads(node.value, state)
            self.read(node.target, state)
            return self.changed(node.target.id, node, state, augmented=True)
        return self.evaluated(node, state)

    def evaluated(self, node: ast.AST, state: _State) -> _State:
        """The state after an expression, with the names that it binds and the objects that its calls keep."""
        self.reads(node, state)
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr):
                state = self.assigned(part.target, self.roots(part.value), state)
            elif isinstance(part, ast.Call):
                state = self.held(part, state)
        return state

    def held(self, call: ast.Call, state: _State) -> _State:
        """Note that an object holds the arguments of a method such as `append`."""
        for name, _ in change_of_call(call, self.modules):
            others = set().union(*map(self._held_by, call.args)) - {name}
            if name in self.locals:
                state = _State(state.shared | {frozenset((name, other)) for other in others}, state.stale)
        return state

    def _held_by(self, argument: ast.expr) -> set[str]:
        """The names with which a list may share what is appended; an item of a container is not the container."""
        root = argument.value if isinstance(argument, ast.Subscript) else None
        if isinstance(root, ast.Name) and root.id in self.containers:
            return {_items_of(root.id)}
        return self.roots(argument)

    def compound(self, node: ast.stmt, state: _State) -> _State:
        """The state after a statement that may be left at any point: each of its parts may have run or not."""
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.stmt):
                state = state.joined(self.statement(part, state))
            elif isinstance(part, ast.withitem):
                self.reads(part.context_expr, state)
                if part.optional_vars is not None:
                    state = self.assigned(part.optional_vars, self.roots(part.context_expr), state)
            elif isinstance(part, ast.ExceptHandler | ast.match_case):
                if isinstance(node, ast.Match) and isinstance(part, ast.match_case):
                    for name in captured_names(part.pattern):
                        state = self.assigned(ast.Name(name, ast.Store()), self.roots(node.subject), state)
                for sub in part.body:
                    state = state.joined(self.statement(sub, state))
            else:
                self.reads(part, state)
        return state

    def assign(self, node: ast.Assign, state: _State) -> _State:
        state = self.evaluated(node.value, state)
        mutated = getattr(node, "puts_into", None)
        if mutated is not None:
            state = self.changed(mutated, node, state, augmented=False)
            if is_augmented_put(node):
                state = self.changed(_items_of(mutated), node, state, augmented=False)
            held = self.roots(_put_value(node)) - {mutated} if self.holds else set()
            self.puts += [node] if held else []
            return _State(state.shared | {frozenset((mutated, name)) for name in held}, state.stale)
        roots = self.roots(node.value)
        for target in node.targets:
            for part, value in pairs_of(target, node.value):
                state = self.assigned(part, roots if value is node.value else self.roots(value), state)
            roots = roots | ({target.id} if isinstance(target, ast.Name) else set())  # `a = b = v` is one object
        return state

    def assigned(self, target: ast.expr, roots: set[str], state: _State) -> _State:
        """The state after a target is bound to something that may share an object with these names."""
        if isinstance(target, ast.Starred):
            return self.assigned(target.value, roots, state)
        if isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                state = self.assigned(part, roots, state)
            return state
        if isinstance(target, ast.Name):
            name = target.id
            kept = frozenset(pair for pair in state.shared if name not in pair or name in roots)
            stale = {key: value for key, value in state.stale.items() if key != name}
            around = {other for root in roots for pair in state.shared if root in pair for other in pair}
            pairs = {frozenset((name, other)) for other in roots | around if other != name}
            return _State(kept | pairs, stale)
        root = root_name(target)  # an item or attribute: the object now leads to these names' objects, too
        if root is None:
            return state
        return _State(state.shared | {frozenset((root, other)) for other in roots if other != root}, state.stale)

    def changed(self, name: str, node: ast.AST, state: _State, *, augmented: bool) -> _State:
        others = {other for pair in state.shared if name in pair for other in pair if other != name}
        return _State(state.shared, {**state.stale, **dict.fromkeys(others, (name, node, augmented))})

    def reads(self, node: ast.AST, state: _State) -> None:
        for sub in ast.walk(node):
            if isinstance(sub, ast.Name) and isinstance(sub.ctx, ast.Load):
                self.read(sub, state)

    def read(self, node: ast.Name, state: _State) -> None:
        if node.id in state.stale:
            self.found.append(StaleRead(node, *state.stale[node.id], tuple(self.puts)))

    def roots(self, node: ast.expr) -> set[str]:
        """The names with which the value of an expression may share an object."""
        if isinstance(node, ast.Name):
            return {node.id} & self.locals
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred | ast.NamedExpr):
            return self.roots(node.value)
        if isinstance(node, ast.IfExp):
            return self.roots(node.body) | self.roots(node.orelse)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return set().union(*map(self.roots, node.elts))
        if isinstance(node, ast.Dict):
            return set().union(*map(self.roots, node.values))
        if isinstance(node, ast.BoolOp):
            return set().union(*map(self.roots, node.values))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            item = node.value if isinstance(node, ast.DictComp) else node.elt
            return self.roots(item) | set().union(*(self.roots(gen.iter) for gen in node.generators))
        if isinstance(node, ast.Lambda):
            return set().union(*(self.roots(each) for each in (*node.args.defaults, *node.args.kw_defaults) if each))
        if isinstance(node, ast.Call) and is_view(node, self.modules):
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            own = self.roots(node.func.value) if isinstance(node.func, ast.Attribute) else set()
            return own.union(*map(self.roots, parts))
        return set()

"""The analysis of a function's loops: which names each carries, captures and outputs, and whether it can be rewritten.

In: the function's tree, with functional item assignments and merged nests. Out: a `LoopInfo` for each loop, whose node
is marked with its number (`node.remat_loop`). A loop that cannot be rewritten raises a SourceError, or with `keep` gets
an info that says why it is left unchanged.
"""

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from remat.errors import SourceError
from remat.source.data_flow import refusal
from remat.source.data_flow.aliases import find_stale_reads, is_augmented_put
from remat.source.data_flow.dict_keys import dicts_made
from remat.source.data_flow.emission import mark_emissions
from remat.source.data_flow.flow import FlowVisitor, Loop, loop_flow
from remat.source.data_flow.iterated import changes_of_iterated, own_items
from remat.source.data_flow.liveness import live_after
from remat.source.data_flow.mutation import root_name
from remat.source.data_flow.outputs import Output, outputs_of
from remat.source.data_flow.scopes import Scope, bound_names, late_readers, scopes_in
from remat.source.data_flow.traceability import is_traceable, multiplied_names
from remat.source.loop_info import LoopInfo
from remat.source.syntax import clone, is_hidden, names_in, words

__all__ = ["Analysis", "FoundLoop", "local_names"]

# Contexts that let exceptions pass: the turn that raises in one of these need not be rerun in place.
_PASSING = words(
    "errstate no_grad enable_grad set_grad_enabled inference_mode autocast open catch_warnings printoptions "
    "device nullcontext redirect_stdout profile localcontext record_function default_device Timer Lock"
)
_LIBRARIES = words("numpy torch jax autograd contextlib builtins io _io _thread threading warnings decimal _decimal")


@dataclass(frozen=True)
class FoundLoop:
    """A loop of the function, and what is around it."""

    node: Loop
    outer: tuple[Loop, ...]
    guarded: bool  # whether a `try`, or a context that may swallow exceptions, is around it in the function
    contexts: tuple[str, ...]


@dataclass
class Analysis:
    """The analysis of one function."""

    function: ast.FunctionDef
    file: str
    modules: frozenset[str]
    keep: bool = False
    outside: Mapping[str, Any] = field(default_factory=dict)  # the values of names from outside the function
    has_budget: bool = True  # whether all loops are checkpointed, rather than only marked ones
    infos: list[LoopInfo] = field(default_factory=list)
    loops: dict[int, FoundLoop] = field(default_factory=dict)  # by number
    outputs: dict[int, list[Output]] = field(default_factory=dict)  # by number

    def run(self) -> "Analysis":
        """Analyse every loop."""
        function = self.function
        self.locals, self.declared, self.entries = local_names(function, self.modules)
        self.live = live_after(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AugAssign) and id(node) in self.live:
                own = {getattr(node, "puts_into", None) or node.target.id}  # type: ignore[union-attr]
                node.live = tuple(sorted((self.live[id(node)] & self.locals) - own))  # type: ignore[union-attr]
        self.dicts = dicts_made(function)
        self.scopes: list[Scope] = scopes_in(function)
        self.stale = find_stale_reads(function, self.locals, self.modules)
        for number, found in enumerate(_loops(function.body, self._is_passing), 1):
            try:
                info = self._loop(number, found)
            except SourceError as error:
                if not self.keep and (self.has_budget or _is_marked(found.node)):
                    raise
                info = replace(self._bare(number, found), kept=str(error).splitlines()[0])
            self.infos.append(info)
            self.loops[number] = found
            found.node.remat_loop = number  # type: ignore[union-attr]
        return self

    def _is_passing(self, context: ast.expr) -> bool:
        """Whether a context of a library lets exceptions pass; a class of the user's may have the same name."""
        node = context.func if isinstance(context, ast.Call) else context
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        if name not in _PASSING or root_name(node) in self.locals:
            return False
        path = ast.unparse(node).split(".")
        found = self.outside.get(path[0], getattr(builtins, path[0], None))
        for part in path[1:]:
            found = getattr(found, part, None)
        return str(getattr(found, "__module__", "")).partition(".")[0] in _LIBRARIES

    def refuse(self, node: ast.AST, why: str, how: str) -> NoReturn:
        """Raise the SourceError for a node."""
        refusal.refuse(self.file, node, why, how)

    def _bare(self, number: int, found: FoundLoop) -> LoopInfo:
        node = found.node
        head = clone(node)
        head.body, head.orelse = [ast.Pass()], []
        return LoopInfo(
            number,
            "for" if isinstance(node, ast.For) else "while",
            self.file,
            self.function.name,
            node.lineno,
            node.col_offset,
            ast.unparse(head).splitlines()[0],
            (),
            (),
            (),
            depth=len(found.outer),
            merged=getattr(node, "merged", ""),
            inner=tuple(n.lineno for part in node.body for n in ast.walk(part) if isinstance(n, ast.For | ast.While)),
            contexts=found.contexts,
        )

    def _loop(self, number: int, found: FoundLoop) -> LoopInfo:
        node = found.node
        if isinstance(node, ast.For) and any(
            isinstance(n, ast.Subscript | ast.Attribute) for n in ast.walk(node.target)
        ):
            self.refuse(node.target, "the target of the loop is an item or an attribute", "Give it a name of its own.")
        outputs = outputs_of(node, self.locals, self.modules, self.dicts)
        self.outputs[number] = outputs
        flow = loop_flow(_without_outputs(node, outputs), self.modules)
        refusal.check_function(self.function, self.refuse)
        refusal.check_loop(node, flow, (), self.declared, self.refuse)
        names = {output.name for output in outputs}
        self._check_scopes(found, flow.written | names)
        self._check_items(node, {output.name for output in outputs if not output.filled})
        live = self.live[id(node)]
        self._check_iterated(node, outputs, live)
        knows_last = isinstance(node, ast.For) and not found.guarded
        sure = flow.sure_at_every_end() if knows_last else set()
        carry = (flow.written & (flow.exposed | (live - sure))) & self.locals
        captured = (flow.exposed - flow.written) & self.locals - names
        put = {n.puts_into for part in node.body for n in ast.walk(part) if hasattr(n, "puts_into")}
        ends = {end for end in flow.ends if end != "continue"} | ({"an exception"} if found.guarded else set())
        entry = self.entries[id(node)]
        return replace(
            self._bare(number, found),
            carry=tuple(sorted(carry)),
            captured=tuple(sorted(captured)),
            locals=tuple(sorted(name for name in flow.written - carry if not is_hidden(name))),
            lists=tuple(output.name for output in outputs if not output.filled),
            arrays=tuple(output.name for output in outputs if output.filled),
            held=tuple((output.name, *output.node.holds) for output in outputs if hasattr(output.node, "holds")),
            last_in_place=bool((flow.written & live) - carry),
            ends=frozenset(ends),
            unbound=frozenset(name for name in carry | captured if name not in entry or name in _deleted_names(node)),
            put=frozenset(carry & put),
            items=frozenset(pair for pair in _augmented_items(node) if pair[0] in carry),
            changed={name: line for name, line in _changed_names(node).items() if name in carry | names},
            augmented=tuple(self._augmented(node, carry | captured)),
            readable=tuple(sorted((flow.exposed | live) & self.locals)),
            own_items=own_items(node, live) if isinstance(node, ast.For) else frozenset(),
            shares_iterator=_uses_its_iterator(node),
            traceable=is_traceable(node),
            reads_variable=_reads_variable(node),
            scaled=frozenset(multiplied_names(node)),
            emits=mark_emissions(node.body, self.locals),
        )

    def _check_scopes(self, found: FoundLoop, names: set[str]) -> None:
        outer = found.outer[0] if found.outer else None
        for scope in late_readers(self.scopes, self.function, found.node, outer, names):
            what = ", ".join(sorted(scope.free & names))
            self.refuse(
                scope.node,
                f"this reads {what} when it runs, and the loop in line {found.node.lineno} assigns it",
                "Pass it as an argument, or define this inside the loop.",
            )

    def _check_iterated(self, node: Loop, outputs: list[Output], live: set[str]) -> None:
        for name, change in changes_of_iterated(node, outputs, live) if isinstance(node, ast.For) else ():
            self.refuse(
                change,
                f"{name} is changed here, and the loop in line {node.lineno} iterates over it",
                f"Iterate over a copy, as in for … in list({name}), or over a range.",
            )

    def _check_items(self, node: Loop, lists: set[str]) -> None:
        """Refuse to change an item of what is iterated over, or of a list that the loop appends to.

        Such items are not there when the run time compares objects with each other.
        """
        targets = set(names_in(node.target)) if isinstance(node, ast.For) else set()
        inside = {id(n) for n in ast.walk(node)}
        for read in self.stale:
            is_item = read.node.id in lists or read.other in targets
            if is_item and id(read.change) in inside and not read.augmented:
                what = f"an item of {name}" if (name := read.other.removesuffix("[]")) != read.other else name
                self.refuse(
                    read.change,
                    f"{what} may be an item of {read.node.id}, which is changed here, and {read.node.id} is read "
                    f"in line {read.node.lineno}",
                    f"Copy the item before that, as {name}.copy() does for an array, or write into a new array.",
                )

    def _augmented(self, node: Loop, names: set[str]) -> Iterator[tuple[str, str, int]]:
        inside = {id(n) for n in ast.walk(node)}
        for read in self.stale:
            if read.augmented and id(read.change) in inside and read.other in names:
                yield read.other, read.node.id, read.change.lineno  # type: ignore[attr-defined]


def _augmented_items(node: Loop) -> Iterator[tuple[str, Any]]:
    """The names of which a loop augments items, each with the constant index; None stands for any other index."""
    for n in ast.walk(node):
        if is_augmented_put(n):
            index = n.value.args[2]  # type: ignore[attr-defined]
            yield n.puts_into, index.value if isinstance(index, ast.Constant) else None  # type: ignore[attr-defined]


def _changed_names(node: Loop) -> dict[str, int]:
    """The names that a loop changes by `name[i] = …` or `name += …`, with the line where it first does."""
    found: dict[str, int] = {}
    for change in (n for part in node.body for n in ast.walk(part) if isinstance(n, ast.Assign | ast.AugAssign)):
        target = change.target if isinstance(change, ast.AugAssign) else None
        name = target.id if isinstance(target, ast.Name) else getattr(change, "puts_into", None)
        if name is not None:
            found.setdefault(name, change.lineno)
    return found


def _reads_variable(node: Loop) -> bool:
    own = set(names_in(node.target)) if isinstance(node, ast.For) else set()
    read = (n for part in node.body for n in ast.walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return any(n.id in own for n in read)


def _deleted_names(node: Loop) -> set[str]:
    names = (n for part in node.body for n in ast.walk(part) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Del)}


def _is_marked(node: Loop) -> bool:
    """Whether a loop is over `remat.range`, judging by its text."""
    call = node.iter if isinstance(node, ast.For) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "range"


def _uses_its_iterator(node: Loop) -> bool:
    """Whether the body of a `for` loop may take items from the loop's own iterator."""
    if not isinstance(node, ast.For):
        return False
    parts = [node.iter, *(node.iter.args if isinstance(node.iter, ast.Call) else ())]
    iterated = {n.id for n in parts if isinstance(n, ast.Name)}
    used = [n for part in node.body for n in ast.walk(part) if isinstance(n, ast.Name)]
    return any(n.id in iterated or n.id == "next" for n in used)


def local_names(
    function: ast.FunctionDef, modules: frozenset[str]
) -> tuple[set[str], set[str], dict[int, frozenset[str]]]:
    """The local names of a function, its global and nonlocal names, and by loop the names surely bound before it."""
    entries: dict[int, frozenset[str]] = {}
    flow = FlowVisitor(modules, entries)
    arguments = bound_names(function.args)
    flow.sure |= arguments
    flow.run(function.body)
    statements = (n for n in ast.walk(function) if isinstance(n, ast.Global | ast.Nonlocal))
    declared = {name for node in statements for name in node.names}
    return (flow.written | arguments) - declared, declared, entries


def _without_outputs(node: Loop, outputs: list[Output]) -> Loop:
    """The loop for its data flow, with each output statement replaced by the expression of its value."""
    if not outputs:
        return node
    by_id = {id(output.node): output for output in outputs}
    new = node.__class__.__new__(node.__class__)
    new.__dict__.update(node.__dict__)
    new.body = [
        ast.copy_location(ast.Expr(by_id[id(part)].value), part) if id(part) in by_id else part for part in node.body
    ]
    return new


def _loops(
    body: list[ast.stmt],
    is_passing: Callable[[ast.expr], bool],
    outer: tuple[Loop, ...] = (),
    guarded: bool = False,
    contexts: tuple[str, ...] = (),
) -> Iterator[FoundLoop]:
    """The loops of a block in text order, outer ones first; not those of inner functions."""
    for node in body:
        if isinstance(node, ast.For | ast.While):
            yield FoundLoop(node, outer, guarded, contexts)
            yield from _loops(node.body, is_passing, (*outer, node), guarded, contexts)
            yield from _loops(node.orelse, is_passing, outer, guarded, contexts)
        elif isinstance(node, ast.With):
            texts = [ast.unparse(item.context_expr) for item in node.items]
            passing = all(is_passing(item.context_expr) for item in node.items)
            yield from _loops(node.body, is_passing, outer, guarded or not passing, (*contexts, *texts))
        elif isinstance(node, ast.Try | ast.TryStar):
            handlers = [part for handler in node.handlers for part in handler.body]
            yield from _loops(node.body, is_passing, outer, True, contexts)
            for part in (handlers, node.orelse, node.finalbody):
                yield from _loops(part, is_passing, outer, guarded, contexts)
        elif isinstance(node, ast.If):
            yield from _loops(node.body, is_passing, outer, guarded, contexts)
            yield from _loops(node.orelse, is_passing, outer, guarded, contexts)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                yield from _loops(case.body, is_passing, outer, guarded, contexts)

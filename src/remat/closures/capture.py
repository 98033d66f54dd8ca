"""Closure conversion without rewriting the function: values that a step captures become inputs of the loop.

A value in a closure is invisible to a framework's custom gradient. So the references to differentiable values are
searched for (cells, partials, defaults, globals, attributes of objects and of their classes, items of lists and dicts),
their values become inputs of the loop, and `rebind` binds the references to other values while steps run. Cells that
the step only reads get the content that they had when the loop was called, so that a lambda in a Python loop over
layers sees its own layer again in the reverse sweep.

This relies on three facts of CPython, each used in one place of this package:
- `cell.cell_contents` can be assigned (references.CellRef; documented since 3.7);
- `partial.__setstate__` replaces the arguments of a partial in place (references.PartialRef; it is part of pickling);
- `dis` names the instructions that read globals and assign to cells (bytecode.py; opnames may change with a version).
There is no public alternative: `inspect.getclosurevars` and `ast` show the values or the source but cannot rebind a
variable of a function that already exists, and rebuilding the function with `types.FunctionType` would leave every
other reference to it (methods, decorators, objects that hold it) with the old values.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from threading import RLock
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, Protocol

from remat.closures.bytecode import assigned_names, global_names
from remat.closures.references import (
    UNSET,
    AttributeRef,
    CellRef,
    ItemRef,
    PartialRef,
    Reference,
    is_library,
)
from remat.errors import StepError
from remat.execute.rng_state import ReplayableState, private_rng_state
from remat.pytree import LEAF, TreeDef, flatten

__all__ = ["BaseCaptureFilter", "CaptureFilter", "CapturedReference", "ConvertedClosure"]

# Bounds on the search, which is breadth first. A captured value that it misses raises an error when the step runs.
_MOST_VISITS = 2_000  # functions, objects and classes
_LONG = 1_000  # items of one list or dict; longer ones are skipped if their first items are plain numbers or strings
_MOST_ITEMS = 20_000  # items of all lists and dicts

LOCK_TIMEOUT = 60  # seconds that a thread waits for another
_lock = RLock()  # rebinding changes variables that other threads see, so only one step runs rebound at a time


class CaptureFilter(Protocol):
    """Which values a framework captures from closures."""

    opaque_types: ClassVar[tuple[type, ...]]  # objects of these types are not searched
    atomic_types: ClassVar[frozenset[type]]  # leaves of these types are neither captured nor searched

    def __bool__(self) -> bool:
        """Whether there can be anything to capture; if not, nothing is searched."""
        ...

    def accepts(self, leaf: Any) -> bool:
        """Whether a leaf is to be captured."""
        ...

    def unpack(self, value: Any) -> Any:
        """The framework's own containers as plain ones."""
        ...

    def visit(self, value: Any, name: str) -> None:
        """Called for every function, object and class that the search reaches."""
        ...


class BaseCaptureFilter:
    """The defaults of most frameworks: always search, in plain containers, and do nothing on a visit."""

    def __bool__(self) -> bool:
        return True

    @staticmethod
    def unpack(value: Any) -> Any:
        """The value itself: there are no containers of the framework's own."""
        return value

    def visit(self, value: Any, name: str) -> None:
        """Do nothing."""


@contextmanager
def _exclusive() -> Iterator[None]:
    """A block that one thread runs at a time, so that it sees variables as the user's program bound them."""
    if not _lock.acquire(timeout=LOCK_TIMEOUT):
        raise StepError(
            f"another thread has been running a step for {LOCK_TIMEOUT} seconds, or waits for this one: it has "
            "replaced what that step closes over. Pass such values through init or xs, or run one thread after "
            "the other"
        )
    try:
        yield
    finally:
        _lock.release()


@dataclass(frozen=True)
class CapturedReference:
    """A reference to a captured value, or to a tuple that contains captured values among others."""

    name: str  # of the variable, for messages
    keys: tuple[Any, ...]  # of the items from that variable down to the reference
    reference: Reference
    tree: TreeDef  # the structure of what is referred to
    values: tuple[tuple[int, int], ...]  # (index among the leaves, index among all captured values)
    leaves: tuple[Any, ...]  # with None for each captured value

    def with_values(self, values: Any) -> Any:
        """What to bind the reference to, with other captured values, by their indices."""
        leaves = list(self.leaves)
        for leaf_index, index in self.values:
            leaves[leaf_index] = values[index]
        return self.tree.unflatten(leaves)


class ConvertedClosure:
    """A step as a function of its captured values: `take_values` returns them, `rebind` runs the step with others.

    `others` are further functions to search, such as the condition of a loop.
    """

    def __init__(self, capture_filter: CaptureFilter, step: Callable[..., Any], *others: Any) -> None:
        self.step = step
        self.references: list[CapturedReference] = []
        self.cache_key: list[Any] = []  # the code objects of all functions that the search reached
        self._values: list[Any] = []  # the captured values, each once
        self._uncaptured: dict[int, Any] = {}  # by index: values that `restrict_to` took out again
        self._indices: dict[int, int] = {}  # by id
        self.replayable_states: list[ReplayableState] = []  # random generators of the user's
        self._filter, self._atomic_types = capture_filter, _ATOMIC_TYPES | capture_filter.atomic_types
        self._cells_read: dict[int, tuple[CellType, Any]] = {}  # by id: the cell and its content
        self._cells_written: set[int] = set()
        self._seen: set[int] = set()
        self._items = 0  # of lists and dicts, counted against _MOST_ITEMS
        self._queue: deque[tuple[Any, str]] = deque()  # values to visit, and their names
        if capture_filter:
            self._queue.extend((function, "step") for function in (step, *others) if function is not None)
        with _exclusive():  # another thread may have rebound variables that this search reads
            for _ in range(_MOST_VISITS):
                if not self._queue:
                    break
                self._visit(*self._queue.popleft())
        # A cell that the step writes is state of its own: it keeps what the step wrote.
        self._cells = [pair for cell_id, pair in self._cells_read.items() if cell_id not in self._cells_written]
        # Only the search needs these, and they would keep the user's values alive.
        del self._seen, self._cells_read, self._cells_written, self._queue, self._filter

    def take_values(self) -> list[Any]:
        """The captured values; no reference to them is left here, so that no traced value outlives its trace."""
        values, self._values, self._indices = self._values, [], {}
        return values

    def rebind(self, values: Any) -> AbstractContextManager[Callable[..., Any]]:
        """A block in which the references are bound to `values`, by index; it yields the step."""
        if self._uncaptured:
            values = {**self._uncaptured, **values}
        return self._rebind(values) if self.references or self._cells else nullcontext(self.step)

    @contextmanager
    def _rebind(self, values: Any) -> Iterator[Callable[..., Any]]:
        with _exclusive() if self._changes_anything(values) else nullcontext():
            previous: list[tuple[Reference, Any]] = []
            rebound: list[tuple[Reference, Any]] = []
            try:
                for cell, content in self._cells:
                    cell_reference = CellRef(cell)
                    current = cell_reference.get()
                    if current is not content:
                        previous.append((cell_reference, current))
                        cell_reference.put(content)
                for captured in self.references:
                    reference, value = captured.reference, captured.with_values(values)
                    old = reference.get()
                    if value is old:
                        continue
                    rebound.append((reference, value))
                    previous.append((reference, old))
                    reference.put(value)
                yield self.step
            finally:
                rewritten = {id(reference) for reference, value in rebound if reference.was_rewritten(value)}
                for reference, value in reversed(previous):
                    if id(reference) not in rewritten:
                        reference.put(value)
                if rewritten:  # the step uses these as variables of its own (a cache, a counter): what it wrote stays
                    self.references = [c for c in self.references if id(c.reference) not in rewritten]

    def _changes_anything(self, values: Any) -> bool:
        """Whether any variable must be rebound; if all have their values already, threads need not wait."""
        return any(CellRef(cell).get() is not content for cell, content in self._cells) or any(
            captured.with_values(values) is not captured.reference.get() for captured in self.references
        )

    def restrict_to(self, indices: set[int], values: list[Any]) -> None:
        """Capture only the values with these indices from now on; `values` are all values that were captured.

        Others in the same tuple as one of these are bound to what they were.
        """
        self.references = [c for c in self.references if any(index in indices for _, index in c.values)]
        remaining = {index for captured in self.references for _, index in captured.values}
        self._uncaptured = {index: values[index] for index in remaining - indices}

    def _enqueue(self, value: Any, name: str) -> None:
        """Visit a value that is no container later: breadth first, so that what is near the step is reached."""
        if id(value) not in self._seen and not isinstance(value, (*_OPAQUE_TYPES, *self._filter.opaque_types)):
            self._seen.add(id(value))
            self._queue.append((value, name))

    def _visit(self, value: Any, name: str) -> None:
        """Search what a value that is no container refers to."""
        replayable = private_rng_state(value)
        if replayable is not None:
            self.replayable_states.append(replayable)
            return
        self._filter.visit(value, name)
        if isinstance(value, FunctionType):
            self._visit_function(value)
        elif isinstance(value, MethodType):
            self._enqueue(value.__func__, name)
            self._enqueue(value.__self__, "self")
        elif isinstance(value, partial):
            self._enqueue(value.func, name)
            self._visit_value((value.args, value.keywords), "partial", PartialRef(value))
        elif isinstance(value, type):
            self._visit_class(value, name)
        else:
            self._visit_object(value, name)

    def _visit_function(self, function: FunctionType) -> None:
        # A library's function can capture the user's values only in a closure, as decorators do.
        if not function.__closure__ and is_library(function.__module__ or ""):
            return
        # Primitives of an AD tool have closures too, but none of the user's values in them.
        if getattr(function, "_is_autograd_primitive", False) or getattr(function, "_is_primitive", False):
            return
        code = function.__code__
        self.cache_key.append(code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name in assigned_names(code):
                self._cells_written.add(id(cell))
            content = CellRef(cell).get()
            if content is UNSET or id(cell) in self._seen:
                continue
            self._seen.add(id(cell))
            if not self._visit_value(content, name, CellRef(cell)):
                self._cells_read[id(cell)] = cell, content
        if function.__defaults__:
            names = code.co_varnames[: code.co_argcount][-len(function.__defaults__) :]
            self._visit_value(function.__defaults__, ", ".join(names), AttributeRef(function, "__defaults__"))
        self._visit_namespace(function.__kwdefaults__ or {}, "{}")
        namespace = function.__globals__
        for name in global_names(code):
            if name in namespace and not isinstance(namespace[name], ModuleType):
                self._visit_value(namespace[name], name, ItemRef(namespace, name))
        self._enqueue(getattr(function, "__wrapped__", None), "step")

    def _visit_object(self, value: Any, name: str) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._visit_namespace(attributes, f"{name}.{{}}")
        self._visit_class(type(value), name)
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                # Private names are mangled in attributes, but not in __slots__.
                mangled = f"_{cls.__name__.lstrip('_')}{slot}" if slot[:2] == "__" != slot[-2:] else slot
                reference = AttributeRef(value, mangled)
                if mangled not in ("__dict__", "__weakref__") and reference.get() is not UNSET:
                    self._visit_value(reference.get(), f"{name}.{slot}", reference)

    def _visit_class(self, value: type, name: str) -> None:
        """Search the attributes of a class and its bases, and its methods, which may have closures of their own."""
        for cls in value.__mro__:
            if is_library(cls.__module__) or (id(cls) in self._seen and cls is not value):
                continue
            self._seen.add(id(cls))
            for key, member in list(vars(cls).items()):
                # Static and class methods, properties and cached properties refer to their function under these names.
                function = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
                if isinstance(function, FunctionType):
                    self._enqueue(function, name)
                elif not key.startswith("__"):
                    self._visit_value(member, f"{cls.__name__}.{key}", AttributeRef(cls, key))

    def _visit_namespace(self, namespace: dict[str, Any], name: str) -> None:
        for key, value in list(namespace.items()):
            self._visit_value(value, name.format(key), ItemRef(namespace, key))

    def _visit_value(self, value: Any, name: str, reference: Reference, keys: tuple[Any, ...] = ()) -> bool:
        """Whether the reference is one to captured values, which is then added; what else it refers to is searched."""
        if type(value) in self._atomic_types:
            return False
        if isinstance(value, list | dict | deque):
            self._visit_items(value, name, keys)
            return False
        leaves, tree = self._flatten_immutable(value)
        indices = []
        for leaf_index, leaf in enumerate(leaves):
            if self._filter.accepts(leaf):
                indices.append((leaf_index, self._index_of(leaf)))
            elif isinstance(leaf, list | dict | deque):
                self._visit_items(leaf, name, keys)
            elif type(leaf) not in self._atomic_types:
                self._enqueue(leaf, name + "".join(f"[{key!r}]" for key in keys))
        if indices:
            others = list(leaves)
            for leaf_index, _ in indices:
                others[leaf_index] = None
            self.references.append(CapturedReference(name, keys, reference, tree, tuple(indices), tuple(others)))
        return bool(indices)

    def _visit_items(self, value: Any, name: str, keys: tuple[Any, ...]) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        items = list(islice(pairs, _LONG + 1))
        # Tables of data are long and uniform, and searching them would use up the bound on items.
        if len(items) > _LONG and all(type(item) in self._atomic_types for _, item in items[:16]):
            return
        items = items[: min(_LONG, _MOST_ITEMS - self._items)]
        self._items += len(items)
        for key, item in items:
            self._visit_value(item, name, ItemRef(value, key), (*keys, key))

    def _flatten_immutable(self, value: Any) -> tuple[list[Any], TreeDef]:
        """The leaves of tuples and of the framework's own containers, which can only be rebound as a whole.

        Lists, dicts and objects are leaves here: their items and attributes are references of their own.
        """
        leaves, tree = flatten(value, only=tuple)
        flattened = [
            flatten(leaf, self._filter.unpack) if self._filter.accepts(leaf) else ([leaf], LEAF) for leaf in leaves
        ]
        subtrees = iter([subtree for _, subtree in flattened])
        return [leaf for inner_leaves, _ in flattened for leaf in inner_leaves], tree.compose(subtrees)

    def _index_of(self, value: Any) -> int:
        index = self._indices.get(id(value))
        if index is None:
            index = self._indices[id(value)] = len(self._values)
            self._values.append(value)
        return index


_OPAQUE_TYPES = (ModuleType, BuiltinFunctionType, CellType, type(None))
_ATOMIC_TYPES = frozenset({int, float, bool, complex, str, bytes, type(None), range})

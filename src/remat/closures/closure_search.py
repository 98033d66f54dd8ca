"""The search for captured values: everything that a function reaches through closures, objects and containers.

In: functions, and the framework's filter. Out: references to the values that the filter accepts, the random generators
of the user's, and the code objects met on the way. The search is breadth first and bounded; it calls no user code but
attribute access.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

from remat.closures.bytecode import assigned_names, global_names
from remat.closures.capture_filter import CaptureFilter
from remat.closures.references import (
    UNSET,
    AttributeRef,
    CellRef,
    ItemRef,
    PartialRef,
    Reference,
    SetRef,
    attributes_of,
    function_of,
    is_library,
    slots_of,
)
from remat.execute.python_state import Container
from remat.execute.rng_state import ReplayableState, private_rng_state
from remat.pytree import LEAF, TreeDef, flatten

__all__ = ["CapturedReference", "ClosureSearch"]

# Bounds on the search, which is breadth first. A captured value that it misses raises an error when the step runs.
_MOST_VISITS = 2_000  # functions, objects and classes
_LONG = 1_000  # items of a list or dict from which on it is a table of data, if its first items are no captured values
_MOST_ITEMS = 100_000  # items of all lists and dicts

_OPAQUE_TYPES = (ModuleType, BuiltinFunctionType, CellType, type(None))
_ATOMIC_TYPES = frozenset({int, float, bool, complex, str, bytes, type(None), range})


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
        if self.tree is LEAF:  # most are, and a list of them may be long
            return values[self.values[0][1]]
        leaves = list(self.leaves)
        for leaf_index, index in self.values:
            leaves[leaf_index] = values[index]
        return self.tree.unflatten(leaves)


class ClosureSearch:
    """One search; it refers to the user's values, so it should not outlive the call that it is made for."""

    def __init__(self, capture_filter: CaptureFilter, functions: Iterable[Any]) -> None:
        self.references: list[CapturedReference] = []
        self.values: list[Any] = []  # the captured values, each once
        self.code: list[Any] = []  # the code objects of all functions that were reached
        self.replayable_states: list[ReplayableState] = []  # random generators of the user's
        self.containers: list[Container] = []  # lists, dicts and deques, and the `__dict__` of objects
        self._filter, self._atomic_types = capture_filter, _ATOMIC_TYPES | capture_filter.atomic_types
        self._indices: dict[int, int] = {}  # by id: the index among `values`
        self._cells_read: dict[int, tuple[CellType, Any]] = {}  # by id: the cell and its content
        self._cells_written: set[int] = set()
        self._seen: set[int] = set()
        self._items = 0  # of lists and dicts, counted against _MOST_ITEMS
        self._queue: deque[tuple[Any, str]] = deque()  # values to visit, and their names
        if capture_filter:
            self._queue.extend((function, "step") for function in functions)
        for _ in range(_MOST_VISITS):
            if not self._queue:
                break
            self._visit(*self._queue.popleft())

    @property
    def constant_cells(self) -> list[tuple[CellType, Any]]:
        """The cells that are only read, without captured values, and their contents."""
        # A cell that the step writes is state of its own: it keeps what the step wrote.
        return [pair for cell_id, pair in self._cells_read.items() if cell_id not in self._cells_written]

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
        self.code.append(code)
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
        self._visit_namespace(function.__kwdefaults__ or {})
        namespace = function.__globals__
        for name in global_names(code):
            if name in namespace and not isinstance(namespace[name], ModuleType):
                self._visit_value(namespace[name], name, ItemRef(namespace, name))
        self._enqueue(getattr(function, "__wrapped__", None), "step")

    def _visit_object(self, value: Any, name: str) -> None:
        attributes = attributes_of(value)
        if attributes is not None:
            self.containers.append(attributes)
            self._visit_namespace(attributes, f"{name}.")
        self._visit_class(type(value), name)
        for slot, _ in slots_of(value):
            reference = AttributeRef(value, slot)
            self._visit_value(reference.get(), f"{name}.{slot}", reference)

    def _visit_class(self, value: type, name: str) -> None:
        """Search the attributes of a class and its bases, and its methods, which may have closures of their own."""
        for cls in value.__mro__:
            if is_library(cls.__module__) or (id(cls) in self._seen and cls is not value):
                continue
            self._seen.add(id(cls))
            for key, member in list(vars(cls).items()):
                function = function_of(member)
                if function is not None:
                    self._enqueue(function, name)
                elif not key.startswith("__"):
                    self._visit_value(member, f"{cls.__name__}.{key}", AttributeRef(cls, key))

    def _visit_namespace(self, namespace: dict[str, Any], prefix: str = "") -> None:
        for key, value in list(namespace.items()):
            self._visit_value(value, f"{prefix}{key}", ItemRef(namespace, key))

    def _visit_value(self, value: Any, name: str, reference: Reference, keys: tuple[Any, ...] = ()) -> bool:
        """Whether the reference is one to captured values, which is then added; what else it refers to is searched."""
        if type(value) in self._atomic_types:
            return False
        if isinstance(value, list | dict | deque):
            self._visit_items(value, name, keys)
            return False
        if isinstance(value, set) and self._filter.rebinds_sets:
            value, reference = frozenset(value), SetRef(value)
        leaves, tree = self._flatten_immutable(value)
        indices = []
        for leaf_index, leaf in enumerate(leaves):
            if self._filter.accepts(leaf):
                indices.append((leaf_index, self._index_of(leaf)))
            elif isinstance(leaf, list | dict | deque):
                self._visit_items(leaf, name, keys)
            elif isinstance(leaf, BuiltinFunctionType) and isinstance(leaf.__self__, list | dict | deque):
                self._visit_items(leaf.__self__, name, keys)  # such as losses.append
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
        self.containers.append(value)
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        # Tables of data are long and uniform, and searching them would use up the bound on items.
        if len(value) > _LONG and all(self._is_data(item) for _, item in islice(pairs, 16)):
            return
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        items = list(islice(pairs, _MOST_ITEMS - self._items))
        self._items += len(items)
        for key, item in items:
            self._visit_value(item, name, ItemRef(value, key), (*keys, key))

    def _is_data(self, item: Any) -> bool:
        """Whether an item is a number, a text or an array that is not captured."""
        if type(item) in self._atomic_types:
            return True
        return isinstance(item, self._filter.opaque_types) and not self._filter.accepts(item)

    def _flatten_immutable(self, value: Any) -> tuple[list[Any], TreeDef]:
        """The leaves of tuples, frozensets and the framework's own containers, which can only be rebound as a whole.

        Lists, dicts and objects are leaves here: their items and attributes are references of their own.
        """
        leaves, tree = flatten(value, only=tuple) if isinstance(value, tuple) else ([value], LEAF)
        accepts, unpack = self._filter.accepts, self._filter.unpack
        if not any(accepts(leaf) and unpack(leaf) is not leaf for leaf in leaves):  # nearly always
            return leaves, tree
        flattened = [self._flatten_leaf(leaf) for leaf in leaves]
        subtrees = iter([subtree for _, subtree in flattened])
        return [leaf for inner_leaves, _ in flattened for leaf in inner_leaves], tree.compose(subtrees)

    def _flatten_leaf(self, leaf: Any) -> tuple[list[Any], TreeDef]:
        if self._filter.accepts(leaf):
            return flatten(leaf, self._filter.unpack)
        if isinstance(leaf, frozenset) and self._filter.rebinds_sets:
            return list(leaf), TreeDef(frozenset, tuple(range(len(leaf))), (LEAF,) * len(leaf))
        return [leaf], LEAF

    def _index_of(self, value: Any) -> int:
        index = self._indices.get(id(value))
        if index is None:
            index = self._indices[id(value)] = len(self.values)
            self.values.append(value)
        return index

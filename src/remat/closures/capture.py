"""What a step closes over: values that gradients flow to are found there, lifted out, and replaced while it runs.

This is closure conversion without rewriting the function. A value in a closure is invisible to a framework's custom
gradient, so the references that hold differentiable values are found (cells, partials, defaults, globals, attributes
of objects and of their classes, items of lists and dicts), the values become inputs of the loop, and `rebind` puts
others there while steps run. Cells that the step only reads get back what they held when the loop was called, so that
a lambda in a Python loop sees its own layer again in the reverse sweep.
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

from remat.closures.references import (
    UNSET,
    AttributeRef,
    CellRef,
    ItemRef,
    PartialRef,
    Reference,
    assigned_names,
    global_names,
    is_library,
)
from remat.errors import StepError
from remat.execute.rng_state import ReplayableState, private_rng_state
from remat.pytree import LEAF, TreeDef, flatten

__all__ = ["BaseCaptureFilter", "CaptureFilter", "CapturedReference", "ConvertedClosure"]

_MOST_VISITS = 2_000  # functions and objects looked into, near ones first; a box that is not found is an error later
_LONG = 1_000  # items of a list or dict that are looked at; of longer ones none if the first ones are plain
_MOST_ITEMS = 20_000  # items that are looked at in all

LOCK_TIMEOUT = 60  # seconds that a thread waits for another
_lock = RLock()


class CaptureFilter(Protocol):
    """What a framework looks for in closures."""

    opaque_types: ClassVar[tuple[type, ...]]  # types that are not looked into
    atomic_types: ClassVar[frozenset[type]]  # types that are nothing to be found

    def __bool__(self) -> bool:
        """Whether there can be any."""
        ...

    def accepts(self, leaf: Any) -> bool:
        """Whether this is one."""
        ...

    def unpack(self, value: Any) -> Any:
        """The framework's own containers as plain ones."""
        ...

    def visit(self, value: Any, name: str) -> None:
        """Something else that was met on the way: a function, an object, a class."""
        ...


class BaseCaptureFilter:
    """What most frameworks look for: anything, in plain containers, with nothing else to note on the way."""

    def __bool__(self) -> bool:
        return True

    @staticmethod
    def unpack(value: Any) -> Any:
        """The value: there are no other containers."""
        return value

    def visit(self, value: Any, name: str) -> None:
        """Nothing else is looked for."""


@contextmanager
def _exclusive() -> Iterator[None]:
    """A block that no other thread runs meanwhile, so that it finds variables as their program left them."""
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
    """A slot that holds boxes, alone or in a tuple: whose name and keys people know it by, and where its boxes are."""

    name: str
    keys: tuple[Any, ...]  # from the named variable down to the slot
    reference: Reference
    tree: TreeDef
    values: tuple[tuple[int, int], ...]  # (place among the leaves, number of the captured box)
    leaves: tuple[Any, ...]  # of the value, with None for each box

    def with_values(self, values: Any) -> Any:
        """The value with other values for its boxes, by their numbers."""
        leaves = list(self.leaves)
        for place, number in self.values:
            leaves[place] = values[number]
        return self.tree.unflatten(leaves)


class ConvertedClosure:
    """A step as a function of what it captured: `take_values` its boxes, and `rebind` others to run it with."""

    def __init__(self, values: CaptureFilter, step: Callable[..., Any], *others: Any) -> None:
        self.step = step
        self.references: list[CapturedReference] = []
        self.cache_key: list[Any] = []  # the code met on the way
        self._values: list[Any] = []
        self._rest: dict[int, Any] = {}
        self._indices: dict[int, int] = {}
        self.replayable_states: list[ReplayableState] = []  # private random generators
        self._filter, self._atomic_types = values, _ATOMIC_TYPES | values.atomic_types
        self._cells_read: dict[int, tuple[CellType, Any]] = {}
        self._cells_written: set[int] = set()
        self._seen: set[int] = set()
        self._items = 0
        self._queue: deque[tuple[Any, str]] = deque()
        if values:
            self._queue.extend((function, "step") for function in (step, *others) if function is not None)
        with _exclusive():  # else it would find what another thread has bound
            for _ in range(_MOST_VISITS):
                if not self._queue:
                    break
                self._visit(*self._queue.popleft())
        self._cells = [pair for number, pair in self._cells_read.items() if number not in self._cells_written]
        del self._seen, self._cells_read, self._cells_written, self._queue, self._filter

    def take_values(self) -> list[Any]:
        """The boxes, given away: what is left holds none, so that nothing of a trace outlives it."""
        values, self._values, self._indices = self._values, [], {}
        return values

    def rebind(self, values: Any) -> AbstractContextManager[Callable[..., Any]]:
        """The step, as long as `values` are in the places of the captured boxes, by their numbers."""
        if self._rest:
            values = {**self._rest, **values}
        return self._rebind(values) if self.references or self._cells else nullcontext(self.step)

    @contextmanager
    def _rebind(self, values: Any) -> Iterator[Callable[..., Any]]:
        with _exclusive() if self._changes_anything(values) else nullcontext():
            before: list[tuple[Reference, Any]] = []
            put: list[tuple[CapturedReference, Any]] = []
            try:
                for cell, content in self._cells:
                    reference = CellRef(cell)
                    now = reference.get()
                    if now is not content:
                        before.append((reference, now))
                        reference.put(content)
                for place in self.references:
                    value, old = place.with_values(values), place.reference.get()
                    if value is old:
                        continue
                    put.append((place, value))
                    before.append((place.reference, old))
                    place.reference.put(value)
                yield self.step
            finally:
                rewritten = {id(place.reference) for place, value in put if place.reference.was_rewritten(value)}
                for reference, value in reversed(before):
                    if id(reference) not in rewritten:
                        reference.put(value)
                if rewritten:  # the step has its own use for these: what it wrote stays
                    self.references = [place for place in self.references if id(place.reference) not in rewritten]

    def _changes_anything(self, values: Any) -> bool:
        """Whether anything is to be put somewhere: where all is in place already, threads need not wait."""
        return any(CellRef(cell).get() is not content for cell, content in self._cells) or any(
            place.with_values(values) is not place.reference.get() for place in self.references
        )

    def restrict_to(self, numbers: set[int], values: list[Any]) -> None:
        """Bind these boxes only, by their numbers among all that were found; what shares a place with one stays."""
        self.references = [place for place in self.references if any(number in numbers for _, number in place.values)]
        there = {number for place in self.references for _, number in place.values}
        self._rest = {number: values[number] for number in there - numbers}

    def _enqueue(self, value: Any, name: str) -> None:
        """Look below a value that is no container, when all that is nearer to the step has been looked at."""
        if id(value) not in self._seen and not isinstance(value, (*_OPAQUE_TYPES, *self._filter.opaque_types)):
            self._seen.add(id(value))
            self._queue.append((value, name))

    def _visit(self, value: Any, name: str) -> None:
        """Look for places below a value that is no container."""
        source = private_rng_state(value)
        if source is not None:
            self.replayable_states.append(source)
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
        if not function.__closure__ and is_library(function.__module__ or ""):
            return
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
        space = function.__globals__
        for name in global_names(code):
            if name in space and not isinstance(space[name], ModuleType):
                self._visit_value(space[name], name, ItemRef(space, name))
        self._enqueue(getattr(function, "__wrapped__", None), "step")

    def _visit_object(self, value: Any, name: str) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._visit_namespace(attributes, f"{name}.{{}}")
        self._visit_class(type(value), name)
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for reference in (slots,) if isinstance(slots, str) else slots:
                mangled = (
                    f"_{kind.__name__.lstrip('_')}{reference}" if reference[:2] == "__" != reference[-2:] else reference
                )
                held = AttributeRef(value, mangled)
                if mangled not in ("__dict__", "__weakref__") and held.get() is not UNSET:
                    self._visit_value(held.get(), f"{name}.{reference}", held)

    def _visit_class(self, value: type, name: str) -> None:
        """Methods close over things too, and attributes of a class may hold them."""
        for kind in value.__mro__:
            if is_library(kind.__module__) or (id(kind) in self._seen and kind is not value):
                continue
            self._seen.add(id(kind))
            for key, held in list(vars(kind).items()):
                function = getattr(held, "__func__", getattr(held, "fget", getattr(held, "func", held)))
                if isinstance(function, FunctionType):
                    self._enqueue(function, name)
                elif not key.startswith("__"):
                    self._visit_value(held, f"{kind.__name__}.{key}", AttributeRef(kind, key))

    def _visit_namespace(self, space: dict[str, Any], name: str) -> None:
        for key, value in list(space.items()):
            self._visit_value(value, name.format(key), ItemRef(space, key))

    def _visit_value(self, value: Any, name: str, reference: Reference, keys: tuple[Any, ...] = ()) -> bool:
        """Make a place of a slot with boxes in it (True); look further below lists, dicts and what is no container."""
        if type(value) in self._atomic_types:
            return False
        if isinstance(value, list | dict | deque):
            self._visit_items(value, name, keys)
            return False
        leaves, tree = self._flatten_immutable(value)
        values = []
        for place, leaf in enumerate(leaves):
            if self._filter.accepts(leaf):
                values.append((place, self._index_of(leaf)))
            elif isinstance(leaf, list | dict | deque):
                self._visit_items(leaf, name, keys)
            elif type(leaf) not in self._atomic_types:
                self._enqueue(leaf, name + "".join(f"[{key!r}]" for key in keys))
        if values:
            kept = list(leaves)
            for place, _ in values:
                kept[place] = None
            self.references.append(CapturedReference(name, keys, reference, tree, tuple(values), tuple(kept)))
        return bool(values)

    def _visit_items(self, value: Any, name: str, keys: tuple[Any, ...]) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        items = list(islice(pairs, _LONG + 1))
        if len(items) > _LONG and all(type(item) in self._atomic_types for _, item in items[:16]):
            return
        items = items[: min(_LONG, _MOST_ITEMS - self._items)]
        self._items += len(items)
        for key, item in items:
            self._visit_value(item, name, ItemRef(value, key), (*keys, key))

    def _flatten_immutable(self, value: Any) -> tuple[list[Any], TreeDef]:
        """What is in tuples and in boxed containers; lists, dicts and others are leaves: they are changed in place."""
        leaves, tree = flatten(value, only=tuple)
        parts = [
            flatten(leaf, self._filter.unpack) if self._filter.accepts(leaf) else ([leaf], LEAF) for leaf in leaves
        ]
        return [leaf for found, _ in parts for leaf in found], tree.compose(iter([below for _, below in parts]))

    def _index_of(self, value: Any) -> int:
        number = self._indices.get(id(value))
        if number is None:
            number = self._indices[id(value)] = len(self._values)
            self._values.append(value)
        return number


_OPAQUE_TYPES = (ModuleType, BuiltinFunctionType, CellType, type(None))
_ATOMIC_TYPES = frozenset({int, float, bool, complex, str, bytes, type(None), range})

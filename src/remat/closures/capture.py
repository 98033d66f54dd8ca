"""What a step closes over: values that gradients flow to are found there, lifted out, and replaced while it runs.

A value in a closure is invisible to a framework's functions, and a step that runs with traced values runs traced. So
the places that hold such boxes are found (cells, partials, defaults, globals, attributes of objects and of their
classes, items of lists and dicts), their boxes become inputs of the loop, and `bind` puts others there while steps run.
Cells that nobody writes get back what they held when the loop was called, so that a lambda in a Python loop sees its
own layer again in the reverse sweep.
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
    EMPTY,
    Attribute,
    Cell,
    Item,
    PartialArguments,
    Slot,
    globals_read,
    is_library,
    written,
)
from remat.errors import StepError
from remat.execute.rng_state import Source, private_source
from remat.pytree import LEAF, Tree, take_apart

__all__ = ["Boxes", "Captured", "Place", "Search"]

_MOST_VISITS = 2_000  # functions and objects looked into, near ones first; a box that is not found is an error later
_LONG = 1_000  # items of a list or dict that are looked at; of longer ones none if the first ones are plain
_MOST_ITEMS = 20_000  # items that are looked at in all

PATIENCE = 60  # seconds that a thread waits for another
_lock = RLock()


class Boxes(Protocol):
    """What a framework looks for in closures."""

    opaque: ClassVar[tuple[type, ...]]  # types that are not looked into
    plain: ClassVar[frozenset[type]]  # types that are nothing to be found

    def __bool__(self) -> bool:
        """Whether there can be any."""
        ...

    def has(self, leaf: Any) -> bool:
        """Whether this is one."""
        ...

    def unpack(self, value: Any) -> Any:
        """The framework's own containers as plain ones."""
        ...

    def meet(self, value: Any, name: str) -> None:
        """Something else that was met on the way: a function, an object, a class."""
        ...


class Search:
    """What most frameworks look for: anything, in plain containers, with nothing else to note on the way."""

    def __bool__(self) -> bool:
        return True

    @staticmethod
    def unpack(value: Any) -> Any:
        """The value: there are no other containers."""
        return value

    def meet(self, value: Any, name: str) -> None:
        """Nothing else is looked for."""


@contextmanager
def _alone() -> Iterator[None]:
    """A block that no other thread runs meanwhile, so that it finds variables as their program left them."""
    if not _lock.acquire(timeout=PATIENCE):
        raise StepError(
            f"another thread has been running a step for {PATIENCE} seconds, or waits for this one: it has replaced "
            "what that step closes over. Pass such values through init or xs, or run one thread after the other"
        )
    try:
        yield
    finally:
        _lock.release()


@dataclass(frozen=True)
class Place:
    """A slot that holds boxes, alone or in a tuple: whose name and keys people know it by, and where its boxes are."""

    name: str
    keys: tuple[Any, ...]  # from the named variable down to the slot
    slot: Slot
    tree: Tree
    boxes: tuple[tuple[int, int], ...]  # (place among the leaves, number of the captured box)
    leaves: tuple[Any, ...]  # of the value, with None for each box

    def with_boxes(self, values: Any) -> Any:
        """The value with other values for its boxes, by their numbers."""
        leaves = list(self.leaves)
        for place, number in self.boxes:
            leaves[place] = values[number]
        return self.tree.build(leaves)


class Captured:
    """A step as a function of what it captured: `release` its boxes, and `bind` others to run it with."""

    def __init__(self, boxes: Boxes, step: Callable[..., Any], *others: Any) -> None:
        self.step = step
        self.places: list[Place] = []
        self.looks: list[Any] = []  # the code met on the way
        self._boxes: list[Any] = []
        self._rest: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self.sources: list[Source] = []  # private random generators
        self._live, self._plain = boxes, _PLAIN | boxes.plain
        self._read: dict[int, tuple[CellType, Any]] = {}
        self._written: set[int] = set()
        self._seen: set[int] = set()
        self._items = 0
        self._waiting: deque[tuple[Any, str]] = deque()
        if boxes:
            self._waiting.extend((function, "step") for function in (step, *others) if function is not None)
        with _alone():  # else it would find what another thread has bound
            for _ in range(_MOST_VISITS):
                if not self._waiting:
                    break
                self._walk(*self._waiting.popleft())
        self._cells = [pair for number, pair in self._read.items() if number not in self._written]
        del self._seen, self._read, self._written, self._waiting, self._live

    def release(self) -> list[Any]:
        """The boxes, given away: what is left holds none, so that nothing of a trace outlives it."""
        boxes, self._boxes, self._numbers = self._boxes, [], {}
        return boxes

    def bind(self, values: Any) -> AbstractContextManager[Callable[..., Any]]:
        """The step, as long as `values` are in the places of the captured boxes, by their numbers."""
        if self._rest:
            values = {**self._rest, **values}
        return self._bind(values) if self.places or self._cells else nullcontext(self.step)

    @contextmanager
    def _bind(self, values: Any) -> Iterator[Callable[..., Any]]:
        with _alone() if self._moves(values) else nullcontext():
            before: list[tuple[Slot, Any]] = []
            put: list[tuple[Place, Any]] = []
            try:
                for cell, content in self._cells:
                    slot = Cell(cell)
                    now = slot.get()
                    if now is not content:
                        before.append((slot, now))
                        slot.put(content)
                for place in self.places:
                    value, old = place.with_boxes(values), place.slot.get()
                    if value is old:
                        continue
                    put.append((place, value))
                    before.append((place.slot, old))
                    place.slot.put(value)
                yield self.step
            finally:
                rewritten = {id(place.slot) for place, value in put if place.slot.written(value)}
                for slot, value in reversed(before):
                    if id(slot) not in rewritten:
                        slot.put(value)
                if rewritten:  # the step has its own use for these: what it wrote stays
                    self.places = [place for place in self.places if id(place.slot) not in rewritten]

    def _moves(self, values: Any) -> bool:
        """Whether anything is to be put somewhere: where all is in place already, threads need not wait."""
        return any(Cell(cell).get() is not content for cell, content in self._cells) or any(
            place.with_boxes(values) is not place.slot.get() for place in self.places
        )

    def keep(self, numbers: set[int], boxes: list[Any]) -> None:
        """Bind these boxes only, by their numbers among all that were found; what shares a place with one stays."""
        self.places = [place for place in self.places if any(number in numbers for _, number in place.boxes)]
        there = {number for place in self.places for _, number in place.boxes}
        self._rest = {number: boxes[number] for number in there - numbers}

    def _later(self, value: Any, name: str) -> None:
        """Look below a value that is no container, when all that is nearer to the step has been looked at."""
        if id(value) not in self._seen and not isinstance(value, (*_OPAQUE, *self._live.opaque)):
            self._seen.add(id(value))
            self._waiting.append((value, name))

    def _walk(self, value: Any, name: str) -> None:
        """Look for places below a value that is no container."""
        source = private_source(value)
        if source is not None:
            self.sources.append(source)
            return
        self._live.meet(value, name)
        if isinstance(value, FunctionType):
            self._walk_function(value)
        elif isinstance(value, MethodType):
            self._later(value.__func__, name)
            self._later(value.__self__, "self")
        elif isinstance(value, partial):
            self._later(value.func, name)
            self._look((value.args, value.keywords), "partial", PartialArguments(value))
        elif isinstance(value, type):
            self._walk_class(value, name)
        else:
            self._walk_object(value, name)

    def _walk_function(self, function: FunctionType) -> None:
        if not function.__closure__ and is_library(function.__module__ or ""):
            return
        if getattr(function, "_is_autograd_primitive", False) or getattr(function, "_is_primitive", False):
            return
        code = function.__code__
        self.looks.append(code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name in written(code):
                self._written.add(id(cell))
            content = Cell(cell).get()
            if content is EMPTY or id(cell) in self._seen:
                continue
            self._seen.add(id(cell))
            if not self._look(content, name, Cell(cell)):
                self._read[id(cell)] = cell, content
        if function.__defaults__:
            names = code.co_varnames[: code.co_argcount][-len(function.__defaults__) :]
            self._look(function.__defaults__, ", ".join(names), Attribute(function, "__defaults__"))
        self._look_into(function.__kwdefaults__ or {}, "{}")
        space = function.__globals__
        for name in globals_read(code):
            if name in space and not isinstance(space[name], ModuleType):
                self._look(space[name], name, Item(space, name))
        self._later(getattr(function, "__wrapped__", None), "step")

    def _walk_object(self, value: Any, name: str) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._look_into(attributes, f"{name}.{{}}")
        self._walk_class(type(value), name)
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                mangled = f"_{kind.__name__.lstrip('_')}{slot}" if slot[:2] == "__" != slot[-2:] else slot
                held = Attribute(value, mangled)
                if mangled not in ("__dict__", "__weakref__") and held.get() is not EMPTY:
                    self._look(held.get(), f"{name}.{slot}", held)

    def _walk_class(self, value: type, name: str) -> None:
        """Methods close over things too, and attributes of a class may hold them."""
        for kind in value.__mro__:
            if is_library(kind.__module__) or (id(kind) in self._seen and kind is not value):
                continue
            self._seen.add(id(kind))
            for key, held in list(vars(kind).items()):
                function = getattr(held, "__func__", getattr(held, "fget", getattr(held, "func", held)))
                if isinstance(function, FunctionType):
                    self._later(function, name)
                elif not key.startswith("__"):
                    self._look(held, f"{kind.__name__}.{key}", Attribute(kind, key))

    def _look_into(self, space: dict[str, Any], name: str) -> None:
        for key, value in list(space.items()):
            self._look(value, name.format(key), Item(space, key))

    def _look(self, value: Any, name: str, slot: Slot, keys: tuple[Any, ...] = ()) -> bool:
        """Make a place of a slot with boxes in it (True); look further below lists, dicts and what is no container."""
        if type(value) in self._plain:
            return False
        if isinstance(value, list | dict | deque):
            self._look_at_items(value, name, keys)
            return False
        leaves, tree = self._immutable_parts(value)
        boxes = []
        for place, leaf in enumerate(leaves):
            if self._live.has(leaf):
                boxes.append((place, self._number(leaf)))
            elif isinstance(leaf, list | dict | deque):
                self._look_at_items(leaf, name, keys)
            elif type(leaf) not in self._plain:
                self._later(leaf, name + "".join(f"[{key!r}]" for key in keys))
        if boxes:
            kept = list(leaves)
            for place, _ in boxes:
                kept[place] = None
            self.places.append(Place(name, keys, slot, tree, tuple(boxes), tuple(kept)))
        return bool(boxes)

    def _look_at_items(self, value: Any, name: str, keys: tuple[Any, ...]) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        items = list(islice(pairs, _LONG + 1))
        if len(items) > _LONG and all(type(item) in self._plain for _, item in items[:16]):
            return
        items = items[: min(_LONG, _MOST_ITEMS - self._items)]
        self._items += len(items)
        for key, item in items:
            self._look(item, name, Item(value, key), (*keys, key))

    def _immutable_parts(self, value: Any) -> tuple[list[Any], Tree]:
        """What is in tuples and in boxed containers; lists, dicts and others are leaves: they are changed in place."""
        leaves, tree = take_apart(value, only=tuple)
        parts = [take_apart(leaf, self._live.unpack) if self._live.has(leaf) else ([leaf], LEAF) for leaf in leaves]
        return [leaf for found, _ in parts for leaf in found], tree.grafted(iter([below for _, below in parts]))

    def _number(self, box: Any) -> int:
        number = self._numbers.get(id(box))
        if number is None:
            number = self._numbers[id(box)] = len(self._boxes)
            self._boxes.append(box)
        return number


_OPAQUE = (ModuleType, BuiltinFunctionType, CellType, type(None))
_PLAIN = frozenset({int, float, bool, complex, str, bytes, type(None), range})

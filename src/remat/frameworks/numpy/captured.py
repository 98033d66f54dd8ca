"""What a step closes over: autograd's boxes are found there, lifted out, and replaced while the step runs.

A box in a closure is invisible to autograd's primitives, and a step that runs with boxes runs traced. So the places
that hold boxes are found (cells, partials, defaults, attributes of the objects that bound methods and callables
belong to, globals), their boxes become inputs of the loop, and `bind` puts plain arrays or other boxes there while
steps run. Cells that the step only reads get back what they held when the loop was called, so that a lambda in a
Python loop sees its own layer again in the reverse sweep.
"""

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from autograd.tracer import getval

from remat.execute.tree import Tree, take_apart
from remat.frameworks.numpy.leaves import is_boxed, unpack

__all__ = ["Captured", "Place"]

_FOREIGN = ("autograd", "numpy", "scipy", "remat")  # packages whose functions close over no user's boxes
_MOST_VISITS = 2_000  # objects looked into; a box that is not found is an error when the step returns it


@dataclass(frozen=True)
class Place:
    """Somewhere that a value can be put: its name for people, how to get and put the value, and where its boxes are."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]
    tree: Tree
    boxes: tuple[tuple[int, int], ...]  # (place among the leaves, number of the captured box)
    leaves: tuple[Any, ...]  # of the value, with None for each box

    def with_boxes(self, values: list[Any]) -> Any:
        """The value with other values for its boxes."""
        leaves = list(self.leaves)
        for place, number in self.boxes:
            leaves[place] = values[number]
        return self.tree.build(leaves)


class Captured:
    """A step as a function of what it captured: `boxes`, and `bind` to run it with other values for them."""

    def __init__(self, step: Callable[..., Any], *others: Callable[..., Any] | None) -> None:
        self.step = step
        self._places: list[Place] = []
        self._cells: list[tuple[CellType, Any]] = []
        self.boxes: list[Any] = []
        self.names: list[str] = []
        self.looks: list[Any] = []  # shapes, numbers and code met on the way: what the cost of a step depends on
        self._numbers: dict[int, int] = {}
        self._seen: set[int] = set()
        self._visits = 0
        for function in (step, *others):
            if function is not None:
                self._walk(function, "step")
        del self._seen

    def release(self) -> list[Any]:
        """The boxes, given away: what is left holds none, so that nothing of a trace outlives it."""
        boxes, self.boxes = self.boxes, []
        self._numbers = {}
        return boxes

    @property
    def places(self) -> list[Place]:
        """Where boxes were found."""
        return self._places

    @contextmanager
    def bind(self, values: list[Any]) -> Iterator[Callable[..., Any]]:
        """The step, as long as `values` are in the places of the captured boxes."""
        if not self._places and not self._cells:
            yield self.step
            return
        before: list[tuple[Callable[[Any], None], Any]] = []
        try:
            for cell, content in self._cells:
                if cell.cell_contents is not content:
                    before.append((partial(setattr, cell, "cell_contents"), cell.cell_contents))
                    cell.cell_contents = content
            for place in self._places:
                before.append((place.put, place.get()))
                place.put(place.with_boxes(values))
            yield self.step
        finally:
            for put, value in reversed(before):
                put(value)

    def _walk(self, value: Any, name: str) -> None:
        """Look for places below a value that is itself in no place that could be changed."""
        if id(value) in self._seen or self._visits > _MOST_VISITS:
            return
        self._seen.add(id(value))
        self._visits += 1
        if isinstance(value, FunctionType):
            self._walk_function(value)
        elif isinstance(value, MethodType):
            self._walk(value.__func__, name)
            self._walk(value.__self__, "self")
        elif isinstance(value, partial):
            self._walk_partial(value, name)
        elif not isinstance(value, type | ModuleType | BuiltinFunctionType | CellType | np.ndarray | np.generic):
            self._walk_object(value, name)

    def _walk_function(self, function: FunctionType) -> None:
        if (function.__module__ or "").partition(".")[0] in _FOREIGN and not function.__closure__:
            return
        if getattr(function, "_is_autograd_primitive", False) or getattr(function, "_is_primitive", False):
            return
        code = function.__code__
        self.looks.append(code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            content = _content(cell)
            if content is _EMPTY or id(cell) in self._seen:
                continue
            self._seen.add(id(cell))
            get = partial(_content, cell)
            found = self._look(content, name, get, partial(setattr, cell, "cell_contents"))
            if not found and name not in _written(code):
                self._cells.append((cell, content))
        if function.__defaults__:
            names = code.co_varnames[: code.co_argcount][-len(function.__defaults__) :]
            self._look(function.__defaults__, f"defaults of {', '.join(names)}", *_attribute(function, "__defaults__"))
        if function.__kwdefaults__:
            self._look_into(function.__kwdefaults__, "{}")
        space = function.__globals__
        for name in _globals_read(code):
            if name in space and not isinstance(space[name], ModuleType):
                get, put = partial(space.__getitem__, name), partial(space.__setitem__, name)
                self._look(space[name], name, get, put)

    def _walk_partial(self, value: Any, name: str) -> None:
        self._walk(value.func, name)

        def put(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
            value.__setstate__((value.func, *arguments, value.__dict__ or None))

        self._look((value.args, value.keywords), "partial", lambda: (value.args, value.keywords), put)

    def _walk_object(self, value: Any, name: str) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._look_into(attributes, f"{name}.{{}}")
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                    self._look(getattr(value, slot), f"{name}.{slot}", *_attribute(value, slot))
        call = type(value).__dict__.get("__call__")
        if isinstance(call, FunctionType):
            self._walk(call, name)

    def _look_into(self, space: dict[str, Any], name: str) -> None:
        for key, value in list(space.items()):
            self._look(value, name.format(key), partial(space.__getitem__, key), partial(space.__setitem__, key))

    def _look(self, value: Any, name: str, get: Callable[[], Any], put: Callable[[Any], None]) -> bool:
        """Make a place of a value with boxes in it (True), and look further below what is no container."""
        if type(value) in _PLAIN:
            self.looks.append(_look_of(value))
            return False
        leaves, tree = take_apart(value, unpack)
        boxes = []
        for place, leaf in enumerate(leaves):
            self.looks.append(_look_of(leaf))
            if is_boxed(leaf):
                boxes.append((place, self._number(leaf, name)))
            elif type(leaf) not in _PLAIN:
                self._walk(leaf, name)
        if not boxes:
            return False
        kept = tuple(None if is_boxed(leaf) else leaf for leaf in leaves)
        self._places.append(Place(name, get, put, tree, tuple(boxes), kept))
        return True

    def _number(self, box: Any, name: str) -> int:
        number = self._numbers.get(id(box))
        if number is None:
            number = self._numbers[id(box)] = len(self.boxes)
            self.boxes.append(box)
            self.names.append(name)
        return number


_EMPTY = object()
_PLAIN = frozenset({int, float, bool, complex, str, bytes, type(None), np.ndarray, np.float64, np.float32, range})


def _look_of(value: Any) -> Any:
    """What of a value the size of a tape may depend on: shapes and whole numbers."""
    value = getval(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype
    return (type(value), value if type(value) in (int, bool, str) else None)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return _EMPTY


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return partial(getattr, owner, name), partial(object.__setattr__, owner, name)


@lru_cache(maxsize=1024)
def _written(code: CodeType) -> frozenset[str]:
    """Names of the enclosing scope that the code, or code in it, assigns to."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_DEREF", "DELETE_DEREF")}
    inside = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(names.union(*map(_written, inside)))


@lru_cache(maxsize=1024)
def _globals_read(code: CodeType) -> frozenset[str]:
    """Global names that the code, or code in it, reads."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inside = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(names.union(*map(_globals_read, inside)))

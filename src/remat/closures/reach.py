"""What a function and its arguments reach: the containers, variables and generators that code which runs again may use.

The rule. Entered are: dicts, lists, sets, deques, tuples; functions (cells, defaults, the globals that they read),
methods and partials; attributes of objects of the user's own classes, if their name occurs in code that is reached.
Of a variable whose attributes alone are used (`self.block(x)`), only these are entered. Objects of libraries are
entered where they are arguments, or inside of one (key-value caches), and where a framework says so (`take`). So the
search does not get to trainers, loaders and data sets, unless the function names them. User code is never run:
attributes are looked up in `__dict__`, so that `__getattr__` is not called.

What it can miss: attributes that library code alone reads by name from an object of the user's in a closure, attributes
of classes, containers of more than LONG items (which are compared, and not entered), and what comes after MOST objects.

The cost: about 1 us for an object, 3 us for a function; nothing is cached but what belongs to code and to classes.
"""

import random
from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

from remat.closures.bytecode import assigned_globals, assigned_names, attributes_used, global_names, names_in
from remat.closures.references import (
    UNSET,
    CellRef,
    ItemRef,
    Reference,
    attributes_of,
    function_of,
    is_foundation,
    is_library,
    slots_of,
)
from remat.execute.python_state import LONG, Container
from remat.execute.rng_state import ReplayableState, private_rng_state

__all__ = ["Kind", "Reach", "kind_of"]

MOST = 2_000  # functions and objects; what is farther away than that is not used by a step
_PLAIN_OBJECTS = (
    "types",
    "argparse",
    "collections",
)  # SimpleNamespace, Namespace, UserDict: objects as users make them
# Methods that do not run when an object is used.
_NOT_RUN = frozenset({"__init__", "__new__", "__repr__", "__str__", "__init_subclass__", "extra_repr", "__del__"})


class Kind(Enum):
    """What the search does with values of a type."""

    ATOMIC = auto()
    CONTAINER = auto()
    TUPLE = auto()
    FUNCTION = auto()
    METHOD = auto()
    PARTIAL = auto()
    OBJECT = auto()  # of a class of the user's
    LIBRARY = auto()  # an object of a library's class
    GENERATOR = auto()  # of random numbers
    TAKEN = auto()  # by a framework


_kinds: dict[type, Kind] = {}  # of libraries' classes alone: one of the user's is not kept alive here


def kind_of(cls: type) -> Kind:
    """What the search does with values of this type."""
    kind = _kinds.get(cls)
    if kind is None:
        kind = _classified(cls)
        if is_library(cls.__module__):
            _kinds[cls] = kind
    return kind


def _classified(cls: type) -> Kind:
    if cls in (int, float, bool, complex, str, bytes, type(None), range):
        return Kind.ATOMIC
    if issubclass(cls, dict | list | set | deque):
        return Kind.CONTAINER
    if issubclass(cls, tuple | frozenset):
        return Kind.TUPLE
    for types, kind in ((FunctionType, Kind.FUNCTION), (MethodType, Kind.METHOD), (partial, Kind.PARTIAL)):
        if issubclass(cls, types):
            return kind
    if issubclass(cls, type | ModuleType | BuiltinFunctionType | CellType):
        return Kind.ATOMIC
    if issubclass(cls, random.Random) or cls.__module__.startswith("numpy.random"):
        return Kind.GENERATOR
    if cls.__module__ in _PLAIN_OBJECTS or not is_library(cls.__module__):
        return Kind.OBJECT
    # Objects of Python itself, of PyTorch and of NumPy have no state of the user's: files, locks, enums, arrays.
    return Kind.ATOMIC if is_foundation(cls.__module__) else Kind.LIBRARY


class Reach:
    """One search; it refers to what it found, so that it should not outlive the call that it is made for."""

    def __init__(self) -> None:
        self.containers: list[Container] = []
        self.generators: list[ReplayableState] = []
        self._variables: list[tuple[Reference, Any]] = []
        self._cells_written: set[int] = set()
        self._seen: dict[int, Any] = {}  # by id; the objects too, since a bound method lives only as long as this
        self._queue: deque[Any] = deque()  # breadth first, so that what is near is reached
        self._names: set[str] = set()  # in all code that was reached
        self._unnamed: list[tuple[str, Any, Any]] = []  # attributes whose name has not occurred so far, and owners
        self._visits = 0
        self._everything = False  # whether objects of libraries are entered, and all attributes

    def add(self, roots: Iterable[Any], *, everything: bool = False) -> None:
        """Search what these values reach; `everything` is for arguments: all attributes, and objects of libraries."""
        self._everything = everything
        for root in roots:
            self.meet(root)
        self._drain()
        self._everything = False

    @property
    def variables(self) -> list[tuple[Reference, Any]]:
        """Cells and globals that the function reads and does not assign to, and their contents."""
        written = self._cells_written
        return [pair for pair in self._variables if not isinstance(pair[0], CellRef) or id(pair[0].cell) not in written]

    def kind(self, cls: type) -> Kind:
        """What to do with values of a type; a framework overrides it to take its own."""
        return kind_of(cls)

    def take(self, value: Any, owner: Any, key: Any) -> None:
        """Called for a value of a kind that a framework takes; `owner[key]` is where it is, if that is a container."""

    def take_members(self, value: Any, names: Iterable[str]) -> bool:
        """Called for such a value if only these attributes of it are used; False if it must be taken as a whole."""
        return False

    def meet(self, value: Any, owner: Any = None, key: Any = None) -> None:
        """Search a value, which is `owner[key]` if there is an owner."""
        kind = self.kind(type(value))
        if kind is Kind.ATOMIC:
            return
        if kind is Kind.TAKEN:
            self.take(value, owner, key)
        elif kind is Kind.TUPLE:
            for item in value:
                self.meet(item, owner, key)
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            self._queue.append(value)

    def meet_attribute(self, name: str, value: Any, owner: Any, *, named: bool) -> None:
        """Search an attribute; with `named`, only if code that is reached has its name in it."""
        if not named or self._everything or name in self._names:
            self.meet(value, owner, name)
        else:
            self._unnamed.append((name, value, owner))

    def meet_class(self, cls: type) -> None:
        """Search the methods of a class of the user's: the names in their code, what they close over, their globals."""
        for base in cls.__mro__:
            if id(base) not in self._seen and not is_library(base.__module__):
                self._seen[id(base)] = base
                for function in _methods(base):
                    self.meet(function)

    def _drain(self) -> None:
        while self._queue and self._visits < MOST:
            while self._queue and self._visits < MOST:
                self._visits += 1
                self._visit(self._queue.popleft())
            unnamed, self._unnamed = self._unnamed, []
            for name, value, owner in unnamed:
                self.meet_attribute(name, value, owner, named=True)

    def _visit(self, value: Any) -> None:
        kind = self.kind(type(value))
        if kind is Kind.CONTAINER:
            self._visit_container(value)
        elif kind is Kind.FUNCTION:
            self._visit_function(value)
        elif kind is Kind.METHOD:
            self.meet(value.__func__)
            self.meet(value.__self__)
        elif kind is Kind.PARTIAL:
            for part in (value.func, value.args, value.keywords):
                self.meet(part)
        elif kind is Kind.GENERATOR:
            state = private_rng_state(value)
            if state is not None:
                self.generators.append(state)
        elif kind is Kind.OBJECT or self._everything:
            self._visit_object(value)

    def _visit_container(self, container: Container) -> None:
        self.containers.append(container)
        if len(container) <= LONG:
            # The base class's items: those of a subclass may be computed.
            pairs = dict.items(container) if isinstance(container, dict) else enumerate(container)
            for key, item in list(pairs):
                self.meet(item, container, key)
        attributes = attributes_of(container)
        if attributes:
            self._visit_object(container)

    def _visit_object(self, value: Any) -> None:
        named = kind_of(type(value)) is not Kind.LIBRARY
        self.meet_class(type(value))
        attributes = attributes_of(value)
        if attributes is not None:
            self.containers.append(attributes)
            for name, content in list(attributes.items()):
                self.meet_attribute(name, content, attributes, named=named)
        for name, content in slots_of(value):
            self.meet_attribute(name, content, None, named=named)

    def _visit_function(self, function: FunctionType) -> None:
        # A library's function can refer to what is the user's only in a closure, as decorators do.
        if not function.__closure__ and is_library(function.__module__ or ""):
            return
        code = function.__code__
        self._names |= names_in(code)
        used, assigned = attributes_used(code), assigned_names(code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            reference, content = CellRef(cell), CellRef(cell).get()
            if name in assigned:
                self._cells_written.add(id(cell))
            if content is not UNSET and id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                self._meet_variable(reference, content, used.get(name))
        for value in (function.__defaults__, function.__kwdefaults__):
            self.meet(value)
        namespace, rebound = function.__globals__, assigned_globals(code)
        for name in global_names(code):
            value = namespace.get(name, UNSET)
            if isinstance(value, ModuleType):
                self._visit_module(value, used.get(name))
            elif value is not UNSET and name not in rebound and not is_library(function.__module__ or ""):
                self._meet_variable(ItemRef(namespace, name), value, used.get(name))
        self.meet(function.__dict__.get("__wrapped__"))

    def _visit_module(self, module: ModuleType, names: frozenset[str] | None) -> None:
        """Search the attributes of a module of the user's that a function names."""
        if names and not is_library(module.__name__):
            for name in names:
                value = vars(module).get(name, UNSET)
                if value is not UNSET and not isinstance(value, ModuleType):
                    self._meet_variable(ItemRef(vars(module), name), value, None)

    def _meet_variable(self, place: Reference, value: Any, names: frozenset[str] | None) -> None:
        """Search a variable; with `names`, these attributes of its value alone."""
        self._variables.append((place, value))
        kind = self.kind(type(value))
        if not names or kind not in (Kind.OBJECT, Kind.TAKEN) or id(value) in self._seen:
            self.meet(value, place)
            return
        if kind is Kind.TAKEN:
            if not self.take_members(value, names):
                self.meet(value, place)
            return
        attributes = attributes_of(value)
        if attributes is None or not names <= attributes.keys():  # a method, a property: it may use all
            self.meet(value, place)
            return
        self.containers.append(attributes)
        for name in names:
            self.meet(attributes[name], attributes, name)


def _methods(cls: type) -> Iterable[FunctionType]:
    """The functions of a class that run when an object of it is used."""
    for key, member in list(vars(cls).items()):
        function = function_of(member)
        if function is not None and key not in _NOT_RUN:
            yield function

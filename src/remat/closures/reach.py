"""What a function and its arguments reach: the containers, variables and generators that recomputed code may use.

The rule: the search enters dicts, lists, sets, deques and tuples; functions (cells, defaults, the globals that they
read), methods and partials; and those attributes of objects of the user's classes whose name occurs in code that is
reached. If code uses only attributes of a variable (`self.block(x)`), only these are entered. Objects of libraries are
entered if they are arguments or inside one (key-value caches), and where a framework asks for it (`take`). The package
of the function itself is the user's, even if it is installed (libraries.py). So the search does not enter trainers,
loaders and data sets unless the function names them. User code is never run: attributes are looked up in `__dict__`, so
that `__getattr__` is not called.

What it can miss: attributes of a user's object in a closure that only library code reads by name, globals of libraries
(libraries.py), items of containers of more than LONG items that begin with numbers, strings or arrays (tables of data,
which are compared but not entered), and what comes after MOST objects and MOST_ITEMS items.

The cost: about 1 us for an object, 3 us for a function; only facts about code and classes are cached.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

from remat.closures.bytecode import code_names, has_effects, names_not_counting
from remat.closures.cached_results import is_cache, results_of
from remat.closures.kinds import PLAIN_OBJECTS, Kind, kind_of
from remat.closures.libraries import add_users_package, is_library
from remat.closures.references import (
    UNSET,
    AttributeRef,
    CellRef,
    ItemRef,
    PartialRef,
    Place,
    Reference,
    SetRef,
    attributes_of,
    functions_of,
    place_of,
    slots_of,
)
from remat.closures.stored_attributes import class_attributes, declares_fields, set_by_methods, slot_attributes
from remat.execute.python_state import LONG, Container, Variable
from remat.execute.rng_state import ReplayableState, private_rng_state

__all__ = ["Reach"]

MOST = 2_000  # functions and objects; a step does not use what is farther away
MOST_ITEMS = 100_000  # of containers
DEEPEST = 3  # modules in modules: `import lab.models.blocks` and `lab.models.blocks.apply(x)`
_PRIMITIVE = frozenset({"_is_autograd_primitive", "_is_primitive"})  # attributes of functions
# Methods that do not run when an object is used.
_NOT_RUN = frozenset({"__init__", "__new__", "__repr__", "__str__", "__init_subclass__", "extra_repr", "__del__"})

_CONSTRUCTORS = ("__init__", "__new__")  # they run if code that is reached names the class


class Reach:
    """One search; it refers to what it found, so it should not outlive the call that it serves."""

    taken: tuple[type, ...] = ()  # types of values that are passed to `take` instead of being searched

    def __init__(self) -> None:
        self.containers: list[Container] = []
        self.generators: list[ReplayableState] = []
        self.arrays: list[Any] = []  # of NumPy
        self.code: list[CodeType] = []  # of all functions that were reached
        self.caches: list[Any] = []  # functions that cache their results, such as those of functools.lru_cache
        self.results: list[tuple[Any, Container]] = []  # of caches whose functions have effects; also containers
        self.names: set[str] = set()  # in all code that was reached
        self._stored: set[str] = set()  # the attributes that this code sets
        self._variables: list[tuple[Reference, Any]] = []
        self.assigned: dict[Place, Reference] = {}  # variables that are assigned to
        self.rebound: dict[Place, Variable] = {}  # those used other than for counting, and attributes that code sets
        self._seen: dict[int, Any] = {}  # by id; holding the values keeps the ids of bound methods unique
        self._classes: dict[int, type] = {}  # the user's, by id
        self._named_classes: dict[int, set[str]] = {}  # those that code refers to: the attributes that this code sets
        self._setters: dict[int, frozenset[str]] = {}  # the attributes that functions set, by id
        self._sets: frozenset[str] = frozenset()  # those that the function which is being searched sets
        self._slotted: list[Any] = []  # objects with slots
        self._slots: dict[Place, Variable] = {}  # slots that code sets, and that are not replayed
        self._queue: deque[Any] = deque()  # breadth first, so that MOST cuts off what is farthest
        self._unnamed: list[tuple[str, Any, Any]] = []  # attributes whose name has not occurred so far, with owners
        self._visits, self._items = 0, 0
        self._is_judging = False  # whether it only asks what a function does
        self._everything = False  # whether all attributes and objects of libraries are entered

    def add(self, roots: Iterable[Any], *, everything: bool = False) -> None:
        """Search what these values reach; with `everything`, for arguments, all attributes and objects of libraries."""
        self._everything = everything
        roots = list(roots)
        for root in roots:
            if callable(root):
                add_users_package(root)
        for root in roots:
            self.meet(root)
        self._drain()
        if self.assigned:
            self._list_rebound()
        if self._stored:
            self._list_stored()
        self._everything = False

    @property
    def variables(self) -> list[tuple[Reference, Any]]:
        """Cells and globals that functions only read, with their values."""
        if not self.assigned:
            return self._variables
        return [pair for pair in self._variables if place_of(pair[0]) not in self.assigned]

    @property
    def counters(self) -> list[Reference]:
        """Cells and globals that functions use only for counting."""
        return [reference for place, reference in self.assigned.items() if place not in self.rebound]

    @property
    def slots(self) -> list[Variable]:
        """The slots that code sets, and that are not replayed."""
        return [*self._slots.values()]

    def seen(self) -> list[Any]:
        """All values that the search has entered."""
        return [*self._seen.values()]

    def kind(self, cls: type) -> Kind:
        """The kind of values of a type."""
        return Kind.TAKEN if issubclass(cls, self.taken) else kind_of(cls)

    def take(self, value: Any, owner: Any, key: Any) -> None:
        """Called for a value of a `taken` type, which is `owner[key]`, or what `owner` refers to."""

    def attributes(self, value: Any) -> dict[str, Any] | None:
        """The attributes of an object that the search enters."""
        return attributes_of(value)

    def path(self, owner: Any, key: Any) -> tuple[str, tuple[Any, ...]]:
        """The name of a place, for messages: that of a variable, and the keys of nested items from there."""
        return "", ()

    def take_members(self, value: Any, names: Iterable[str]) -> bool:
        """Called for a value of a `taken` type of which only these attributes are used; False to take it as a whole."""
        return False

    def is_data(self, value: Any) -> bool:
        """Whether a value at the start of a long container indicates a table of data."""
        return self.kind(type(value)) in (Kind.ATOMIC, Kind.ARRAY)

    def meet(self, value: Any, owner: Any = None, key: Any = None) -> None:
        """Search a value, which is `owner[key]`, or what `owner` refers to, or inside a tuple there."""
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
        if kind is Kind.CLASS:
            self._named_classes.setdefault(id(value), set()).update(self._sets)

    def meet_attribute(self, name: str, value: Any, owner: Any, *, named: bool) -> None:
        """Search an attribute; with `named`, only once its name occurs in code that is reached."""
        if not named or self._everything or name in self.names:
            self.meet(value, owner, name)
        else:
            self._unnamed.append((name, value, owner))

    def runs(self, cls: type, method: str) -> bool:
        """Whether a method of a class may run when an object of it is used."""
        return method not in _NOT_RUN

    def meet_class(self, cls: type) -> None:
        """Search the methods of a user's class: the names in their code, their closures, their globals."""
        for base in cls.__mro__:
            if id(base) not in self._classes and not is_library(base.__module__):
                self._classes[id(base)] = self._seen[id(base)] = base
                for key, member in list(vars(base).items()):
                    functions = [member] if type(member) is FunctionType else functions_of(member)
                    if not functions and not key.startswith("__"):
                        self.meet_attribute(key, member, AttributeRef(base, key), named=True)
                    elif self.runs(base, key):
                        for function in functions:
                            self.meet(function)

    def meet_constructors(self, cls: type) -> None:
        """Search what runs when code that names a user's class makes an object of it."""
        for base in cls.__mro__:
            for key in _CONSTRUCTORS if id(base) in self._classes else ():
                for function in functions_of(vars(base).get(key)):
                    self.meet(function)

    def _drain(self) -> None:
        while self._queue and self._visits < MOST:
            while self._queue and self._visits < MOST:
                self._visits += 1
                self._visit(self._queue.popleft())
            unnamed, self._unnamed = self._unnamed, []
            for name, value, owner in unnamed:
                self.meet_attribute(name, value, owner, named=True)

    def _list_rebound(self) -> None:
        """Add the variables that are assigned to, and used other than for counting, to the containers."""
        for function in [each for each in self._seen.values() if isinstance(each, FunctionType)]:
            names = names_not_counting(function.__code__)
            cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            places = [(id(cell), "") for name, cell in cells if name in names]
            for place in (*places, *((id(function.__globals__), name) for name in names)):
                if place in self.assigned:
                    self._add_variable(self.assigned[place])

    def _list_stored(self) -> None:
        """Add the attributes that code sets outside a `__dict__` to the containers."""
        classes = self._classes
        named = [(classes[key], names) for key, names in self._named_classes.items() if key in classes]
        new = {id(cls): names | set_by_methods(cls, self._setters) for cls, names in named}
        for reference in class_attributes(self._stored, classes.values(), new):
            self._add_variable(reference)
        for reference in slot_attributes(self._stored, self._slotted):
            if declares_fields(type(reference.owner)):
                self._add_variable(reference)
            else:
                self._slots.setdefault(place_of(reference), Variable(reference))

    def _add_variable(self, reference: Reference) -> None:
        place = place_of(reference)
        if place not in self.rebound:
            self.rebound[place] = Variable(reference)
            self.containers.append(self.rebound[place])

    def _visit(self, value: Any) -> None:
        kind = self.kind(type(value))
        if kind is Kind.CONTAINER:
            self._visit_container(value)
        elif kind is Kind.FUNCTION:
            self._visit_function(value)
            self._sets = frozenset()
        elif kind is Kind.METHOD:
            self.meet(value.__func__)
            self.meet(value.__self__)
        elif kind is Kind.PARTIAL:
            self.meet(value.func)
            place = PartialRef(value)
            self.meet(value.args, place)
            if value.keywords:
                self.meet(value.keywords, place)
        elif kind is Kind.CLASS:
            self.meet_class(value)
            self.meet_class(type(value))  # a metaclass of the user's
            self.meet_constructors(value)
        elif kind is Kind.BUILTIN:
            if kind_of(type(value.__self__)) is Kind.CONTAINER:  # such as losses.append
                self.meet(value.__self__)
        elif kind is Kind.WRAPPER:
            if hasattr(value, "cache_clear"):
                self.caches.append(value)
            if is_cache(value) and not self._is_judging and _does_more(value.__wrapped__):
                found = results_of(value)
                self.results += [(value, results) for results in found]
                self.containers += found
            self.meet((attributes_of(value) or {}).get("__wrapped__"))
        elif kind is Kind.ARRAY:
            self.arrays.append(value)
        elif kind is Kind.GENERATOR:
            state = private_rng_state(value)
            if state is not None:
                self.generators.append(state)
        elif kind is Kind.OBJECT or self._everything:
            self._visit_object(value)

    def _visit_container(self, container: Container) -> None:
        self.containers.append(container)
        # Methods of the base class: a subclass may compute its items.
        items = dict.values(container) if isinstance(container, dict) else container
        if len(container) <= LONG or not all(map(self.is_data, islice(items, 16))):
            pairs = dict.items(container) if isinstance(container, dict) else enumerate(container)
            self._items += len(container)
            owner = SetRef(container) if isinstance(container, set) else container
            for key, item in list(pairs) if self._items <= MOST_ITEMS else ():
                self.meet(item, owner, key)
        attributes = attributes_of(container)
        if attributes:
            self._visit_object(container)

    def _visit_object(self, value: Any) -> None:
        cls = type(value)
        # Code of libraries may use attributes whatever names occur in the user's code.
        named = kind_of(cls) is not Kind.LIBRARY and cls.__module__ not in PLAIN_OBJECTS
        self.meet_class(cls)
        attributes = self.attributes(value)
        if attributes is not None:
            self.containers.append(attributes)
            for name, content in list(attributes.items()):
                self.meet_attribute(name, content, attributes, named=named)
        if any("__slots__" in vars(base) for base in cls.__mro__):
            self._slotted.append(value)
        for name, content in slots_of(value):
            self.meet_attribute(name, content, AttributeRef(value, name), named=named)

    def _visit_function(self, function: FunctionType) -> None:
        # A library's function can refer to the user's values only through a closure, as decorators do.
        if not function.__closure__ and is_library(function.__module__ or ""):
            return
        if not _PRIMITIVE.isdisjoint(function.__dict__):
            return  # a primitive of an AD tool: its closure has none of the user's values
        code = function.__code__
        self.code.append(code)
        names = code_names(code)
        self.names |= names.every
        if names.stored:
            self._stored |= names.stored
            self._setters[id(function)] = self._sets = names.stored
        used, assigned = names.used, names.assigned
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            reference = CellRef(cell, name)
            content = reference.get()
            if name in assigned:
                self.assigned.setdefault((id(cell), ""), reference)
            if isinstance(content, ModuleType):
                self._visit_module(content, used.get(name), code)
            elif content is not UNSET and id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                self._meet_variable(reference, content, used.get(name))
            elif isinstance(content, type):
                self.meet(content)  # this code may set other attributes of the class
        if function.__defaults__:
            self.meet(function.__defaults__, AttributeRef(function, "__defaults__"))
        self.meet(function.__kwdefaults__)
        namespace, rebound = function.__globals__, names.assigned_globals
        for name in rebound:
            self.assigned.setdefault((id(namespace), name), ItemRef(namespace, name))
        for name in names.read_globals:
            value = namespace.get(name, UNSET)
            if isinstance(value, ModuleType):
                self._visit_module(value, used.get(name), code)
            elif value is not UNSET and name in rebound:
                self.meet(value, ItemRef(namespace, name))
            elif value is not UNSET and not is_library(function.__module__ or ""):
                self._meet_variable(ItemRef(namespace, name), value, used.get(name))
        if function.__dict__:
            self.containers.append(function.__dict__)
            for name, content in list(function.__dict__.items()):
                self.meet_attribute(name, content, function.__dict__, named=name != "__wrapped__")

    def _visit_module(self, module: ModuleType, names: Iterable[str] | None, code: CodeType, depth: int = 0) -> None:
        """Search the attributes that a function names of a user's module, and of the modules inside it."""
        if not names or is_library(module.__name__):
            return
        for name in names:
            value = vars(module).get(name, UNSET)
            if not isinstance(value, ModuleType):
                if value is not UNSET:
                    self._meet_variable(ItemRef(vars(module), name), value, None)
            elif depth < DEEPEST:
                self._visit_module(value, code_names(code).every & vars(value).keys(), code, depth + 1)

    def _meet_variable(self, place: Reference, value: Any, names: frozenset[str] | None) -> None:
        """Search a variable; with `names`, only these attributes of its value."""
        self._variables.append((place, value))
        kind = self.kind(type(value))
        if not names or kind not in (Kind.OBJECT, Kind.TAKEN) or id(value) in self._seen:
            self.meet(value, place)
            return
        if kind is Kind.TAKEN:
            if not self.take_members(value, names):
                self.meet(value, place)
            return
        attributes = self.attributes(value)
        if attributes is None or not names <= attributes.keys():  # a method or property may use all attributes
            self.meet(value, place)
            return
        self.containers.append(attributes)
        for name in names:
            self.meet(attributes[name], attributes, name)


def _does_more(function: Any) -> bool:
    """Whether a function may do more than return a result: draw random numbers, write, or change what it reaches."""
    reach = Reach()
    reach._is_judging = True
    reach.meet(function)
    reach._drain()
    has_items = bool(reach.containers)
    return bool(reach.generators or reach.assigned or any(has_effects(code, has_items) for code in reach.code))

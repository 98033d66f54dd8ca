"""Whether tracing a step once, for all its turns, has the effect of running it in every turn.

The rule: it has if everything that the step may call is known to be pure. The search follows the names in its code, and
in that of the user's functions, and of the methods of the user's objects whose names occur in this code. These must not
store attributes, globals or variables of others; compare by `is`, or use the text of anything; handle exceptions; or
use what is neither data, nor pure by its module (`_PURE`) or name (`_PURE_BUILTINS`): iterators, files, the
environment, the clock, and other libraries. Changes of lists, dicts, sets and small NumPy arrays, and random draws, are
noticed when the step is traced, and need no rule here.

Where the turns run one by one, the backward runs them again. So attributes that code sets, of classes, functions and
objects with slots, and context variables are containers that are replayed (`stored`), and objects of Python whose state
cannot be set back, such as iterators, are named (`foreign`).

What it can miss: methods that only libraries call by name; the type of an array (numbers are looked after: `asks`);
state in libraries. The cost: 10 us for each function and object, in each run of a loop.
"""

import builtins
import random
import sys
from collections import deque, namedtuple
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, EnumMeta
from functools import partial
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from remat.closures.libraries import is_foundation, is_library
from remat.closures.references import UNSET, Reference, attributes_of, function_of, slots_of
from remat.closures.stored_attributes import class_attributes, slot_attributes
from remat.execute.python_state import Container, Variable
from remat.source.run_time.code_facts import CONSTRUCTORS, Chain, CodeFacts, facts_of
from remat.source.syntax import words

__all__ = ["Purity"]

# Packages whose functions have no effects, and whose objects do not change.
_PURE = words(
    "jax jaxlib numpy autograd scipy equinox diffrax lineax optimistix optax jaxtyping einops remat ml_dtypes"
)
# Modules of Python of which this is true; functions in them that close over the user's are searched.
_PURE_MODULES = words(
    "builtins math cmath functools _functools dataclasses typing types abc enum numbers fractions decimal collections "
    "collections.abc"
)
_PURE_BUILTINS = words(
    "abs all any bin bool bytes chr classmethod complex dict divmod enumerate filter float frozenset hash hex int iter "
    "len list map max min object oct ord pow property range reversed round set slice sorted staticmethod sum super "
    "tuple zip NotImplemented Ellipsis"
)
_ASKING_BUILTINS = words("callable hasattr isinstance issubclass str type")
_FOREIGN_BUILTINS = words("setattr delattr exec eval compile globals open input breakpoint __import__")
# Modules of Python whose objects have no state that a step reads.
_STATELESS = words(
    "logging warnings threading _thread re pathlib datetime operator _operator uuid string time contextlib weakref "
    "textwrap inspect argparse traceback"
)
_READING = words("read readline readlines readinto getvalue tell seek next")  # what makes a file more than a log
_DATA = (int, float, complex, str, bytes, range, slice, type(None), type(...), type(NotImplemented), np.ndarray)
_NUMPY_DATA = (np.generic, np.dtype, np.ufunc, Enum)
_DESCRIPTORS = (
    ClassMethodDescriptorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
    type(vars(namedtuple("_Named", "field"))["field"]),
)
_CONTAINERS = (dict, list, set, deque, tuple, frozenset)
_BASES = (object, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, BaseException)
# Methods that do not run when an object is used in a step.
_NOT_RUN = words(
    "__init__ __new__ __post_init__ __repr__ __str__ __format__ __init_subclass__ __del__ __setattr__ __delattr__ "
    "__reduce__ __getstate__ __setstate__ __copy__ __deepcopy__ __dir__ __set_name__ __class_getitem__ extra_repr"
)
_MOST = 20_000  # values; what reaches more is not known to be pure
_NOTHING = object()


class Purity:
    """What is known about some functions, and what they reach.

    `effects` are things that a trace would not repeat; `foreign` are those of them that a second run may find changed;
    `stored` are attributes that are set, as containers; `asks` is whether the type of anything is used.
    """

    def __init__(self, functions: Iterable[Any], arrays: tuple[type, ...]) -> None:
        self.effects: set[str] = set()
        self.foreign: set[str] = set()
        self.stored: list[Container] = []
        self.asks = False
        self._files: set[str] = set()
        self._stores: set[str] = set()
        self._data: tuple[type, ...] = (*_DATA, *_NUMPY_DATA, *_DESCRIPTORS, *arrays)
        self._seen: dict[int, Any] = {}
        self._queue: deque[tuple[Any, bool]] = deque()
        self._names: set[str] = set()  # of attributes, in all code
        self._objects: list[Any] = []  # objects, classes and modules of the user's, searched by names
        self._done: set[tuple[int, str]] = set()
        for each in functions:
            self._meet(each)
        self._search()
        self.stored += self._stored_attributes() if self._stores else []
        if self._files and not _READING.isdisjoint(self._names):
            self.foreign |= self._files

    def _search(self) -> None:
        while self._queue:
            while self._queue:
                if len(self._seen) > _MOST:
                    self.effects.add("too much")
                    return
                self._visit(*self._queue.popleft())
            for owner in list(self._objects):
                self._members(owner)

    def _meet(self, value: Any, inside: bool = False) -> None:
        """Search a value; one `inside` of a library's object is not judged unless it is the user's."""
        if not isinstance(value, self._data) and id(value) not in self._seen:
            self._seen[id(value)] = value
            self._queue.append((value, inside))

    def _visit(self, value: Any, inside: bool) -> None:
        if isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, MethodType):
            self._meet(value.__func__)
            self._meet(value.__self__, inside)
        elif isinstance(value, partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._meet(part)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, ModuleType):
            self._module(value)
        elif isinstance(value, BuiltinFunctionType):
            self._builtin(value)
        elif isinstance(value, CellType):
            self._meet(_content(value), inside)
        elif isinstance(value, staticmethod | classmethod | property):
            self._meet(function_of(value))
        else:
            self._object(value, inside)

    def _object(self, value: Any, inside: bool) -> None:
        cls = type(value)
        if isinstance(value, _CONTAINERS):
            # Methods of the base class: a subclass may compute its items.
            for item in (*dict.keys(value), *dict.values(value)) if isinstance(value, dict) else value:
                self._meet(item, inside)
        if cls in _CONTAINERS:
            return
        if isinstance(value, SimpleNamespace) or not _is_library(cls.__module__):
            self._objects += [value, cls]
            self._bases(cls)
        elif isinstance(value, random.Random):  # its draws are replayed
            self.effects.add("random")
        elif isinstance(value, ContextVar):
            self.effects.add(value.name)
            self.stored.append(Variable(_ContextRef(value)))
        elif _is_pure(cls.__module__) and cls.__module__ != "builtins" and not hasattr(cls, "__next__"):
            for _, part in (*(attributes_of(value) or {}).items(), *slots_of(value)):
                self._meet(part, inside=True)
        elif not inside:
            self._unknown(cls)

    def _unknown(self, cls: type) -> None:
        """Note an object of a library that is not known to be pure."""
        self.effects.add(cls.__name__)
        module = cls.__module__.partition(".")[0]
        if module in ("io", "_io"):
            self._files.add(cls.__name__)
        elif is_foundation(module) and module not in _STATELESS:
            self.foreign.add(cls.__name__)

    def _bases(self, cls: type) -> None:
        """Bases must be the user's, pure, or data."""
        for base in cls.__mro__:
            if base not in _BASES and _is_library(base.__module__) and not _is_pure(base.__module__):
                self._unknown(base)

    def _class(self, cls: type) -> None:
        """A class that code mentions may be called, and its objects are used."""
        if cls.__module__ == "builtins":
            self._by_name(cls.__name__, issubclass(cls, BaseException))
        elif not _is_library(cls.__module__):
            self._objects.append(cls)
            self._bases(cls)
            self._meet(None if type(cls) is type else type(cls))
            for base in cls.__mro__:
                for name in (*CONSTRUCTORS, "__new__") if not _is_library(base.__module__) else ():
                    self._member(base, name, vars(base).get(name))
        elif not _is_pure(cls.__module__):
            self.effects.add(cls.__name__)

    def _builtin(self, value: Any) -> None:
        owner = value.__self__
        if owner is builtins:
            self._by_name(value.__name__)
        elif owner is None or isinstance(owner, ModuleType):
            module = value.__module__ or getattr(owner, "__name__", "")
            if not _is_pure(module):
                self.effects.add(value.__name__)
        else:
            self._meet(owner)  # a bound method, such as losses.append

    def _by_name(self, name: str, is_pure: bool = False) -> None:
        """Judge a builtin."""
        self.asks |= name in _ASKING_BUILTINS
        if name == "next":
            self._names.add(name)
        if name not in _PURE_BUILTINS | _ASKING_BUILTINS and not is_pure:
            self.effects.add(name)
        if name in _FOREIGN_BUILTINS:
            self.foreign.add(name)

    def _module(self, module: ModuleType) -> None:
        if not _is_library(module.__name__):
            self._objects.append(module)
        elif not _is_pure(module.__name__):
            self.effects.add(module.__name__)

    def _members(self, owner: Any) -> None:
        """Search the attributes of a user's object, class or module whose names occur in code."""
        if isinstance(owner, type):
            for base in owner.__mro__:
                for name, member in list(vars(base).items()) if not _is_library(base.__module__) else ():
                    if _runs(name, self._names) and not (name.startswith("__") and _is_generated(member)):
                        self._member(base, name, member)
            return
        attributes = vars(owner) if isinstance(owner, ModuleType) else attributes_of(owner) or {}
        for name, value in (*attributes.items(), *slots_of(owner)):
            if name in self._names and (id(owner), name) not in self._done:
                self._done.add((id(owner), name))
                self._meet(value)

    def _member(self, cls: type, name: str, member: Any) -> None:
        if member is None or (id(cls), name) in self._done:
            return
        self._done.add((id(cls), name))
        self._meet(function_of(member) or member)

    def _function(self, function: FunctionType) -> None:
        module = str(function.__globals__.get("__name__"))
        package = module.partition(".")[0]
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._meet(value, inside=package in _PURE)
        if package in _PURE or (_is_library(module) and not (module in _PURE_MODULES and function.__closure__)):
            for cell in function.__closure__ or ():
                self._meet(_content(cell), inside=True)
            self._meet(function.__dict__.get("__wrapped__"), inside=True)
            if not _is_pure(module):
                self.effects.add(module)
            return
        facts = facts_of(function.__code__)
        self._judge(function, facts)
        self._names |= facts.attributes
        chains = [*(("globals", chain) for chain in facts.globals), *(("cells", chain) for chain in facts.cells)]
        for kind, chain in chains:
            value = self._value(function, kind, chain)
            self._meet(value)
            if facts.has_modulo and isinstance(value, str) and "%" in value:
                self.effects.add("text")

    def _judge(self, function: FunctionType, facts: CodeFacts) -> None:
        """Note what a function does by itself."""
        self.effects |= facts.effects
        self.effects |= {name for name in facts.imports if not _is_pure(name)}
        self.asks |= facts.asks
        if facts.has_modulo and facts.texts:
            self.effects.add("text")
        if facts.stores:
            self.effects.add("attribute")
            self._stores |= facts.stores
        for kind, chain in facts.compared:
            if not isinstance(self._value(function, kind, chain), Enum | FunctionType):
                self.effects.add("identity")

    def _value(self, function: FunctionType, kind: str, chain: Chain) -> Any:
        """The value of a chain of names, as far as modules and enums go; what a module has is not run to find it."""
        name, *attributes = chain
        if kind == "cells":
            cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            value = _content(cells[name]) if name in cells else None
        else:
            value = function.__globals__.get(name, vars(builtins).get(name))
        for attribute in attributes:
            if isinstance(value, ModuleType):
                if _is_library(value.__name__) and not _is_pure(value.__name__):
                    self.effects.add(value.__name__)
                value = getattr(value, attribute, None)
            elif isinstance(value, EnumMeta):
                value = getattr(value, attribute, None)
            else:
                break
        return value

    def _stored_attributes(self) -> list[Container]:
        """The attributes that code may set: those in the `__dict__` of an object are containers anyway."""
        found: list[Container] = []
        for each in self._seen.values():
            if isinstance(each, FunctionType) and not _is_library(str(each.__globals__.get("__name__"))):
                found.append(each.__dict__)
        classes = {base for each in self._objects if isinstance(each, type) for base in each.__mro__}
        found += map(Variable, class_attributes(self._stores, classes, dict.fromkeys(map(id, classes), self._stores)))
        found += map(Variable, slot_attributes(self._stores, self._objects))
        return found


@dataclass(frozen=True)
class _ContextRef(Reference):
    """The value of a context variable in this context."""

    variable: ContextVar[Any]

    def get(self) -> Any:
        """The value, or UNSET."""
        return self.variable.get(UNSET)

    def put(self, value: Any) -> None:
        """Set the value; one that had only a default keeps what it has."""
        if value is not UNSET:
            self.variable.set(value)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound
        return None


def _is_library(module: str) -> bool:
    return is_library(module) or module.partition(".")[0] in sys.stdlib_module_names  # some of which have no file


def _is_pure(module: str) -> bool:
    return module.partition(".")[0] in _PURE or module in _PURE_MODULES


def _runs(name: str, names: set[str]) -> bool:
    """Whether a member may run: one that code names, or which operators use, such as `__call__` and `__getitem__`."""
    if not (name.startswith("__") and name.endswith("__")):
        return name in names
    return name not in _NOT_RUN


def _is_generated(member: Any) -> bool:
    """Whether a method was made by `dataclass`, which makes none with an effect, or is not a method."""
    function = function_of(member)
    if function is None:
        return type(member).__module__.partition(".")[0] not in _PURE  # equinox wraps methods
    return function.__code__.co_filename == "<string>"

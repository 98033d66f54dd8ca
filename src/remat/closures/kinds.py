"""Kinds of values, by type: what the search for everything that a function reaches does with a value."""

import random
from collections import deque
from enum import Enum, auto
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType

from remat.closures.libraries import is_always_library, is_foundation, is_library

__all__ = ["PLAIN_OBJECTS", "Kind", "kind_of"]

# Modules of SimpleNamespace, Namespace, UserDict: treated as objects of the user's classes.
PLAIN_OBJECTS = ("types", "argparse", "collections")


class Kind(Enum):
    """What the search does with values of a type."""

    ATOMIC = auto()
    CONTAINER = auto()
    TUPLE = auto()
    FUNCTION = auto()
    METHOD = auto()
    PARTIAL = auto()
    CLASS = auto()
    BUILTIN = auto()  # possibly a method of a container
    WRAPPER = auto()  # around a function, such as those of functools.lru_cache and jax.jit
    OBJECT = auto()  # an object of a user's class
    LIBRARY = auto()  # an object of a library's class
    GENERATOR = auto()  # a random generator
    ARRAY = auto()  # a NumPy array
    TAKEN = auto()  # handled by a framework


_CALLABLES = (
    (FunctionType, Kind.FUNCTION),
    (MethodType, Kind.METHOD),
    (partial, Kind.PARTIAL),
    (type, Kind.CLASS),
    (BuiltinFunctionType, Kind.BUILTIN),
)
_kinds: dict[type, Kind] = {}  # of library classes only: these stay library classes, and no user class is kept alive


def kind_of(cls: type) -> Kind:
    """The kind of values of this type, without those that a framework handles."""
    kind = _kinds.get(cls)
    if kind is None:
        kind = _classified(cls)
        if is_always_library(cls.__module__):
            _kinds[cls] = kind
    return kind


def _classified(cls: type) -> Kind:
    if cls in (int, float, bool, complex, str, bytes, type(None), range):
        return Kind.ATOMIC
    if issubclass(cls, dict | list | set | deque):
        return Kind.CONTAINER
    if issubclass(cls, tuple | frozenset):
        return Kind.TUPLE
    for types, kind in _CALLABLES:
        if issubclass(cls, types):
            return kind
    if issubclass(cls, ModuleType | CellType):
        return Kind.ATOMIC
    if cls.__module__ == "numpy" and cls.__name__ == "ndarray":
        return Kind.ARRAY
    if issubclass(cls, random.Random) or cls.__module__.startswith("numpy.random"):
        return Kind.GENERATOR
    if cls.__module__ in PLAIN_OBJECTS or not is_library(cls.__module__):
        return Kind.OBJECT
    # Objects of Python and of the frameworks hold no user state: files, locks, enums, arrays.
    if is_foundation(cls.__module__):
        return Kind.WRAPPER if any("__call__" in vars(base) for base in cls.__mro__) else Kind.ATOMIC
    return Kind.LIBRARY

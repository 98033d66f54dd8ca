"""References: variables of a user's program that can be read and rebound: cells, items, attributes, partials.

Rebinding changes variables that other threads see, so only one thread at a time may have any rebound (`exclusive`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from threading import RLock
from types import CellType, FunctionType
from typing import Any, TypeAlias

from remat.errors import StepError
from remat.execute.python_state import UNSET

__all__ = [
    "UNSET",
    "AttributeRef",
    "CellRef",
    "Counters",
    "ItemRef",
    "PartialRef",
    "Place",
    "Reference",
    "SetRef",
    "attributes_of",
    "exclusive",
    "function_of",
    "functions_of",
    "place_of",
    "slot_names",
    "slots_of",
]

LOCK_TIMEOUT = 60  # seconds that a thread waits for another
_lock = RLock()


class exclusive:  # used as a function
    """A context that one thread enters at a time, so that it sees variables as the user's program bound them."""

    def __enter__(self) -> None:
        if not _lock.acquire(timeout=LOCK_TIMEOUT):
            raise StepError(
                f"another thread has been running a step for {LOCK_TIMEOUT} seconds, or waits for this one: it has "
                "replaced what that step closes over. Pass such values through init or xs, or run one thread after "
                "the other"
            )

    def __exit__(self, *exception: object) -> None:
        _lock.release()


class Reference(ABC):
    """One variable: a location that refers to a value."""

    @abstractmethod
    def get(self) -> Any:
        """The value, or UNSET."""

    @abstractmethod
    def put(self, value: Any) -> None:
        """Bind the variable to a value, or delete it if that is UNSET."""

    def was_rewritten(self, value: Any) -> bool:
        """Whether the user's code has assigned to the variable since `value` was put."""
        return self.get() is not value

    def parts(self, value: Any) -> Iterable[tuple["Reference", Any]]:
        """The variables that this one consists of, with the values that it binds them to."""
        return ((self, value),)


@dataclass(frozen=True)
class CellRef(Reference):
    """A variable of an enclosing function."""

    cell: CellType
    name: str = ""

    def get(self) -> Any:
        """The content of the cell."""
        try:
            return self.cell.cell_contents
        except ValueError:
            return UNSET

    def put(self, value: Any) -> None:
        """Assign to `cell_contents`, which CPython has allowed since 3.7."""
        if value is UNSET:
            del self.cell.cell_contents
        else:
            self.cell.cell_contents = value


@dataclass(frozen=True)
class ItemRef(Reference):
    """An item of a list or a dict."""

    owner: Any
    key: Any

    def get(self) -> Any:
        """The item."""
        try:
            return self.owner[self.key]
        except LookupError:
            return UNSET

    def put(self, value: Any) -> None:
        """Bind the item."""
        # A step may have shortened the list: then there is no item to bind.
        if value is not UNSET and not (isinstance(self.owner, list) and self.key >= len(self.owner)):
            self.owner[self.key] = value
        elif value is UNSET and isinstance(self.owner, dict):
            self.owner.pop(self.key, None)


@dataclass(frozen=True)
class AttributeRef(Reference):
    """An attribute of an object (also of a frozen dataclass), a class or a function."""

    owner: Any
    name: str

    def get(self) -> Any:
        """The attribute; that of a class itself, not of its bases."""
        if isinstance(self.owner, type):
            return vars(self.owner).get(self.name, UNSET)
        return getattr(self.owner, self.name, UNSET)

    def put(self, value: Any) -> None:
        """Bind the attribute."""
        # The base implementation, since a class may override __setattr__; that of a frozen dataclass raises.
        base = type if isinstance(self.owner, type) else object
        if value is not UNSET:
            base.__setattr__(self.owner, self.name, value)
        elif self.get() is not UNSET:
            base.__delattr__(self.owner, self.name)


@dataclass(frozen=True)
class SetRef(Reference):
    """All items of a set."""

    owner: set[Any]

    def get(self) -> Any:
        """The items, as a frozenset."""
        return frozenset(self.owner)

    def put(self, value: Any) -> None:
        """Replace the items in place."""
        self.owner.clear()
        self.owner.update(value)

    def was_rewritten(self, value: Any) -> bool:
        """Whether the set has other items, compared by identity."""
        return set(map(id, self.owner)) != set(map(id, value))


@dataclass(frozen=True)
class PartialRef(Reference):
    """The arguments of a functools.partial."""

    owner: Any

    def get(self) -> Any:
        """The positional and the keyword arguments."""
        return self.owner.args, self.owner.keywords

    def put(self, value: Any) -> None:
        """Replace the arguments in place; `__setstate__`, meant for pickle, is the only way to do it."""
        self.owner.__setstate__((self.owner.func, *value, self.owner.__dict__ or None))

    def was_rewritten(self, value: Any) -> bool:
        """`partial` arguments are immutable, so the step never overwrites them."""
        return False


Place: TypeAlias = tuple[int, str]  # of a variable: (id of its cell, "") or (id of its namespace or owner, name)


def place_of(reference: Reference) -> Place:
    """The place of a captured variable, a global or an attribute; (0, "") for other references."""
    if isinstance(reference, CellRef):
        return id(reference.cell), ""
    if isinstance(reference, AttributeRef):
        return id(reference.owner), reference.name
    return (id(reference.owner), reference.key) if isinstance(reference, ItemRef) else (0, "")


class Counters:
    """`global` and `nonlocal` variables in which a function counts, as a replayable state (rng_state.py).

    Steps that run only to be measured are not part of the program, so the counters are restored after them. Recomputed
    steps are counted. Other variables that a function assigns to are contents (python_state.Variable).
    """

    def __init__(self, references: Iterable[Reference]) -> None:
        self._references = list(references)

    def version(self, snapshot: list[Any] | None = None) -> list[int]:
        """The identities of the values."""
        return list(map(id, self.get() if snapshot is None else snapshot))

    def get(self) -> list[Any]:
        """The values."""
        return [reference.get() for reference in self._references]

    def set(self, snapshot: list[Any]) -> None:
        """Bind the variables to the values in a snapshot."""
        for reference, value in zip(self._references, snapshot, strict=True):
            if reference.get() is not value:
                reference.put(value)


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The `__dict__` of an object, or None; its `__getattr__`, which may raise, is not called."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def function_of(member: Any) -> FunctionType | None:
    """The function of a class member that is a method, static or class method, or property; else None."""
    return next(iter(functions_of(member)), None)


def functions_of(member: Any) -> list[FunctionType]:
    """The functions of a class member: one of a method, up to three of a property, none of anything else."""
    if isinstance(member, property):
        members: tuple[Any, ...] = (member.fget, member.fset, member.fdel)
    elif isinstance(member, staticmethod | classmethod):
        members = (member.__func__,)
    else:
        members = (member.func if isinstance(member, cached_property) else member,)
    return [each for each in members if isinstance(each, FunctionType)]


def slots_of(value: Any) -> Iterable[tuple[str, Any]]:
    """The names (mangled if private) and values of an object's slots; slots without a value are left out."""
    for name, member in _slots(type(value)):
        try:
            yield name, member.__get__(value)
        except AttributeError:
            continue


def slot_names(cls: type) -> list[str]:
    """The names (mangled if private) of the slots of a class."""
    return [name for name, _ in _slots(cls)]


def _slots(cls: type) -> Iterable[tuple[str, Any]]:
    for base in cls.__mro__:
        for name, member in vars(base).items() if "__slots__" in vars(base) else ():
            if type(member).__name__ == "member_descriptor":
                yield name, member

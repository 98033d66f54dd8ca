"""Slots: somewhere in a user's program that a value can be put, and put back: cells, items, attributes, partials."""

import dis
import sys
import sysconfig
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from types import CellType, CodeType
from typing import Any

__all__ = [
    "UNSET",
    "AttributeRef",
    "CellRef",
    "ItemRef",
    "PartialRef",
    "Reference",
    "assigned_names",
    "global_names",
    "is_library",
]

UNSET = object()  # what an empty slot holds; putting it there empties the slot


class Reference(ABC):
    """A place for one value."""

    @abstractmethod
    def get(self) -> Any:
        """The value, or EMPTY."""

    @abstractmethod
    def put(self, value: Any) -> None:
        """Put a value there, or EMPTY."""

    def was_rewritten(self, value: Any) -> bool:
        """Whether something else is there than the value that was put there."""
        return self.get() is not value


@dataclass(frozen=True)
class CellRef(Reference):
    """A variable of an enclosing function."""

    cell: CellType

    def get(self) -> Any:
        """The content of the cell."""
        try:
            return self.cell.cell_contents
        except ValueError:
            return UNSET

    def put(self, value: Any) -> None:
        """Change the content of the cell."""
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
        """Change the item."""
        if value is not UNSET and not (isinstance(self.owner, list) and self.key >= len(self.owner)):
            self.owner[self.key] = value
        elif value is UNSET and isinstance(self.owner, dict):
            self.owner.pop(self.key, None)


@dataclass(frozen=True)
class AttributeRef(Reference):
    """An attribute of an object, a class or a function; frozen ones too."""

    owner: Any
    name: str

    def get(self) -> Any:
        """The attribute."""
        return getattr(self.owner, self.name, UNSET)

    def put(self, value: Any) -> None:
        """Change the attribute."""
        kind = type if isinstance(self.owner, type) else object
        if value is UNSET:
            kind.__delattr__(self.owner, self.name)
        else:
            kind.__setattr__(self.owner, self.name, value)


@dataclass(frozen=True)
class PartialRef(Reference):
    """The arguments of a functools.partial."""

    owner: Any

    def get(self) -> Any:
        """The positional and the keyword arguments."""
        return self.owner.args, self.owner.keywords

    def put(self, value: Any) -> None:
        """Change the arguments."""
        self.owner.__setstate__((self.owner.func, *value, self.owner.__dict__ or None))

    def was_rewritten(self, value: Any) -> bool:
        """Nobody writes these."""
        return False


@lru_cache(maxsize=4096)
def is_library(module: str) -> bool:
    """Whether a module is installed or built in: then its functions and classes hold no user's boxes."""
    if module.partition(".")[0] in ("builtins", "autograd", "numpy", "remat"):
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" in file or (bool(file) and file.startswith(_STANDARD))


_STANDARD = sysconfig.get_paths()["stdlib"]


@lru_cache(maxsize=1024)
def assigned_names(code: CodeType) -> frozenset[str]:
    """Names of enclosing scopes that the code, or code in it, assigns to."""
    return _names(code, "STORE_DEREF", "DELETE_DEREF").union(*map(assigned_names, _inside(code)))


@lru_cache(maxsize=1024)
def global_names(code: CodeType) -> frozenset[str]:
    """Global names that the code, or code in it, reads."""
    return _names(code, "LOAD_GLOBAL", "LOAD_NAME").union(*map(global_names, _inside(code)))


def _names(code: CodeType, *opnames: str) -> frozenset[str]:
    return frozenset(item.argval for item in dis.get_instructions(code) if item.opname in opnames)


def _inside(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]

"""Slots: somewhere in a user's program that a value can be put, and put back: cells, items, attributes, partials."""

import dis
import sys
import sysconfig
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from types import CellType, CodeType
from typing import Any

__all__ = ["EMPTY", "Attribute", "Cell", "Item", "PartialArguments", "Slot", "globals_read", "is_library", "written"]

EMPTY = object()  # what an empty slot holds; putting it there empties the slot


class Slot(ABC):
    """A place for one value."""

    @abstractmethod
    def get(self) -> Any:
        """The value, or EMPTY."""

    @abstractmethod
    def put(self, value: Any) -> None:
        """Put a value there, or EMPTY."""

    def written(self, value: Any) -> bool:
        """Whether something else is there than the value that was put there."""
        return self.get() is not value


@dataclass(frozen=True)
class Cell(Slot):
    """A variable of an enclosing function."""

    cell: CellType

    def get(self) -> Any:
        """The content of the cell."""
        try:
            return self.cell.cell_contents
        except ValueError:
            return EMPTY

    def put(self, value: Any) -> None:
        """Change the content of the cell."""
        if value is EMPTY:
            del self.cell.cell_contents
        else:
            self.cell.cell_contents = value


@dataclass(frozen=True)
class Item(Slot):
    """An item of a list or a dict."""

    owner: Any
    key: Any

    def get(self) -> Any:
        """The item."""
        try:
            return self.owner[self.key]
        except LookupError:
            return EMPTY

    def put(self, value: Any) -> None:
        """Change the item."""
        if value is not EMPTY and not (isinstance(self.owner, list) and self.key >= len(self.owner)):
            self.owner[self.key] = value
        elif value is EMPTY and isinstance(self.owner, dict):
            self.owner.pop(self.key, None)


@dataclass(frozen=True)
class Attribute(Slot):
    """An attribute of an object, a class or a function; frozen ones too."""

    owner: Any
    name: str

    def get(self) -> Any:
        """The attribute."""
        return getattr(self.owner, self.name, EMPTY)

    def put(self, value: Any) -> None:
        """Change the attribute."""
        kind = type if isinstance(self.owner, type) else object
        if value is EMPTY:
            kind.__delattr__(self.owner, self.name)
        else:
            kind.__setattr__(self.owner, self.name, value)


@dataclass(frozen=True)
class PartialArguments(Slot):
    """The arguments of a functools.partial."""

    owner: Any

    def get(self) -> Any:
        """The positional and the keyword arguments."""
        return self.owner.args, self.owner.keywords

    def put(self, value: Any) -> None:
        """Change the arguments."""
        self.owner.__setstate__((self.owner.func, *value, self.owner.__dict__ or None))

    def written(self, value: Any) -> bool:
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
def written(code: CodeType) -> frozenset[str]:
    """Names of enclosing scopes that the code, or code in it, assigns to."""
    return _names(code, "STORE_DEREF", "DELETE_DEREF").union(*map(written, _inside(code)))


@lru_cache(maxsize=1024)
def globals_read(code: CodeType) -> frozenset[str]:
    """Global names that the code, or code in it, reads."""
    return _names(code, "LOAD_GLOBAL", "LOAD_NAME").union(*map(globals_read, _inside(code)))


def _names(code: CodeType, *opnames: str) -> frozenset[str]:
    return frozenset(item.argval for item in dis.get_instructions(code) if item.opname in opnames)


def _inside(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]

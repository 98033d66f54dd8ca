"""The search for captured values in everything that functions reach, for frameworks that capture by value.

In: functions, and a filter for the values of some types. Out: references to the captured values, with their names. The
search is that of reach.py, and it also enters objects of libraries and all attributes.
"""

from collections.abc import Iterable
from typing import Any

from remat.closures.captures import Captures
from remat.closures.kinds import Kind, kind_of
from remat.closures.reach import Reach
from remat.closures.references import AttributeRef, CellRef, ItemRef, PartialRef, SetRef, exclusive

__all__ = ["ClosureSearch"]


class ClosureSearch(Reach):
    """One search; it refers to the user's values, so it should not outlive the call that it serves."""

    def __init__(self, captures: Captures, taken: tuple[type, ...], functions: Iterable[Any]) -> None:
        super().__init__()
        self.captures, self.taken = captures, taken
        self._places: dict[int, tuple[Any, Any]] = {}  # by id: where a value was found first
        self._objects: dict[int, Any] = {}  # by the id of their `__dict__`
        with exclusive():  # another thread may have rebound variables that this search reads
            self.add((function for function in functions if function is not None), everything=True)

    def is_data(self, value: Any) -> bool:
        """Whether a value is a number, a string or an array that is not captured."""
        kind = self.kind(type(value))
        return kind in (Kind.ATOMIC, Kind.ARRAY) or (kind is Kind.TAKEN and not self.captures.accepts(value))

    def take(self, value: Any, owner: Any, key: Any) -> None:
        """Note the place of a captured value, or a plain array."""
        if self.captures.accepts(value):
            self.captures.add(owner, key)
        elif kind_of(type(value)) is Kind.ARRAY and id(value) not in self._seen:
            self._seen[id(value)] = value
            self.arrays.append(value)

    def meet(self, value: Any, owner: Any = None, key: Any = None) -> None:
        """Search a value, and note the place where it was found first."""
        self._places.setdefault(id(value), (owner, key))
        super().meet(value, owner, key)

    def attributes(self, value: Any) -> dict[str, Any] | None:
        """The attributes of an object that the search enters."""
        attributes = super().attributes(value)
        self._objects[id(attributes)] = value
        return attributes

    def path(self, owner: Any, key: Any) -> tuple[str, tuple[Any, ...]]:
        """The name of a place, for messages: that of a variable, and the keys of nested items from there."""
        if isinstance(owner, CellRef):
            return owner.name, ()
        if isinstance(owner, ItemRef):  # a global
            return str(owner.key), ()
        if isinstance(owner, PartialRef):
            return "partial", ()
        if isinstance(owner, SetRef):
            return self._name_of(owner.owner), ()
        if isinstance(owner, AttributeRef):
            return _attribute(owner, self._name_of(owner.owner)), ()
        if id(owner) in self._objects:
            return f"{self._name_of(self._objects[id(owner)])}.{key}", ()
        around = self._places.get(id(owner), (None, None))
        if around[0] is None:  # keyword-only defaults
            return str(key), ()
        name, keys = self.path(*around)
        return name, (*keys, key)

    def _name_of(self, value: Any) -> str:
        around = self._places.get(id(value), (None, None))
        if around[0] is None:
            return "self"
        name, keys = self.path(*around)
        return name + "".join(f"[{key!r}]" for key in keys)


def _attribute(reference: AttributeRef, owner: str) -> str:
    if isinstance(reference.owner, type):
        return f"{reference.owner.__name__}.{reference.name}"
    if reference.name != "__defaults__":
        return f"{owner}.{reference.name}"
    code, defaults = reference.owner.__code__, reference.owner.__defaults__
    return ", ".join(code.co_varnames[: code.co_argcount][-len(defaults) :])

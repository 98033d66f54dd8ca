"""Placeholders for values that a copy of a container must not keep alive; the values are saved elsewhere, by index.

A value that is still in its place is used as it is: then nothing is written, and other threads see no change. Otherwise
the saved one takes its place. Tuples are rebuilt around the values in them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

__all__ = ["Placeholder", "filled_in", "with_placeholders"]


@dataclass(frozen=True, eq=False, slots=True)
class Placeholder:
    """Stands for the value saved under an index; `original` tells whether the value itself is still in place."""

    index: int
    original: ReferenceType[Any]


@dataclass(frozen=True, eq=False, slots=True)
class _Tuple:
    """Stands for a tuple with placeholders in it."""

    cls: type[tuple[Any, ...]]
    items: tuple[Any, ...]


def with_placeholders(value: Any, index_of: Callable[[Any], int | None]) -> Any:
    """A placeholder for the value if it has an index; in a tuple, placeholders for the items that have one."""
    if isinstance(value, tuple):
        items = tuple(with_placeholders(item, index_of) for item in value)
        return _Tuple(type(value), items) if any(isinstance(item, Placeholder | _Tuple) for item in items) else value
    index = index_of(value)
    return value if index is None else Placeholder(index, ref(value))


def filled_in(value: Any, present: Any, saved: Sequence[Any], copied: Collection[int] = ()) -> Any:
    """The value without placeholders: `present`, the value now in place, if that is the original, else the saved one.

    Originals that were written into since, whose indices are `copied`, are replaced by saved values, too.
    """
    if isinstance(value, Placeholder):
        is_there = present is not None and value.original() is present and value.index not in copied
        return present if is_there else saved[value.index]
    if not isinstance(value, _Tuple):
        return value
    is_tuple = isinstance(present, value.cls) and len(present) == len(value.items)
    there: Any = present if is_tuple else (None,) * len(value.items)
    items = [filled_in(item, now, saved, copied) for item, now in zip(value.items, there, strict=True)]
    if is_tuple and all(item is now for item, now in zip(items, there, strict=True)):
        return present
    return tuple(items) if value.cls is tuple else value.cls(*items)

"""Attributes of the user's classes that a function reaches: methods, flags and counters, as they were at its call.

The rule is that of an object's attributes (python_state.py): a method that is replaced on a class between a forward and
its backward, as by a patch that is active during the forward only, is for the recomputation the one of the call. Only
what differs is exchanged.

What it can miss: classes of libraries, which the search does not enter.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import is_not
from typing import Any

from remat.closures.libraries import is_library
from remat.closures.references import UNSET, AttributeRef

__all__ = ["ClassAttributes"]


class ClassAttributes:
    """The attributes that classes had when this object was made."""

    __slots__ = ("_classes",)

    def __init__(self, found: Iterable[Any]) -> None:
        classes = (each for each in found if isinstance(each, type) and not is_library(each.__module__))
        self._classes = [(each, dict(vars(each))) for each in classes]

    def are_there(self) -> bool:
        """Whether the classes still have these attributes."""
        return not any(map(_differs, self._classes))

    def rewind(self) -> None:
        """Restore the attributes."""
        for cls, then in filter(_differs, self._classes):
            now = vars(cls)
            for name in {**then, **now}:
                value = then.get(name, UNSET)
                if now.get(name, UNSET) is not value:
                    AttributeRef(cls, name).put(value)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A context in which the classes have these attributes; afterwards they have those from before it."""
        before = self if self.are_there() else ClassAttributes(cls for cls, _ in self._classes)
        self.rewind()
        try:
            yield
        finally:
            before.rewind()


def _differs(pair: tuple[type, dict[str, Any]]) -> bool:
    now, then = vars(pair[0]), pair[1]
    return len(now) != len(then) or any(map(is_not, now.values(), then.values()))

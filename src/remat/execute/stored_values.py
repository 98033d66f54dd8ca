"""Values that steps and segments store in lists, dicts and attributes instead of returning them.

The rule: to store a value, for a log, is no error. But what is stored has no gradient, or a part of the true one: the
graph of a recorded step ends where its range begins, and steps without a tape have none. So a value that depends on
what is differentiated is replaced where it is stored, by one with the same numbers whose derivative is an error that
says what to return instead. A framework says which values those are, and makes the replacements.

What it can miss: values in containers that the step does not reach when it is called, in objects with `__slots__`,
other references to a stored value, and values that only steps without a tape have stored. The cost is a copy of the
contents of the containers, and their comparison after the call.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, NoReturn

from remat.errors import StepError
from remat.execute.python_state import Container, Contents
from remat.pytree import LEAF, flatten

__all__ = ["StoredValues", "raise_stored"]


class StoredValues:
    """What containers have got since these contents were taken."""

    def __init__(self, before: Contents) -> None:
        self._added = before.added()

    def groups(self) -> list[list[Any]]:
        """The leaves that are new: of a list all are of one kind, of a dict (and of attributes) each by itself."""
        groups = [
            group
            for container, items in self._added
            for group in (zip(items) if isinstance(container, dict) else [items])
        ]
        return [flatten(group)[0] for group in groups]

    def replace(self, replacements: Mapping[int, Any]) -> None:
        """Put others into the places of the leaves with these ids."""
        for container, items in self._added if replacements else ():
            _replace(container, replacements, {id(item) for item in items})


def raise_stored(*args: object) -> NoReturn:
    """Raise the StepError for a stored value that is differentiated."""
    raise StepError(
        "a value that a step or segment stored in a list, a dict, an attribute, a variable or a tensor of the caller's "
        "is differentiated, and its gradient would be lost: only what is returned has it. Return it from the step as "
        "y: scan gives the y of all steps, stacked, to be summed up; from a segment return it as one of its results"
    )


def _replace(container: Container, replacements: Mapping[int, Any], items: set[int] | None = None) -> None:
    """Put the replacements of leaves into a container, or into those of its items that have these ids."""
    if isinstance(container, set):
        for item in [item for item in container if id(item) in replacements]:
            container.remove(item)
            container.add(replacements[id(item)])
        return
    for key, item in [*(container.items() if isinstance(container, dict) else enumerate(container))]:
        new = _replaced(item, replacements) if items is None or id(item) in items else item
        if new is not item:
            container[key] = new


def _replaced(value: Any, replacements: Mapping[int, Any]) -> Any:
    """A value with the replacements of leaves; only tuples are made anew, since others may refer to the rest."""
    if id(value) in replacements:
        return replacements[id(value)]
    contents = vars(value) if is_dataclass(value) and hasattr(value, "__dict__") else value
    if isinstance(contents, dict | list | deque):
        _replace(contents, replacements)
        return value
    leaves, tree = flatten(value, only=tuple)
    new = leaves if tree is LEAF else [_replaced(leaf, replacements) for leaf in leaves]
    return value if all(a is b for a, b in zip(leaves, new, strict=True)) else tree.unflatten(new)

"""Values that steps and segments store in lists, dicts and attributes instead of returning them.

The rule: storing a value, as in a log, is allowed. But a stored value has no gradient, or only part of the true one:
the graph of a recorded step ends where its range begins, and steps without a tape have no graph. So a stored value
that depends on a differentiated one is replaced, where it is stored, by one with the same numbers whose derivative
raises an error that says what to return instead. The framework decides which values those are, and makes the
replacements.

What it can miss: values in containers that the step does not reach when it is called, in objects with `__slots__`,
other references to a stored value, and values that only steps without a tape have stored. The cost: the containers'
contents are copied before the call and compared after it.
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
    """The values added to containers since the contents `before` were taken."""

    def __init__(self, before: Contents) -> None:
        self._added = before.added()

    def groups(self) -> list[list[Any]]:
        """The new leaves in groups of one kind: a list is one group, each value of a dict (or attribute) is its own."""
        groups = [
            group
            for container, items in self._added
            for group in (zip(items) if isinstance(container, dict) else [items])
        ]
        return [flatten(group)[0] for group in groups]

    def replace(self, replacements: Mapping[int, Any]) -> None:
        """Replace the leaves whose ids are in `replacements`."""
        for container, items in self._added if replacements else ():
            _replace(container, replacements, {id(item) for item in items})


def raise_stored(place: str) -> NoReturn:
    """Raise the StepError for a stored value that is differentiated; `place` is that of the loop or segment."""
    message = (
        "a value that a step or segment stored in a list, a dict, an attribute, a variable or a tensor of the caller's "
        "is differentiated, and its gradient would be lost: only returned values have one. Return it from the step as "
        "y (scan returns the y of all steps, stacked), or from the segment as one of its results"
    )
    raise StepError(f"{place}: {message}" if place else message)


def _replace(container: Container, replacements: Mapping[int, Any], items: set[int] | None = None) -> None:
    """Replace leaves in a container, or only in its items with these ids."""
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
    """The value with its leaves replaced: in place, except for tuples, since others may refer to its containers."""
    if id(value) in replacements:
        return replacements[id(value)]
    contents = vars(value) if is_dataclass(value) and hasattr(value, "__dict__") else value
    if isinstance(contents, dict | list | deque):
        _replace(contents, replacements)
        return value
    leaves, tree = flatten(value, only=tuple)
    new = leaves if tree is LEAF else [_replaced(leaf, replacements) for leaf in leaves]
    return value if all(a is b for a, b in zip(leaves, new, strict=True)) else tree.unflatten(new)

"""Containers among a segment's arguments that the segment also reaches in another way.

The rule: a dict or a list that is passed twice, or that is passed and also closed over, is one object in the
recomputation too, so that what is written through one reference is read through the other. All other containers are
rebuilt from the saved tensors, since holding the caller's own would keep their contents alive.

What it can miss: containers inside tuples, dataclasses and other objects. The cost: one visit to each container.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

__all__ = ["SharedContainers"]


class SharedContainers:
    """The places of shared containers in the arguments, given by keys from the outside in."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._found = [pair for at, argument in enumerate(arguments) for pair in _containers(argument, (at,))]
        self._places: list[tuple[tuple[Any, ...], Any]] = []  # with the container, or the place where it occurs first

    def restrict_to(self, known: Callable[[], Collection[int]]) -> None:
        """Keep the containers with these ids, which others keep alive, and the places of containers passed twice."""
        if not self._found:
            return
        first, ids = dict[int, tuple[Any, ...]](), known()
        for place, container in self._found:
            if id(container) in ids:
                self._places.append((place, _Itself(container)))
            elif id(container) in first:
                self._places.append((place, first[id(container)]))
            first.setdefault(id(container), place)
        self._found = []

    def put_into(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The rebuilt arguments, with the shared containers in their places."""
        if not self._places:
            return args, kwargs
        everything = [list(args), kwargs]
        for place, what in self._places:
            container = what.container if isinstance(what, _Itself) else _at(everything, what)
            _at(everything, place[:-1])[place[-1]] = container
        return everything[0], everything[1]


class _Itself:
    """One of the caller's containers."""

    def __init__(self, container: Any) -> None:
        self.container = container


def _containers(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The dicts and lists inside a container, each with its place, outer ones before inner ones."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if type(item) in (dict, list):
            yield (*place, key), item
            yield from _containers(item, (*place, key))


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value

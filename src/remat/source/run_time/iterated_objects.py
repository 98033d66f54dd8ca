"""The objects that a loop iterates over must not change while it runs, since a step may take an item ahead of time.

The rule: when a loop starts, a variable whose items it assigns, or that it changes by `+=`, must not be the object that
it iterates over, nor share its memory: assignments in a loop make a new object, and the loop would go on with the old
one. Between runs of turns, lists, dicts, sets and deques must have the same items as before, tensors the same version,
and arrays of NumPy the same bytes. What it can miss: changes inside an item. The cost: one comparison of the items per
run of turns, and for arrays of NumPy a checksum.
"""

import gc
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import is_not
from typing import Any

import numpy as np

from remat.frameworks import Framework
from remat.source.loop_info import LoopInfo
from remat.source.run_time.items import Combined

__all__ = ["Iterated", "own_object"]

_VIEWS: tuple[type, ...] = type({}.keys()), type({}.values()), type({}.items())
_ITERATORS: tuple[type, ...] = type(iter([])), type(reversed([]))  # these give their list; those of a dict do not


def own_object(info: LoopInfo, values: Sequence[Any], iterable: Any, framework: Framework) -> str | None:
    """The name of a variable that the loop changes, and that is or shares memory with what it iterates over."""
    if not info.changed:
        return None
    parts = [part for part, _ in _parts(iterable)]
    arrays = [leaf for part in parts for leaf in (part if isinstance(part, list | tuple) else [part])]
    arrays = [leaf for leaf in arrays if hasattr(leaf, "shape")]
    for name, value in zip(info.carry, values, strict=True):
        if name not in info.changed:
            continue
        is_it = any(value is part for part in parts)
        if name in info.own_items:
            is_it = value is iterable and not isinstance(value, dict)
        elif hasattr(value, "shape"):
            is_it = is_it or any(framework.shares_memory(value, leaf) for leaf in arrays)
        if is_it:
            return name
    return None


def _parts(iterable: Any) -> Iterator[tuple[Any, bool]]:
    """The objects from which an iterable takes its items; of a dict, whether it takes values, too."""
    if isinstance(iterable, Combined):
        for part in iterable.arguments:
            yield from _parts(part)
    elif isinstance(iterable, _VIEWS):
        yield gc.get_referents(iterable)[0], True  # the dict itself; `mapping` is only a proxy of it
    elif type(iterable) in _ITERATORS:
        yield iterable.__reduce__()[1][0], True
    elif type(iterable) in (zip, enumerate):
        for part in iterable.__reduce__()[1]:
            yield from _parts(part)
    else:
        yield iterable, False


class Iterated:
    """The items of what a loop iterates over, when it starts."""

    __slots__ = ("_before",)

    def __init__(self, iterable: Any) -> None:
        found = [(part, _how(part, values)) for part, values in _parts(iterable)]
        self._before = [(part, how, how(part)) for part, how in found if how is not None]

    def has_changed(self) -> bool:
        """Whether an object has other items now."""
        return any(_differ(before, how(part)) for part, how, before in self._before)


def _how(part: Any, values: bool) -> Callable[[Any], Any] | None:
    """How to see whether an object has changed; None if it cannot change, or is not known."""
    if isinstance(part, dict) and values:
        return lambda items: [*items.keys(), *items.values()]
    if isinstance(part, list | dict | set | deque):
        return list
    if isinstance(part, np.ndarray) and part.dtype.kind != "O":
        return lambda array: zlib.crc32(np.ascontiguousarray(array).data)
    return (lambda tensor: tensor._version) if hasattr(part, "_version") and hasattr(part, "requires_grad") else None


def _differ(before: Any, now: Any) -> bool:
    if not isinstance(before, list):
        return bool(before != now)
    return len(before) != len(now) or any(map(is_not, before, now))

"""The objects to which a value leads: through containers, functions and, if asked for, attributes.

What it can miss: objects with slots, and what is beyond the first MOST objects.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

__all__ = ["NUMBERS", "other_items", "reached", "values_of"]

MOST = 1_000  # objects to look at, for one value
NUMBERS = (int, float, complex, str, bytes, type(None), np.generic)  # they lead nowhere, and cannot be changed
_CONTAINERS = (list, tuple, set, frozenset, deque)
_EMPTY = CellType()  # equal to every cell without a value


def values_of(frame: FrameType, names: Sequence[str]) -> dict[str, Any]:
    """The values of these variables of a running function, as far as they have one."""
    local = frame.f_locals
    values = {name: local[name] for name in names if name in local and not isinstance(local[name], NUMBERS)}
    if isinstance(local, dict):  # before Python 3.13, a copy that the frame would hold
        local.clear()
    return values


def other_items(container: Any, place: Any) -> list[Any]:
    """The items of a list or dict without the one at this place."""
    if isinstance(container, dict):
        return [item for key, item in container.items() if key != place]
    return [item for k, item in enumerate(container) if k != place % len(container)]


def reached(value: Any, name: str, attributes: bool) -> Iterator[Any]:
    """The objects to which a value leads; not through closures over `name`, which see what it is bound to."""
    stack, seen = [value], {id(value)}
    while stack and len(seen) < MOST:
        found = stack.pop()
        yield found
        for part in _parts(found, name, attributes):
            if not isinstance(part, NUMBERS) and id(part) not in seen:
                seen.add(id(part))
                stack.append(part)


def _parts(value: Any, name: str, attributes: bool) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, _CONTAINERS):
        yield from value
    elif isinstance(value, FunctionType):
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if variable != name and cell != _EMPTY:
                yield cell.cell_contents
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif attributes and hasattr(value, "__dict__") and not isinstance(value, type | ModuleType):
        yield from vars(value).values()

"""Two names for one object that a loop changes in place: the objects themselves are compared when it runs.

Plain Python changes an array, a list or a dict in place; a rewritten loop makes a new one, and rebinds one name. So
whatever else leads to the old object, and may be read later, would not see the change.

The rule: when a loop starts, and when it replaces an object, the values of the names that may be read later
(`data_flow/liveness.py`) are searched for the old object, or for an array that shares memory with it. If one leads
there, that is a SourceError.

What it can miss: what `reached_objects.py` does not find. When an object is replaced, attributes of objects are not
searched. The cost: none for loops that change nothing in place; otherwise a search of the names that
may be read later, for each change in a first run.
"""

import linecache
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from remat.errors import SourceError
from remat.frameworks import Framework, find_framework
from remat.source.loop_info import LoopInfo
from remat.source.run_time.given_arrays import is_changed
from remat.source.run_time.reached_objects import NUMBERS, other_items, reached, values_of

__all__ = ["check_separate", "holder_of"]


def check_separate(info: LoopInfo, frame: FrameType, objects: Mapping[str, Any], framework: Framework) -> None:
    """Refuse a loop if something that is read in it or after it leads to an object that it changes in place.

    `objects` are its carried variables and its outputs.
    """
    lines = dict(info.changed) | dict.fromkeys(info.lists, info.line)
    if not lines:
        return
    changed = {name: objects[name] for name in lines}
    values = values_of(frame, info.readable)
    for name, value in changed.items():
        if name not in info.put and name not in info.arrays and not _is_augmented_in_place(value):
            continue
        others = {other: value for other, value in values.items() if other != name}
        for old, rest in _objects(value, name, [place for own, place in info.items if own == name]):
            holder = holder_of(old, others | rest, framework, name, attributes=True)
            if holder is not None:
                _refuse(info, lines[name], name, holder)
    for name, other, line in info.augmented:
        if name in changed and _is_augmented_in_place(changed[name]):
            _refuse(info, line, name, other)


def _objects(value: Any, name: str, places: Collection[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The changed objects, also items at these places, each with what else leads to it through the changed name."""
    yield value, {}
    if places and isinstance(value, list | dict):
        for place, item in [*(value.items() if isinstance(value, dict) else enumerate(value))]:
            if is_changed(item) and (None in places or place in places):
                yield item, {name: other_items(value, place)}


def _is_augmented_in_place(value: Any) -> bool:
    """Whether `+=` changes the object: traced arrays and numbers are rebound."""
    return is_changed(value) or isinstance(value, list | dict | set | bytearray | deque)


def holder_of(
    old: Any, values: Mapping[str, Any], framework: Framework | None, name: str, *, attributes: bool = False
) -> str | None:
    """The name that leads to `old`, the object of `name`, or to memory that it shares; None if there is none."""
    if not values or isinstance(old, NUMBERS):
        return None
    if hasattr(old, "shape"):
        framework = framework or find_framework(old)
        kind = np.ndarray if isinstance(old, np.ndarray) else type(old)
        shares = np.may_share_memory if kind is np.ndarray else framework.shares_memory
    for other, value in values.items():
        for found in reached(value, name, attributes):
            if found is old or (hasattr(old, "shape") and isinstance(found, kind) and shares(found, old)):
                return other
    return None


def _refuse(info: LoopInfo, line: int, name: str, other: str) -> NoReturn:
    code = linecache.getline(info.file, line).strip() or info.code
    what = f"{other}, which is read in it or after it, is or holds the same object"
    if name == other:
        what = "two of its items are one object, or share memory"
    raise SourceError(
        f"{info.file}, line {line}: the loop changes {name} in place, and {what}\n    {code}\nMake a copy before the "
        f"loop, as {name}.copy() or {name}.clone() does, or a new object in the loop, as in {name} = {name} + ….",
        info.file, line, info.column, code,
    )  # fmt: skip

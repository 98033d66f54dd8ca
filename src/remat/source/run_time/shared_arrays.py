"""Two variables for one array that is changed in place: checked when a loop starts.

The rule: a loop is refused if it changes an array in place that shares memory with another carried or captured
variable. The cost: none for loops that change nothing in place; otherwise a comparison of addresses.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from remat.errors import SourceError
from remat.frameworks import Framework
from remat.pytree import flatten
from remat.source.loop_info import LoopInfo
from remat.source.run_time.given_arrays import is_changed

__all__ = ["check_separate"]

_CONTAINERS = (list, dict, set, bytearray, deque)


def check_separate(info: LoopInfo, values: Sequence[Any], step: Callable[..., Any], framework: Framework) -> None:
    """Refuse a loop that changes an array in place if another of its variables shares its memory."""
    if not (info.put or info.augmented):
        return
    by_name = dict(zip(info.carry, values, strict=True))
    for cell, name in zip(step.__closure__ or (), step.__code__.co_freevars, strict=True):
        if name in info.captured:
            by_name[name] = cell.cell_contents
    leaves = {name: flatten(value, framework.unpack)[0] for name, value in by_name.items()}
    for name in info.put:
        for other, others in leaves.items():
            if other != name and any(framework.shares_memory(a, b) for a in leaves[name] for b in others):
                _refuse(info, info.line, name, other)
    for name, other, line in info.augmented:
        # Traced arrays and numbers are rebound by `+=`; plain arrays, tensors, lists, dicts and sets are changed.
        if name in by_name and (isinstance(by_name[name], _CONTAINERS) or any(map(is_changed, leaves[name]))):
            _refuse(info, line, name, other)


def _refuse(info: LoopInfo, line: int, name: str, other: str) -> None:
    raise SourceError(
        f"{info.file}, line {line}: {name} and {other} may be one array, which the loop changes in place\n"
        f"    {info.code}\nCopy one of them before the loop: {other} = {name}.copy(), or write {name} = {name} + ….",
        info.file, line, info.column, info.code,
    )  # fmt: skip

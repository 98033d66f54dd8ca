"""Two variables for one array, where one is changed in place: looked for when a loop starts.

The rule: an array that the loop changes in place, and that shares memory with another carried or captured variable, is
refused. The cost: none for loops that change nothing in place; else a comparison of addresses.
"""

from collections.abc import Callable, Sequence
from typing import Any

from remat.errors import SourceError
from remat.frameworks import Framework
from remat.pytree import flatten
from remat.source.loop_info import LoopInfo

__all__ = ["check_separate"]


def check_separate(info: LoopInfo, values: Sequence[Any], step: Callable[..., Any], framework: Framework) -> None:
    """Refuse a loop that changes an array in place which another of its variables sees."""
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
        # Traced arrays and numbers are rebound by `+=`; plain arrays and tensors are changed.
        if any(_is_changed(leaf) for leaf in leaves.get(name, ())):
            _refuse(info, line, name, other)


def _is_changed(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "__setitem__") and not type(leaf).__name__.endswith("Box")


def _refuse(info: LoopInfo, line: int, name: str, other: str) -> None:
    raise SourceError(
        f"{info.file}, line {line}: {name} and {other} may be one array, which the loop changes in place\n"
        f"    {info.code}\nCopy one of them before the loop: {other} = {name}.copy(), or write {name} = {name} + ….",
        info.file, line, info.column, info.code,
    )  # fmt: skip

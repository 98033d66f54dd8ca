"""Arrays that a function was given, and that its loops change in place: the caller sees the change.

The rule: steps make new arrays of what they change. So an array that shares memory with an argument of the function is
copied before the turns that a framework runs, and after them gets what they have left; a tensor then has their
gradient, as in a plain loop. An array of NumPy cannot hold what autograd or JAX record: that is a SourceError. A tensor
that is a leaf with a gradient stays as it is, since PyTorch lets nobody write into it.

What it can miss: arrays reached through attributes of objects, or through closures and globals. The cost: weak
references to the arrays among the arguments, in functions that change something in place, and for an array of the
caller's one copy of it before the turns and one after them.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from remat.errors import SourceError
from remat.frameworks import find_framework
from remat.pytree import flatten
from remat.source.loop_info import LoopInfo

__all__ = ["NOTHING_GIVEN", "GivenArrays", "write_back"]


class GivenArrays:
    """The arrays among the arguments of one call of a function."""

    __slots__ = ("arrays",)

    def __init__(self, *arguments: Any) -> None:
        self.arrays = [weakref.ref(leaf) for leaf in flatten(arguments)[0] if _is_changed(leaf)]

    def holds(self, value: Any) -> bool:
        """Whether `value` is an array that the caller sees, and that may be written into."""
        if not self.arrays or not _is_changed(value):
            return False
        # Under JAX's transformations arrays of NumPy are JAX's to find_framework, and share nothing there.
        shares = np.may_share_memory if isinstance(value, np.ndarray) else find_framework(value).shares_memory
        given = [array for ref in self.arrays if (array := ref()) is not None and type(array) is type(value)]
        return _may_be_written(value) and any(shares(array, value) for array in given)

    def copied(self, info: LoopInfo, values: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
        """The values of the carried names with copies of the caller's arrays, and these by their place."""
        theirs = {k: v for k, v in enumerate(values) if info.carry[k] in info.changed and self.holds(v)}
        return [_copy(v) if k in theirs else v for k, v in enumerate(values)], theirs


NOTHING_GIVEN = GivenArrays()


def write_back(info: LoopInfo, name: str, array: Any, after: Any) -> Any:
    """The caller's array, which holds now what turns have left in its copy."""
    if after is array:
        return array
    if not isinstance(array, np.ndarray):
        array.copy_(after)
    elif isinstance(after, np.ndarray | np.generic | float | int | complex):
        array[...] = after
    else:
        raise SourceError(
            f"{info.where}: the loop changes {name} in place, an array of NumPy that the function was given, which "
            f"cannot hold values that are differentiated\n    {info.code}\n"
            f"Copy it before the loop, as in {name} = {name} + 0.0, and return it if the caller needs it.",
            info.file, info.line, info.column, info.code,
        )  # fmt: skip
    return array


def _is_changed(value: Any) -> bool:
    """Whether `+=` and item assignment change an object of this type in place, and not only rebind a name."""
    return isinstance(value, np.ndarray) or (hasattr(value, "requires_grad") and hasattr(value, "copy_"))


def _may_be_written(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.flags.writeable)
    return not (value.requires_grad and value.is_leaf and find_framework(value).is_differentiating())


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value.clone()

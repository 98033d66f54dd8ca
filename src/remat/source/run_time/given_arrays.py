"""Arrays from outside of a function that its loops change in place: the caller must see the change.

The rule: steps replace the arrays that they change. So an array that shares memory with one to which an argument, a
global or a closure of the function leads is copied before the turns that a framework runs, and their result is written
back into it afterwards; a tensor then has their gradient, as in a plain loop. A NumPy array cannot hold values that
autograd or JAX record: that is a SourceError. A leaf tensor that requires a gradient is left alone, since PyTorch does
not allow writing into it.

What it can miss: what `reached_objects.py` does not find. The cost: in functions that change something in place, a
search and weak references to these arrays, and for each changed array one copy before the turns and one after them.
"""

import sys
import weakref
from collections.abc import Sequence
from types import BuiltinFunctionType, ModuleType
from typing import Any

import numpy as np

from remat.errors import SourceError
from remat.frameworks import find_framework
from remat.source.loop_info import LoopInfo
from remat.source.run_time.reached_objects import reached, values_of

__all__ = ["NOTHING_GIVEN", "GivenArrays", "is_changed", "write_back"]


class GivenArrays:
    """The arrays to which the arguments of one call of a function, its globals and its closures lead."""

    __slots__ = ("arrays",)

    def __init__(self, *arguments: Any) -> None:
        found = {id(part): part for value in arguments for part in reached(value, "", attributes=True)}
        self.arrays = [weakref.ref(part) for part in found.values() if is_changed(part)]

    @classmethod
    def of_call(cls, *arguments: Any) -> "GivenArrays":
        """Those of the call of the rewritten function that calls this, with these arguments."""
        frame = sys._getframe(1)
        outside = values_of(frame, frame.f_code.co_freevars)
        named = (frame.f_globals.get(name) for name in frame.f_code.co_names)
        return cls(*arguments, *outside.values(), *(value for value in named if not _is_code(value)))

    def holds(self, value: Any) -> bool:
        """Whether the caller sees writes into `value`, an array that may be written into."""
        if not self.arrays or not is_changed(value):
            return False
        # Under JAX's transformations, find_framework takes NumPy arrays for JAX's, which share no memory.
        shares = np.may_share_memory if isinstance(value, np.ndarray) else find_framework(value).shares_memory
        given = [array for ref in self.arrays if (array := ref()) is not None and type(array) is type(value)]
        return _may_be_written(value) and any(shares(array, value) for array in given)

    def copied(self, info: LoopInfo, values: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
        """The values of the carried names, with copies of the caller's arrays; and these arrays by place."""
        theirs = {k: v for k, v in enumerate(values) if info.carry[k] in info.changed and self.holds(v)}
        return [_copy(v) if k in theirs else v for k, v in enumerate(values)], theirs


NOTHING_GIVEN = GivenArrays()


def write_back(info: LoopInfo, name: str, array: Any, after: Any) -> Any:
    """Write the turns' result into the caller's array, and return that array."""
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


def is_changed(value: Any) -> bool:
    """Whether `+=` and item assignment change this object in place, instead of rebinding a name."""
    return isinstance(value, np.ndarray) or (hasattr(value, "requires_grad") and hasattr(value, "copy_"))


def _is_code(value: Any) -> bool:
    return isinstance(value, type | ModuleType | BuiltinFunctionType)


def _may_be_written(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.flags.writeable)
    return not (value.requires_grad and value.is_leaf and find_framework(value).is_differentiating())


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value.clone()

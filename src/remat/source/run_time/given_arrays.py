"""Arguments of a function that its loops change in place: the caller must see the change.

The rule: steps replace the arrays that they change. So an array that shares memory with an argument of the function is
copied before the turns that a framework runs, and their result is written back into it afterwards; a tensor then has
their gradient, as in a plain loop. A NumPy array cannot hold values that autograd or JAX record: that is a SourceError.
A leaf tensor that requires a gradient is left alone, since PyTorch does not allow writing into it.

What it can miss: arrays reached through attributes of objects, or through closures and globals. The cost: in functions
that change something in place, weak references to the arrays among the arguments, and for each changed array one copy
before the turns and one after them.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from remat.errors import SourceError
from remat.frameworks import find_framework
from remat.pytree import flatten
from remat.source.loop_info import LoopInfo

__all__ = ["NOTHING_GIVEN", "GivenArrays", "is_changed", "write_back"]


class GivenArrays:
    """The arrays among the arguments of one call of a function."""

    __slots__ = ("arrays",)

    def __init__(self, *arguments: Any) -> None:
        self.arrays = [weakref.ref(leaf) for leaf in flatten(arguments)[0] if is_changed(leaf)]

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


def _may_be_written(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.flags.writeable)
    return not (value.requires_grad and value.is_leaf and find_framework(value).is_differentiating())


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value.clone()

"""Protection: every step gets arrays that it cannot write into.

The rule: carry, inputs and captured values are read-only views, so no data of the caller and no kept state can be
overwritten. Under autograd, `h += x` makes a new array if `h` is traced, and writes in place if no gradient flows to
`h`. A step that does either on plain arrays gets NumPy's error for read-only arrays. Then the loop is restarted in
another mode (`NumpyCall.run`), in which steps run as autograd runs them: traced leaves are boxes, and the others are
private copies that may be written into.

What it can miss: code that writes into memory without asking NumPy, and arrays that the step reaches in other ways,
which the loop does not protect (`captured_state.py` restores small ones).

The cost: 0.2 us per leaf and step.
"""

import re
from collections.abc import Callable
from enum import Enum

import numpy as np

from remat.errors import StepError
from remat.loops.stacked_values import SeparateRows
from remat.pytree import Leaf, PyTree, TreeDef

__all__ = [
    "NotAsAutograd",
    "StepMode",
    "copier",
    "is_readonly_error",
    "mutation_message",
    "private_copies",
    "protector",
    "readonly_view",
]


class StepMode(Enum):
    """How steps run, in the order in which a loop tries them."""

    PLAIN = 0  # on plain read-only arrays, except when recorded: then every floating leaf is a box
    AUTOGRAD = 1  # all are recorded, with boxes where the plain program has them and private copies elsewhere
    TRACED = 2  # all are recorded, and every floating leaf is a box, so that `h += x` makes a new array for any h


class NotAsAutograd(StepError):
    """A step does something that its values do not allow in this mode, but may in another."""

    # If no mode helps, users see it as a StepError.
    __module__, __qualname__ = StepError.__module__, StepError.__qualname__


def readonly_view(leaf: Leaf) -> Leaf:
    """A read-only view of an array; a number unchanged."""
    if isinstance(leaf, np.ndarray):
        leaf = leaf[...]  # half the time of leaf.view()
        leaf.setflags(write=False)
    elif type(leaf) is SeparateRows:
        leaf = SeparateRows([readonly_view(row) for row in leaf.rows])
    return leaf


def protector(tree: TreeDef) -> Callable[[PyTree], PyTree]:
    """A function that copies the containers of a value of this structure and makes its arrays read-only.

    It runs in every step, so tuples, the most common carries, are compiled into nested closures.
    """
    if tree.node_type is None:
        return readonly_view
    if tree.node_type is type(None):
        return lambda value: value
    if tree.node_type is not tuple:
        return lambda value: tree.map(readonly_view, value)
    parts = [protector(child) for child in tree.children]
    if len(parts) == 2:
        first, second = parts
        return lambda value: (first(value[0]), second(value[1]))
    return lambda value: tuple([part(child) for part, child in zip(parts, value, strict=True)])


def copier(*, writable: bool = True) -> Callable[[Leaf], Leaf]:
    """A function from leaves to private copies; an array that occurs twice is copied once."""
    copies: dict[tuple[object, ...], np.ndarray] = {}  # by address, shape, strides and dtype

    def private(leaf: Leaf) -> Leaf:
        if not isinstance(leaf, np.ndarray):
            return leaf
        key = leaf.__array_interface__["data"][0], leaf.shape, leaf.strides, leaf.dtype
        if key not in copies:
            copies[key] = np.array(leaf, order="K")
            copies[key].setflags(write=writable)
        return copies[key]

    return private


def private_copies(tree: TreeDef) -> Callable[[PyTree], PyTree]:
    """A function that replaces the arrays in a value of this structure by private copies."""
    return lambda value: tree.map(copier(), value)


def mutation_message(error: BaseException, i: int) -> str:
    """The message for step i, which writes into its input or into a carry that is kept."""
    return (
        f"step {i} writes into an array that it must not change ({error}): its input x, or a carry that is kept to be "
        "used again. Make a new array instead, as in h = h + dh for h += dh"
    )


def is_readonly_error(error: BaseException) -> bool:
    """Whether the error, from NumPy or from code that writes into its buffers, says that an array is read-only."""
    return isinstance(error, ValueError) and bool(re.search(r"(array|destination) is read-only$", str(error)))

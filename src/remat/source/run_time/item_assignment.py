"""`x[i] = v` at run time: in place where Python does so and nobody else sees it, functional elsewhere.

`whose` classifies the object: "here" is outside loops, where lists and dicts are written into as in plain Python;
"own" is in a loop, for a name that is only bound to new objects; "other" is in a loop, for any other name.
"""

import sys
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from remat.execute.recomputation import is_recomputing
from remat.frameworks import find_framework
from remat.pytree import reached_leaves
from remat.source.rewrite.step_body import ITEM
from remat.source.rewrite.updates import AUGMENTED, PLAIN
from remat.source.run_time.given_arrays import NOTHING_GIVEN, GivenArrays, is_changed
from remat.source.run_time.messages import refuse_line
from remat.source.run_time.reached_objects import other_items, values_of
from remat.source.run_time.shared_arrays import holder_of
from remat.source.syntax import is_hidden

__all__ = ["augmented", "put", "put_augmented", "same"]

Live = tuple[str, tuple[str, ...]]  # the name of the changed object, and those that may be read after the change
NOTHING_LIVE: Live = ("", ())
_NUMBERS = (int, float, complex, str, bytes, type(None))


def put(
    whose: str,
    value: Any,
    x: Any,
    index: Any,
    holds: tuple[str, bool] | None = None,
    given: GivenArrays = NOTHING_GIVEN,
    live: Live = NOTHING_LIVE,
) -> Any:
    """The object after `x[index] = value`: a new one for arrays that are differentiated, and in loops.

    `holds` is set if the value is later changed in place, so that a list or dict would hold the old value: it has the
    name that is read then, and whether only `+=` changes it, which rebinds traced values. An array that the function
    was `given` is written into. Nothing that is read later, by the names in `live`, may lead to an object that is
    replaced.
    """
    after = _after(whose, value, x, index, holds, given)
    if after is not x:
        _check_not_shared(x, live)
    return after


def _after(whose: str, value: Any, x: Any, index: Any, holds: tuple[str, bool] | None, given: GivenArrays) -> Any:
    if not _is_array(x):
        if holds is not None and _is_stale(value, by_rebinding=holds[1]):
            refuse_line(
                f"a {type(x).__name__} holds what is put into it here, which is changed in place after that, and "
                f"{holds[0]} is read then: put a copy into it, as in x[i] = v.copy()"
            )
        if whose == "here" or not isinstance(x, dict | list):
            if whose != "here" and hasattr(type(x), "__setitem__"):
                refuse_line(
                    f"an item of a {type(x).__name__} is assigned in a loop: remat knows arrays, lists and dicts"
                )
            x[index] = value
            return x
        if whose == "other":
            refuse_line(
                f"an item of a {type(x).__name__} is assigned in a loop, which may be somebody else's: copy it before "
                "the loop"
            )
        new = x.copy()  # kept states may hold the old one
        new[index] = value
        return new
    if given.holds(x):
        if isinstance(x, np.ndarray) and type(value).__name__.endswith("Box"):
            refuse_line(
                "an item of an array of NumPy that the function was given is assigned, which cannot hold values that "
                "are differentiated: copy the array first, and return it if the caller needs it"
            )
        x[index] = value
        return x
    return find_framework(x, value).put_item(x, index, value)


def same(one: Any, other: Any, of_items: bool = False) -> bool:
    """`one is other` in a step, whose carried arrays are other objects than those of a plain loop.

    With `of_items`, both are captured, or items that the loop runs over, which JAX alone replaces.
    """
    if one is not other and _has_arrays(one, of_items) and _has_arrays(other, of_items):
        refuse_line(
            "arrays are compared by `is`, and an iteration gets other arrays with the same values: compare what they "
            "hold, or set a flag where one is assigned"
        )
    return one is other


def _has_arrays(value: Any, if_replaced: bool) -> bool:
    """Whether arrays are found through containers; with `if_replaced`, those of JAX."""
    framework = find_framework(value)
    if if_replaced and framework.TRAITS.name != "jax":
        return False
    return any(map(_is_array, reached_leaves(value, framework.unpack)))


def _is_array(x: Any) -> bool:
    """Whether an object is an array of NumPy or a framework; other objects with a shape are not (memoryview)."""
    if isinstance(x, np.ndarray):
        return True
    return hasattr(x, "shape") and isinstance(x, find_framework(x).TRAITS.array_types)


def _check_not_shared(old: Any, live: Live, more: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Refuse to replace an object if a name that is read later leads to it; called by the functions of steps."""
    name, names = live
    if is_recomputing():
        return
    frame = sys._getframe(2)
    items = tuple(name for name in frame.f_code.co_varnames if name.startswith(ITEM))  # what lists will hold
    holder = holder_of(old, {**values_of(frame, names + items), **more}, None, name)
    if holder is not None:
        other = "an item that this statement, or a list, gets" if is_hidden(holder) else holder
        what = f"{other}, which is read after that, is or holds the same object"
        refuse_line(
            f"{name} is changed in place, and {what}: copy one of them, as {name}.copy() or {name}.clone() does"
        )


def _is_stale(value: Any, by_rebinding: bool) -> bool:
    """Whether a list would hold an old value: one that plain Python changes in place and a step rebinds."""
    if by_rebinding:
        return is_changed(value) and find_framework(value).is_differentiating()
    return not isinstance(value, _NUMBERS)


def put_augmented(
    whose: str,
    x: Any,
    index: Any,
    operation: str,
    value: Any,
    holds: tuple[str, bool] | None = None,
    given: GivenArrays = NOTHING_GIVEN,
    live: Live = NOTHING_LIVE,
) -> Any:
    """The object after `x[index] += value`, or another augmented assignment."""
    item = x[index]
    if is_changed(item) and isinstance(x, dict | list | deque):  # plain Python changes the item itself
        _check_not_shared(item, live, {live[0]: other_items(x, index)})
    if hasattr(item, "shape"):
        item = item + 0 if item.dtype != bool else item | False  # a view of x must not be written into
    after: Any = AUGMENTED[operation](item, value)
    new = _after(whose, after, x, index, holds, given)
    if new is not x:
        _check_not_shared(x, live)
    return new


def augmented(operation: str, x: Any, value: Any, live: Live = NOTHING_LIVE) -> Any:
    """The value of a carried variable after `x += value`: a new array, since kept states may hold the old one.

    Nothing that is read later, by the names in `live`, may lead to an array that plain Python would change in place.
    """
    if hasattr(x, "requires_grad"):  # a tensor: on a copy, so that dtype and shape stay, as in place
        _check_not_shared(x, live)
        return AUGMENTED[operation](x.clone(), value)
    # `x + value`, as autograd's boxes do; a plain array may stand for a box, which is rebound, so nothing is compared.
    if hasattr(x, "shape"):
        return PLAIN[operation](x, value)
    return AUGMENTED[operation](x, value)

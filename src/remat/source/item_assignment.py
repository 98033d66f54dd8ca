"""`x[i] = v` at run time: in place where that is what Python does and nobody else sees it, functional elsewhere.

`whose` says whose the object is: "here" outside of loops, where lists and dicts are written into as in plain Python;
"own" in a loop, of a name that only ever gets new objects; "other" in a loop, of one that may be somebody else's.
"""

import linecache
import sys
from typing import Any, NoReturn

import numpy as np

from remat.errors import SourceError
from remat.frameworks import find_framework
from remat.source.given_arrays import NOTHING_GIVEN, GivenArrays
from remat.source.updates import AUGMENTED, PLAIN

__all__ = ["augmented", "put", "put_augmented"]


def put(whose: str, value: Any, x: Any, index: Any, shared_with: str = "", given: GivenArrays = NOTHING_GIVEN) -> Any:
    """The object after `x[index] = value`: a new one, for arrays that are differentiated, and in loops.

    `shared_with` is another name that may stand for the same object: then it must be written into. An array that
    the function was `given` is written into, too.
    """
    if not hasattr(x, "shape"):
        if whose == "here" or not isinstance(x, dict | list):
            if whose != "here" and hasattr(type(x), "__setitem__"):
                _refuse(f"an item of a {type(x).__name__} is assigned in a loop: remat knows arrays, lists and dicts")
            x[index] = value
            return x
        if whose == "other":
            _refuse(
                f"an item of a {type(x).__name__} is assigned in a loop, which may be somebody else's: copy it before "
                "the loop"
            )
        new = x.copy()  # the loop's kept states may hold the old one
        new[index] = value
        return new
    if given.holds(x):
        if isinstance(x, np.ndarray) and type(value).__name__.endswith("Box"):
            _refuse(
                "an item of an array of NumPy that the function was given is assigned, which cannot hold values that "
                "are differentiated: copy the array first, and return it if the caller needs it"
            )
        x[index] = value
        return x
    after = find_framework(x, value).put_item(x, index, value)
    if shared_with and after is not x:
        _refuse(f"{shared_with} may be the array whose item is assigned here, and is read later: copy one")
    return after


def _refuse(why: str) -> NoReturn:
    """Raise a SourceError for the line of the user's that assigns an item: the first frame of another file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(file, line).strip()
    raise SourceError(f"{file}, line {line}: {why}\n    {code}", file, line, 0, code)


def put_augmented(
    whose: str,
    x: Any,
    index: Any,
    operation: str,
    value: Any,
    shared_with: str = "",
    given: GivenArrays = NOTHING_GIVEN,
) -> Any:
    """The object after `x[index] += value`, or another operation."""
    item = x[index]
    if hasattr(item, "shape"):
        item = item + 0 if item.dtype != bool else item | False  # a view of x must not be written into
    after: Any = AUGMENTED[operation](item, value)
    return put(whose, after, x, index, shared_with, given)


def augmented(operation: str, x: Any, value: Any) -> Any:
    """What `x += value` leaves in a carried variable: a new array, since kept states may hold the old one."""
    if hasattr(x, "requires_grad"):  # a tensor: its dtype and its shape stay, as in place
        return AUGMENTED[operation](x.clone(), value)
    if hasattr(x, "shape"):  # as autograd's arrays do it
        return PLAIN[operation](x, value)
    return AUGMENTED[operation](x, value)

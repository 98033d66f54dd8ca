"""Arrays, lists and dicts that a loop fills row by row, after its turns have run."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from remat.source.run_time.item_assignment import put
from remat.source.run_time.items import Items
from remat.source.run_time.ran import OutputRows

__all__ = ["fillable", "with_rows"]


def fillable(arrays: Sequence[Any], items: Items, start: int, stop: int) -> int:
    """The first turn from `start` on that would fill no row of an array, or a row that is already filled."""
    for array in arrays:
        if isinstance(array, dict) or start >= stop:
            continue
        size, filled = len(array), set[int]()
        ends = items.at(start), items.at(stop - 1)
        if min(ends) >= 0 and max(ends) < size:  # all numbers of a range lie between its ends
            continue
        for k in range(start, stop):
            row = items.at(k) % size if -size <= items.at(k) < size else None
            if row is None or row in filled:
                stop = k
                break
            filled.add(row)
    return stop


def with_rows(array: Any, places: Sequence[Any], given: OutputRows) -> Any:
    """The array after `array[i] = row` for each place, which for a dict is a key, and row."""
    if isinstance(array, dict | list):
        for k, place in enumerate(places):
            array[place] = given.item(k)
        return array
    rows = given.stacked()
    if isinstance(rows, list):  # numbers, which have no gradient
        rows = array.new_tensor(rows) if hasattr(array, "new_tensor") else np.asarray(rows)
    missing = len(array.shape) - len(rows.shape)
    if missing > 0:  # a row may have fewer axes than an item of the array
        rows = rows.reshape((rows.shape[0], *[1] * missing, *rows.shape[1:]))
    elif missing < 0 and set(rows.shape[1 : 1 - missing]) == {1}:  # or more, of length 1
        rows = rows.reshape((rows.shape[0], *rows.shape[1 - missing :]))
    if isinstance(array, np.ndarray) and hasattr(rows, "requires_grad"):  # numbers that a step of PyTorch puts there
        rows = np.asarray(rows)
    return put("own", rows, array, np.array(places))

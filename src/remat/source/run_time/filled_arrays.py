"""Arrays, lists and dicts that a loop fills row by row, after its turns have run."""

from typing import Any

import numpy as np

from remat.frameworks import find_framework
from remat.source.run_time.item_assignment import put

__all__ = ["with_rows"]


def with_rows(array: Any, numbers: list[int], rows: Any) -> Any:
    """The array after `array[i] = row` for each number and row."""
    if isinstance(array, dict | list):
        for k, row in zip(numbers, find_framework(rows).unstack(rows), strict=True):
            array[k] = row
        return array
    missing = len(array.shape) - len(rows.shape)
    if missing > 0:  # a row may have fewer axes than an item of the array
        rows = rows.reshape((rows.shape[0], *[1] * missing, *rows.shape[1:]))
    elif missing < 0 and set(rows.shape[1 : 1 - missing]) == {1}:  # or more, of length 1
        rows = rows.reshape((rows.shape[0], *rows.shape[1 - missing :]))
    if isinstance(array, np.ndarray) and hasattr(rows, "requires_grad"):  # numbers that a step of PyTorch puts there
        rows = np.asarray(rows)
    return put("own", rows, array, np.array(numbers))

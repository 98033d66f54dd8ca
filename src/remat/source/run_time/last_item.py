"""`ys[-1]` of a list that a loop appends to, as a variable (`rewrite/last_items.py`): only for plain lists and deques.

The rule: what was appended last is the last item only if `append` is that of Python, so other types are refused. The
last item of an empty list is UNBOUND, and reading it raises what Python raises.
"""

import math
from collections import deque
from typing import Any

from remat.source.run_time.messages import refuse_line
from remat.source.run_time.statics import UNBOUND

__all__ = ["last_item", "read_last"]


def last_item(items: Any, place: int = 1) -> Any:
    """`items[-place]` before a loop that appends to `items`; for place 0, its length."""
    most = math.inf if type(items) is list else 0
    if type(items) is deque:
        most = math.inf if items.maxlen is None else items.maxlen
    if place > most or (place == 0 and most != math.inf):
        refuse_line(
            f"the loop reads the last item of a {type(items).__name__} that it appends to, which need not be what was "
            "appended",
            "Use a list, or a variable for the last value.",
        )
    if place == 0:
        return len(items)
    return items[-place] if len(items) >= place else UNBOUND


def read_last(item: Any) -> Any:
    """The last item; the IndexError of an empty list."""
    if item is UNBOUND:
        raise IndexError("list index out of range")
    return item

"""A cache of step costs, so that a training loop measures its step once."""

from collections.abc import Callable
from typing import Any

from remat.measuring.step_cost import StepCost

__all__ = ["cached_cost"]

CACHE_SIZE = 256  # the oldest entry is dropped first
# By the cache key of a step: the bytes of its first tape, its cost, and the bytes that measuring was allowed to use.
_costs: dict[Any, tuple[int, StepCost, int]] = {}


def cached_cost(key: Any, first_tape: int, room: int, measure: Callable[[], StepCost]) -> StepCost:
    """The cost of a step: from the cache if a loop with this key had a first tape of this size, else measured.

    The key does not contain everything that a step's cost depends on, such as a size that it reads from a global. So
    the bytes of the first tape, which have been measured anyway, must agree within 2 %. A cost that was measured in
    less memory than needed is measured again when `room`, the bytes that measuring may use, has grown.
    """
    entry = _costs.get(key)
    if entry is not None and room > entry[2] and entry[1].worth_remeasuring(room):
        entry = None
    if entry is None or not 0.98 * entry[0] <= first_tape <= 1.02 * entry[0]:
        while len(_costs) >= CACHE_SIZE:
            _costs.pop(next(iter(_costs)))
        entry = _costs[key] = first_tape, measure(), room
    return entry[1]

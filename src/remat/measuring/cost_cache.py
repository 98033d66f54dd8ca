"""A cache of step costs, so that a training loop measures its step once."""

from collections.abc import Callable
from typing import Any

from remat.measuring.step_cost import StepCost

__all__ = ["cached_cost"]

CACHE_SIZE = 256  # the oldest entry is dropped first
# The cache key of a step → the sizes of its first run, its cost, and the bytes that measuring was allowed to use.
_costs: dict[Any, tuple[tuple[int, ...], StepCost, int]] = {}


def cached_cost(key: Any, first_run: tuple[int, ...], room: int, measure: Callable[[], StepCost]) -> StepCost:
    """The cost of a step: from the cache if a loop with this key had a first step of these sizes, otherwise measured.

    The key does not contain everything that a step's cost depends on, such as a size that it reads from a global. So
    the sizes of the first run, such as the bytes of its tape, which are known anyway, must agree within 2 %. A cost
    that was measured with too little memory is measured again once `room`, the bytes that measuring may use, has grown
    enough.
    """
    entry = _costs.get(key)
    if entry is not None and room > entry[2] and entry[1].worth_remeasuring(room):
        entry = None
    if entry is None or any(abs(now - then) > 0.02 * then for now, then in zip(first_run, entry[0], strict=True)):
        while len(_costs) >= CACHE_SIZE:
            _costs.pop(next(iter(_costs)))
        entry = _costs[key] = first_run, measure(), room
    return entry[1]

"""What steps change besides their results, by step, for loops that run the steps of another loop in any order.

The rule: a step starts from the random generators, contents and buffers that it had in the first sweep, and leaves them
as they were before it. Those of step 0 are known from the call; those of every later step are what the one before
leaves when it is first run here, and steps are first run in their order. What this can miss is what the replayable
states miss. The cost: snapshots for all steps, and only where steps change anything.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from remat.execute.rng_state import ReplayableState
from remat.execute.state_replay import exchanged

__all__ = ["StepStates"]

T = TypeVar("T")


class StepStates:
    """The states that steps of a loop start from, filled as they run.

    `first` are snapshots at step 0, and None for states that are left alone.
    """

    def __init__(self, states: Sequence[ReplayableState], first: Sequence[Any]) -> None:
        self._before = {0: [pair for pair in zip(states, first, strict=True) if pair[1] is not None]}

    def run(self, index: int, step: Callable[[], T]) -> T:
        """Run a step with the states of its place in the loop."""
        with exchanged(self._before[index]):
            result = step()
            if index + 1 not in self._before:
                self._before[index + 1] = [(state, state.get()) for state, _ in self._before[0]]
            return result

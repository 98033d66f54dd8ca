"""The replayable states before each step, for loops that run the steps of another loop in any order.

The rule: a step starts from the random generators, contents and buffers that it had in the first sweep, and afterwards
they are set back. Those of step 0 are known from the call; those of each later step are what its predecessor leaves
when it is first run here, which requires that first runs are in order. What it can miss: what the replayable states
miss. The cost: a snapshot per step of each state that the steps use.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from remat.execute.rng_state import ReplayableState
from remat.execute.state_replay import exchanged

__all__ = ["StepStates"]

T = TypeVar("T")


class StepStates:
    """The states from which the steps of a loop start, filled in as they run.

    `first` are the snapshots at step 0; None for states that are left alone.
    """

    def __init__(self, states: Sequence[ReplayableState], first: Sequence[Any]) -> None:
        self._before = {0: [pair for pair in zip(states, first, strict=True) if pair[1] is not None]}

    def run(self, index: int, step: Callable[[], T]) -> T:
        """Run step `index` from the states that it had in the loop."""
        with exchanged(self._before[index]):
            result = step()
            if index + 1 not in self._before:
                self._before[index + 1] = [(state, state.get()) for state, _ in self._before[0]]
            return result

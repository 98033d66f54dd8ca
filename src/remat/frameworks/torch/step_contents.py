"""Contents of the user's containers by step, for loops that run the steps of another loop in any order.

The rule: a step runs with the contents that it had in the first sweep, and leaves them as they were before it. Those of
step 0 are known from the call; those of every later step are what the one before leaves when it is first run here, and
steps are first run in their order. What this can miss is what python_state.py misses. The cost: copies of the contents
of all steps, and only where steps change them.
"""

from collections.abc import Callable
from typing import TypeVar

from remat.execute.python_state import Contents, PythonState

__all__ = ["StepContents"]

T = TypeVar("T")


class StepContents:
    """The contents that steps of a loop start from, filled as they run."""

    def __init__(self, state: PythonState, first: Contents) -> None:
        self._state, self._before = state, {0: first}

    def run(self, index: int, step: Callable[[], T]) -> T:
        """Run a step with the contents of its place in the loop."""
        present = self._state.get()
        try:
            self._state.set(self._before[index])
            result = step()
            if index + 1 not in self._before:
                self._before[index + 1] = self._state.get()
            return result
        finally:
            self._state.set(present)

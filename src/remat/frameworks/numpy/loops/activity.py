"""Activity: which leaves of the carry depend on a differentiated value, and so are boxes.

The rule: at first a step is recorded with every floating leaf as a box. That is never wrong, but it refuses what plain
autograd allows with leaves that no gradient flows to: writing into them, or passing them to `math.sin`. Such a loop is
restarted with `exact`: then only those leaves are boxes that are boxes in the plain program. At the start these are the
traced leaves of init; each recorded step shows which of its results depend on them. All steps of the first sweep are
recorded in this case, so that nothing is decided by the first step alone.

What it can miss: a leaf that was active once stays so, even if a later step sets it to a constant.
"""

from collections.abc import Sequence

from remat.errors import StepError
from remat.frameworks.numpy.tape import Node

__all__ = ["CarryActivity"]

NEVER = 2**62  # later than any step


class CarryActivity:
    """The state from which on each leaf of the carry is active; `traced` says which leaves of init are boxes."""

    def __init__(self, traced: Sequence[bool], *, exact: bool) -> None:
        self._since = [0 if is_traced or not exact else NEVER for is_traced in traced]

    def at(self, state: int) -> list[bool]:
        """Which leaves of the state are active."""
        return [since <= state for since in self._since]

    def observe(self, state: int, nodes: Sequence[Node | None], names: Sequence[str], *, first_sweep: bool) -> None:
        """Note which leaves have a node in this state, the end of a recorded range."""
        for k, node in enumerate(nodes):
            if node is None or self._since[k] <= state:
                continue
            if not first_sweep:  # later ranges are pulled back already, and have computed no cotangent of this leaf
                raise StepError(
                    f"{names[k]} depends on traced values after step {state - 1} when it is recomputed, and did not "
                    "the first time: its gradient would be lost. Let every step compute it the same way"
                )
            self._since[k] = state

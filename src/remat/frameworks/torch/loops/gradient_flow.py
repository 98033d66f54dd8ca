"""Which leaves of the first carry and of `xs` the results of a loop can depend on; the others are not its inputs.

The rule: the engine runs every node behind an input of the loop's node, and calls the hooks there, with None if there
is no gradient. In a plain loop, a tensor that a step detaches is not connected to the results, and nothing behind it
runs. So a leaf is passed detached if the recorded steps of the first sweep show that no result depends on it. A
recorded range that reaches none of its carry cuts off everything before it, inputs of earlier steps too, unless steps
return outputs.

What it can miss: steps that ran without a graph count as connected, and so do inputs whose results the loss does not
use; untouched_leaves.py handles these. If a recomputed step depends on a leaf that was passed detached, that is an
error. The cost: only a comparison of edges that are visited in any case.
"""

from collections.abc import Sequence

from torch import Tensor

from remat.errors import StepError
from remat.pytree import Leaf

__all__ = ["GradientFlow", "check_unconnected"]


class GradientFlow:
    """What the recorded ranges of a first sweep have shown, in the order in which they ran."""

    def __init__(self) -> None:
        self._first: Sequence[bool] = ()  # by leaf of the first carry: whether the first range reaches it
        self._all = _Rows()
        self._since_cut: _Rows | None = None  # from the last range on that reaches nothing of its carry, after step 0
        self._last: tuple[int, Sequence[bool]] = 0, ()

    def note(self, steps: range, carry: Sequence[bool], xs: Sequence[bool]) -> None:
        """Note which leaves of carry and xs the results of these steps depend on."""
        if steps.start == 0:
            self._first = carry
        elif not any(carry):
            self._since_cut = _Rows(steps.start)  # gradients of everything before end here
        self._all.note(len(steps), xs)
        if self._since_cut is not None:
            self._since_cut.note(len(steps), xs)

    def note_results(self, stop: int, active: Sequence[bool]) -> None:
        """Note which leaves of the carry have a graph after a recorded range."""
        self._last = stop, active

    def active_at_end(self, steps: int, active: Sequence[bool]) -> Sequence[bool]:
        """Which leaves of the last carry have a graph, among those that have one after some step."""
        stop, last = self._last
        return [now and before for now, before in zip(last, active, strict=True)] if stop == steps else active

    def unconnected(self, steps: int, *, outputs: bool) -> list[bool]:
        """By leaf of the first carry, then of `xs`: whether no result depends on it; `outputs`: some are active."""
        cut = self._since_cut is not None and not outputs
        rows = self._since_cut if self._since_cut is not None and not outputs else self._all
        return [*(cut or not reached for reached in self._first), *rows.unconnected(steps)]


class _Rows:
    """Which leaves of `xs` the recorded steps from `start` on depend on."""

    def __init__(self, start: int = 0) -> None:
        self._start, self._recorded = start, 0
        self._reached: Sequence[bool] = ()  # by leaf

    def note(self, steps: int, reached: Sequence[bool]) -> None:
        """Note the leaves that so many more steps depend on."""
        before = self._reached or [False] * len(reached)
        self._reached = [now or earlier for now, earlier in zip(reached, before, strict=True)]
        self._recorded += steps

    def unconnected(self, steps: int) -> Sequence[bool]:
        """By leaf: whether no step depends on it, which is known if all steps were recorded."""
        known = self._recorded == steps - self._start
        return [known and not reached for reached in self._reached]


def check_unconnected(leaves: Sequence[Leaf], gradients: Sequence[Tensor | None], unconnected: Sequence[bool]) -> None:
    """Raise a StepError if there is a gradient of a leaf on which no result depended in the first sweep."""
    for k, (gradient, is_out) in enumerate(zip(gradients, unconnected, strict=False)):
        if is_out and gradient is not None:
            shape = list(leaves[k].shape)
            raise StepError(
                f"the result depends on leaf {k} of init and xs ({shape}) now that its steps are recomputed, and did "
                "not when they were first run: the step does not repeat what it did"
            )

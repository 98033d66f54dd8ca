"""Tensors that a step leaves in attributes and containers for a later one: state beside the carry.

The rule: the contents of what a step reaches are replayed, so that counters and logs repeat. Through a tensor among
them gradients may flow from step to step, and those are lost where a range begins: steps that ran without a tape have
left it there without a graph. So once a recorded step was seen to use a tensor with a graph that an earlier step has
left, a range that uses one without a graph raises a StepError. A tensor that is made once and kept, in a cache, is an
input of the loop instead (loop_inputs.py), and one that is stored and not used is no error.

What it can miss: such a flow that begins late, in steps which were not recorded in the first sweep. The cost is nothing
before such a flow is seen, and then a comparison of the contents for each range.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor

from remat.errors import StepError
from remat.execute.python_state import Container, Contents
from remat.frameworks.torch.leaves import is_differentiable
from remat.frameworks.torch.watch import Watch

__all__ = ["LeftBehind"]


class LeftBehind:
    """What steps have left in containers since this object was made, before the first of them."""

    def __init__(self, containers: Iterable[Container]) -> None:
        self._before = Contents.of(containers)

    def _without_graph(self) -> list[Tensor]:
        return [leaf for leaf in self._before.added_leaves() if is_differentiable(leaf) and not leaf.requires_grad]

    @contextmanager
    def refused(self, start: int) -> Iterator[None]:
        """A block that records steps from `start` on; raises if they use a tensor that was left without a graph."""
        # Watched, since a tensor without a graph leaves no edge that would show its use.
        watch = Watch(self._without_graph())
        try:
            yield
        finally:
            watch.end()
        if watch.used:
            raise StepError(
                f"step {start} or one after it uses a tensor of shape {list(watch.used[0].shape)} that an earlier step "
                "has left in an attribute or a container: its gradient would be lost there. Pass it through the carry"
            )

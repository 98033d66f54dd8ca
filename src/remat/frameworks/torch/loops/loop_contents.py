"""The contents of containers that the steps of a loop reach, as a replayable state; caches stay filled.

The rule is that of python_state.py, with one exception: a tensor with a graph that a step has made, that later steps
have used, and that is still where they found it, was made once for all (a memo, a cached property). It is an input of
the loop's node, so it stays there: if the cache were emptied and filled again without a tape, that would cut the graph
of all steps.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from remat.closures.new_contents import NewContents
from remat.execute.python_state import Container, Contents, Variable
from remat.execute.rng_state import ReplayableState
from remat.frameworks.torch.internals.graph import version
from remat.frameworks.torch.replay.tensor_value import COPIED, TensorValue, is_plain

__all__ = ["LoopContents"]


class LoopContents(NewContents):
    """The contents of containers, except what is cached there."""

    def __init__(self, containers: Iterable[Container]) -> None:
        super().__init__(containers)
        self._cached: list[tuple[Any, Any, Tensor]] = []  # a dict or list, a key, and the item

    def value_of(self, leaf: Any) -> ReplayableState | None:
        """The numbers of a tensor that a step has made and that was modified since, such as a running mean.

        A tensor that never was modified is a result, such as the last state; copying it would cost memory for every
        kept state.
        """
        if not isinstance(leaf, Tensor):
            return super().value_of(leaf)
        if leaf.requires_grad or not is_plain(leaf):
            return None
        return TensorValue(leaf, is_statistic=False) if version(leaf) and leaf.nbytes <= COPIED else None

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Let these tensors stay where they are now, whatever contents are restored."""
        wanted = {id(tensor) for tensor in tensors}
        for container in self.containers if wanted else ():
            # Sets and deques have no keys under which a tensor could be put back.
            if isinstance(container, dict | list | Variable):
                pairs = dict.items(container) if isinstance(container, dict) else enumerate(container)
                self._cached += [(container, key, item) for key, item in pairs if id(item) in wanted]

    def set(self, snapshot: Contents) -> None:
        """Restore contents, except what is cached."""
        super().set(snapshot)
        for container, key, tensor in self._cached:
            if isinstance(container, dict):
                dict.__setitem__(container, key, tensor)
            # A variable that was deleted meanwhile gets its value back; a list only grows at its end.
            elif key < len(container) or isinstance(container, Variable):
                container[key] = tensor
            elif key == len(container):
                container.append(tensor)

"""The contents of containers that the steps of a loop reach, as a replayable state; caches stay filled.

The rule is that of python_state.py, with one exception: a tensor with a graph that a step has made, that later steps
have used, and that is still where they found it, was made once for all (a memo, a cached property). It is an input of
the loop's node, so it stays there: emptied and filled again without a tape, the cache would cut the graph of all steps.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from remat.execute.python_state import Container, Contents, PythonState

__all__ = ["LoopContents"]


class LoopContents(PythonState):
    """The contents of containers, without what is cached there."""

    def __init__(self, containers: Iterable[Container]) -> None:
        super().__init__(containers)
        self._cached: list[tuple[Any, Any, Tensor]] = []  # a dict or list, and its item

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Let these tensors stay where they are now, whatever contents are put back."""
        wanted = {id(tensor) for tensor in tensors}
        for container in self.containers if wanted else ():
            # Sets and deques have no keys under which a tensor could be put back.
            if isinstance(container, dict | list):
                pairs = dict.items(container) if isinstance(container, dict) else enumerate(container)
                self._cached += [(container, key, item) for key, item in pairs if id(item) in wanted]

    def set(self, snapshot: Contents) -> None:
        """Put contents back, beside what is cached."""
        super().set(snapshot)
        for container, key, tensor in self._cached:
            if isinstance(container, dict):
                dict.__setitem__(container, key, tensor)
            elif key < len(container):
                container[key] = tensor
            elif key == len(container):
                container.append(tensor)

"""What a block of a model reaches, found once and reused as long as it is unchanged.

The rule. A search (tensor_reach.py) goes from containers, variables and classes to what is in them. If each of these
holds the very same items as before, a new search would find the same, and the contents copied then are still current.
This is compared at every call of the block, in a sixth of the time of a search.

Not reused: a search that found tensors with a graph, generators, arrays, objects of classes other than modules, or
variables that are assigned to; and one with arguments other than tensors, numbers and strings. A block that changes
between calls, such as one that counts them, is searched each time from then on.

What it can miss: function defaults that are replaced. It holds what a block had at its last call until the next one.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from remat.closures.captures import Captures
from remat.execute.python_state import Contents
from remat.frameworks.torch.replay.class_attributes import ClassAttributes
from remat.frameworks.torch.replay.tensor_reach import TorchReach

__all__ = ["KnownReach", "ReachCache", "reached"]

_PLAIN_ARGUMENTS = (type(None), bool, int, float, str)
_SEARCHED = (nn.Module, Tensor, FunctionType, MethodType, BuiltinFunctionType, CellType, type)
_CONTAINERS = (dict, OrderedDict, list, set, deque)
_MOST_CHANGES = 2  # after this many changes, a block is searched each time


def reached(*functions: Any, arguments: Iterable[Any] = (), captures: Captures | None = None) -> TorchReach:
    """Search what functions and their arguments reach."""
    reach = TorchReach(captures)
    reach.add(arguments, everything=True)
    reach.add(functions)
    return reach


class KnownReach:
    """What a function reaches, and the contents of its containers."""

    def __init__(self, reach: TorchReach) -> None:
        self.reach, self.contents = reach, Contents.of([*reach.containers, *reach.registries])
        self._variables = reach.variables
        self.classes = ClassAttributes(reach.seen())

    def is_same(self) -> bool:
        """Whether a search would find the same, with the same contents."""
        if self.contents.changed() or any(place.get() is not value for place, value in self._variables):
            return False
        return self.classes.are_there()


class ReachCache:
    """What one block reaches, remembered from one call to the next."""

    def __init__(self) -> None:
        self._known: tuple[Callable[..., Any], KnownReach] | None = None
        self._changes = 0

    def reach_of(self, fn: Callable[..., Any], arguments: Iterable[Any]) -> "KnownReach | TorchReach":
        """What a function and these arguments reach."""
        if self._changes == _MOST_CHANGES or not all(type(each) in _PLAIN_ARGUMENTS for each in arguments):
            return reached(fn, arguments=arguments)
        known, self._known = self._known, None
        if known is not None:
            if known[0] == fn and known[1].is_same():
                self._known = known
                return known[1]
            self._changes += 1
        reach = reached(fn)
        if not _is_plain(reach):
            self._changes = _MOST_CHANGES
            return reach
        self._known = fn, KnownReach(reach)
        return self._known[1]


def _is_plain(reach: TorchReach) -> bool:
    """Whether everything found is in containers, variables and classes that can be compared."""
    if reach.made or reach.generators or reach.torch_generators or reach.arrays or reach.assigned:
        return False
    if reach.lazy or reach.compiled:
        return False
    return all(isinstance(each, _SEARCHED) or type(each) in _CONTAINERS for each in reach.seen())

"""A function without the tensors that it closes over: these are inputs of a segment like its arguments.

A segment that held its function with all its cells would hold tensors that an outer segment lets go, and later values
of variables that were assigned again. So tensors in cells that the function only reads are lifted out.
"""

from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any

from torch import Tensor

from remat.closures.references import CellRef, assigned_names

__all__ = ["DetachedCells"]


class DetachedCells:
    """A function whose tensors were lifted out of its closure; `with_values` puts others there, in a copy of it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self._places = fn, list[int]()
        self.tensors: list[Tensor] = []  # for the caller, who takes them away
        if not isinstance(fn, FunctionType) or not fn.__closure__:
            return
        cells, assigned = list(fn.__closure__), _assigned(fn)
        for place, cell in enumerate(fn.__closure__):
            content = CellRef(cell).get()
            if isinstance(content, Tensor) and id(cell) not in assigned and not _is_parameter(content):
                self._places.append(place)
                self.tensors.append(content)
                cells[place] = CellType(None)
        if self._places:
            self.fn = _with_cells(fn, cells)

    def with_values(self, tensors: Sequence[Tensor]) -> Callable[..., Any]:
        """The function with these tensors in its closure."""
        if not self._places:
            return self.fn
        assert isinstance(self.fn, FunctionType)
        cells = list(self.fn.__closure__ or ())
        for place, tensor in zip(self._places, tensors, strict=True):
            cells[place] = CellType(tensor)
        return _with_cells(self.fn, cells)


def _with_cells(fn: FunctionType, cells: Sequence[CellType]) -> FunctionType:
    made = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, tuple(cells))
    made.__kwdefaults__, made.__qualname__ = fn.__kwdefaults__, fn.__qualname__
    made.__dict__.update(fn.__dict__)
    return made


def _is_parameter(tensor: Tensor) -> bool:
    """Whether a tensor is held by others anyway, who expect to find it itself."""
    return tensor.is_leaf and tensor.requires_grad


def _assigned(fn: FunctionType) -> set[int]:
    """The cells that a function, or one that it closes over, assigns to."""
    found: set[int] = set()
    seen, waiting = {id(fn)}, [fn]
    while waiting:
        function = waiting.pop()
        names = assigned_names(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name in names:
                found.add(id(cell))
            content = CellRef(cell).get()
            if isinstance(content, FunctionType) and id(content) not in seen:
                seen.add(id(content))
                waiting.append(content)
    return found

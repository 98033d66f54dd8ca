"""A copy of a function with its own closure cells, without tensors: these become inputs, like the arguments.

A segment keeps its function until the backward. With the original cells it would keep tensors alive that an outer
segment drops, and would see later values of variables that are reassigned. So the cells that the function only reads
are copied, and the tensors in them are taken out.
"""

from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any

from torch import Tensor

from remat.closures.bytecode import assigned_names
from remat.closures.references import UNSET, CellRef

__all__ = ["DetachedCells"]


class DetachedCells:
    """A function with its own cells, without the tensors in them; `with_values` makes a copy with tensors."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self._indices = fn, list[int]()
        self._tensors: list[Tensor] = []
        if not isinstance(fn, FunctionType) or not fn.__closure__:
            return
        cells, assigned = list(fn.__closure__), _assigned(fn)
        for index, cell in enumerate(fn.__closure__):
            content = CellRef(cell).get()
            # A variable that is assigned to is shared with the program: writes to a copy of its cell would be lost.
            if content is UNSET or id(cell) in assigned:
                continue
            is_input = isinstance(content, Tensor) and not _is_parameter(content)
            if is_input:
                self._indices.append(index)
                self._tensors.append(content)
            cells[index] = CellType(None if is_input else content)
        self.fn = _with_cells(fn, cells)

    def take_tensors(self) -> list[Tensor]:
        """The tensors that were in the cells; they are no longer kept alive here."""
        tensors, self._tensors = self._tensors, []
        return tensors

    def with_values(self, tensors: Sequence[Tensor]) -> Callable[..., Any]:
        """The function with these tensors in its closure."""
        if not self._indices:
            return self.fn
        assert isinstance(self.fn, FunctionType)
        cells = list(self.fn.__closure__ or ())
        for index, tensor in zip(self._indices, tensors, strict=True):
            cells[index] = CellType(tensor)
        return _with_cells(self.fn, cells)


def _with_cells(fn: FunctionType, cells: Sequence[CellType]) -> FunctionType:
    copy = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, tuple(cells))
    for name in ("__kwdefaults__", "__qualname__", "__module__"):  # attributes that the constructor does not take
        setattr(copy, name, getattr(fn, name))
    copy.__dict__.update(fn.__dict__)
    return copy


def _is_parameter(tensor: Tensor) -> bool:
    """Whether a tensor is a leaf whose `.grad` and hooks are used, so that this very tensor must be in the cell."""
    return tensor.is_leaf and tensor.requires_grad


def _assigned(fn: FunctionType) -> set[int]:
    """The ids of the cells that a function, or one that it closes over, assigns to."""
    assigned: set[int] = set()
    seen, waiting = {id(fn)}, [fn]
    while waiting:
        function = waiting.pop()
        names = assigned_names(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name in names:
                assigned.add(id(cell))
            content = CellRef(cell).get()
            if isinstance(content, FunctionType) and id(content) not in seen:
                seen.add(id(content))
                waiting.append(content)
    return assigned

"""Finds the tensors that a step uses while it runs without a graph, where no edge of a graph can show it.

The rule: while a thread watches a tensor, the tensor's class is a subclass whose `__torch_function__` notes the first
operation of this thread that takes the tensor and returns one, gives the tensor its class back, and goes on. So a
tensor that is used costs one Python call, and one that is not used costs nothing. Getters of shapes and dtypes return
no tensor and do not count as a use. PyTorch itself replaces the class of a tensor in this way when a lazy parameter
gets its values. Other threads notice nothing except the name of the class.

What it can miss: C++ extensions and compiled code that take a tensor without consulting `__torch_function__`, and
tensors of classes other than Tensor and Parameter, which are not watched. An operation under the user's own `no_grad`
counts as a use. The cost is 0.2 us for each watched tensor.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import RLock, get_ident
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from remat.execute.recomputation import is_recomputing
from remat.frameworks.torch.internals.graph import torch_function_disabled
from remat.pytree import flatten

__all__ = ["PARAMETERS", "PLAIN", "Watch", "unnoticed"]

_DETACHING: Any = (Tensor.detach, torch.detach, Tensor.data.__get__)  # type: ignore[attr-defined]
_lock = RLock()
_watches: dict[int, list["Watch"]] = {}  # by tensor id: all watches that wait for its use


class Watch:
    """Waits for the first use of some tensors in the thread that created it, until `end`.

    It counts uses in recomputations if it was created in one, else uses outside of them; with `everywhere`, both. With
    `flowing`, uses count only through which a gradient could flow: not those under `no_grad`, and not `detach`.
    """

    def __init__(self, tensors: Iterable[Tensor], *, everywhere: bool = False, flowing: bool = False) -> None:
        self.used: list[Tensor] = []
        self.flowing = flowing
        self._thread, self._recomputing = get_ident(), None if everywhere else is_recomputing()
        self._waiting = {id(tensor): tensor for tensor in tensors if type(tensor) in _WATCHED or _is_watched(tensor)}
        # Two threads may watch the same parameter: its class is restored only when the last of them lets go.
        with _lock:
            for tensor in self._waiting.values():
                _watches.setdefault(id(tensor), []).append(self)
                tensor.__class__ = _WATCHED.get(type(tensor), type(tensor))

    def end(self) -> None:
        """Stop waiting, and give the tensors their classes back."""
        for tensor in list(self._waiting.values()):
            self._let_go(tensor)

    def note(self, tensor: Tensor) -> None:
        """Note the use of a tensor, if it is in this thread and the first."""
        # A step that differentiates itself may cause an enclosing segment to be recomputed, which uses what the step
        # does not.
        if self._recomputing is not None and is_recomputing() != self._recomputing:
            return
        if self._thread == get_ident() and id(tensor) in self._waiting:
            self.used.append(tensor)
            self._let_go(tensor)

    def _let_go(self, tensor: Tensor) -> None:
        with _lock:
            del self._waiting[id(tensor)]
            watches = _watches[id(tensor)]
            watches.remove(self)
            if not watches:
                del _watches[id(tensor)]
                tensor.__class__ = Parameter if isinstance(tensor, _WatchedParameter) else Tensor


def unnoticed() -> AbstractContextManager[None]:
    """A context whose operations do not count as uses, such as copying a tensor in order to restore it."""
    # Nearly always nothing is watched, and there is nothing to turn off.
    return torch_function_disabled() if _watches else nullcontext()


def _is_watched(value: object) -> bool:
    return isinstance(value, _Watched)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a PyTorch function that has a watched argument."""
    if isinstance(function, FunctionType):
        # It is written in Python and may use other watched tensors inside, which are only noted if it runs as usual.
        _note_all(args, kwargs, flows=torch.is_grad_enabled())
        if not any(map(_is_watched, flatten((args, kwargs))[0])):
            return function(*args, **kwargs)
    # Otherwise the call would return to `__torch_function__`, since its arguments are still watched.
    with torch_function_disabled():
        result = function(*args, **kwargs)
    # A function that returns no tensor is a getter, through which no gradient flows.
    results = result if isinstance(result, tuple | list) else (result,)
    if any(isinstance(item, Tensor) for item in results):
        numbers = any(isinstance(item, Tensor) and (item.is_floating_point() or item.is_complex()) for item in results)
        flows = numbers and function not in _DETACHING and torch.is_grad_enabled()
        _note_all(args, kwargs, flows=flows)
    return result


def _note_all(args: tuple[Any, ...], kwargs: dict[str, Any], *, flows: bool) -> None:
    for tensor in filter(_is_watched, flatten((args, kwargs))[0]):
        for watch in list(_watches.get(id(tensor), ())):
            if flows or not watch.flowing:
                watch.note(tensor)


class _Watched:
    __slots__ = ()  # keeps the layout of the class that it is mixed into, so that `__class__` can be assigned

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        return _call(func, args, kwargs or {})


class _WatchedTensor(_Watched, Tensor): ...


class _WatchedParameter(_Watched, Parameter): ...


_WATCHED: dict[type, type] = {Tensor: _WatchedTensor, Parameter: _WatchedParameter}
PARAMETERS = (Parameter, _WatchedParameter)
PLAIN = (*_WATCHED, *_WATCHED.values())  # tensor classes that are not a user's or a library's

"""What a segment draws on beside its arguments: tensors, random generators, and the buffers of modules that train.

In: a function and its arguments. Out: sources to be replayed, and the places that hold tensors, to be filled with them
again, and the cells that the function reads, as they are now.
Every segment asks, so library modules are only asked for buffers and for what is set on them; the closures of
functions, objects and the user's own modules are searched.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import parameter as parameters

from remat.closures.capture import BaseCaptureFilter, ConvertedClosure
from remat.closures.references import ItemRef, Reference, is_library
from remat.execute.rng_state import ReplayableState
from remat.frameworks.torch.graph import DifferentiableTensors
from remat.frameworks.torch.replayable_state import BufferState, GeneratorState
from remat.frameworks.torch.saved_tensors import storage_id

__all__ = ["SegmentClosure"]

_OWN = frozenset(nn.Module().__dict__)  # what every module has
ATOMIC_TYPES: frozenset[type] = frozenset(
    {int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device}
)
_PLAIN = (Tensor, nn.Parameter)  # others, such as shards, are exchanged by those who made them


class SegmentFilter(BaseCaptureFilter):
    """What is looked for in closures: tensors; modules and generators are noted on the way."""

    opaque_types: ClassVar[tuple[type, ...]] = (*DifferentiableTensors.opaque_types, nn.Module)
    atomic_types: ClassVar[frozenset[type]] = ATOMIC_TYPES

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.generators: list[torch.Generator] = []

    def accepts(self, leaf: Any) -> bool:
        """Whether it is a tensor; modules and generators are noted."""
        if isinstance(leaf, nn.Module):
            self.modules.append(leaf)
        elif isinstance(leaf, torch.Generator):
            self.generators.append(leaf)
        return isinstance(leaf, Tensor) and not _is_lazy(leaf)

    def visit(self, value: Any, name: str) -> None:
        """Methods and partials of modules lead to them."""
        if isinstance(value, MethodType):
            self.accepts(value.__self__)
        elif isinstance(value, partial):
            self.accepts(value.func)


class SegmentClosure:
    """The sources of a segment, the tensors that it finds, and `rebind`, which puts tensors where these were."""

    def __init__(self, fn: Callable[..., Any], arguments: Iterable[Any], tensors: Sequence[Tensor]) -> None:
        things, self._captured = SegmentFilter(), list[tuple[ConvertedClosure, list[int]]]()
        self.tensors: list[Tensor] = []  # for the caller, who takes them away
        self._numbers: dict[int, int] = {}
        odd = [leaf for leaf in arguments if type(leaf) not in ATOMIC_TYPES]
        for leaf in odd:
            things.accepts(leaf)
        waiting = [leaf for leaf in odd if not isinstance(leaf, SegmentFilter.opaque_types)]
        if isinstance(fn, nn.Module):
            things.modules.append(fn)
        else:
            waiting.insert(0, fn)
        modules: dict[int, nn.Module] = {}
        private: list[ReplayableState] = []
        while waiting or things.modules:
            if waiting:
                found = ConvertedClosure(things, waiting[0], *waiting[1:])
                private += found.replayable_states
                self._captured.append((found, [self._number(box) for box in found.take_values()]))
            for each in waiting:
                if isinstance(each, _ModuleAttributes):
                    dict.clear(each.__dict__)  # what it was made with, which is let go
            roots, things.modules = things.modules, []
            waiting = list(_new_things(roots, modules))
        self._training = [(module, module.training) for module in modules.values()]
        self._registered: list[tuple[dict[str, Any], str, int]] = [
            (held, name, self._number(tensor))
            for module in modules.values()
            for held in (module._parameters, module._buffers)
            for name, tensor in held.items()
            if tensor is not None and not _is_lazy(tensor)
        ]
        del self._numbers
        self.lazy = any(
            _is_lazy(each) for m in modules.values() for each in (*m._parameters.values(), *m._buffers.values())
        )
        gathering = [m for m in modules.values() if m.training and any(b is not None for b in m._buffers.values())]
        self.buffers = {
            storage_id(buffer)
            for module in gathering
            for buffer in module._buffers.values()
            if buffer is not None and not _is_lazy(buffer)
        }
        unique = {id(each): each for each in things.generators}
        self.replayable_states: list[ReplayableState] = [
            *map(GeneratorState, _global_generators(tensors)),
            *map(GeneratorState, unique.values()),
            *_unique(private),
            *map(BufferState, gathering),
        ]

    def _number(self, tensor: Tensor) -> int:
        number = self._numbers.get(id(tensor))
        if number is None:
            number = self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return number

    @contextmanager
    def rebind(self, values: Sequence[Tensor]) -> Iterator[None]:
        """A block in which these are where the tensors were, and all else is where it was when the segment was called.

        After it everything is as it was before: what a function writes when it is run again is forgotten.
        """
        before: list[tuple[Reference, Any]] = []
        autocast = [(module, module.training) for module, training in self._training if module.training != training]
        places = [captured.references for captured, _ in self._captured]
        for found in places:
            before += [(place.reference, place.reference.get()) for place in found]
        try:
            for module, training in autocast:
                module.training = not training
            for held, name, number in self._registered:
                now, then = held.get(name), values[number]
                if now is not then and type(then) in _PLAIN and (now is None or type(now) in _PLAIN):
                    before.append((ItemRef(held, name), ItemRef(held, name).get()))
                    held[name] = then
            with _all_bound([(captured, [values[n] for n in numbers]) for captured, numbers in self._captured]):
                yield
        finally:
            for slot, value in reversed(before):
                if slot.get() is not value:
                    slot.put(value)
            for (captured, _), found in zip(self._captured, places, strict=True):
                captured.references = found
            for module, training in autocast:
                module.training = training


class _SetOn(dict[str, Any]):
    """What is set on a module, as a dict whose items are put there."""

    def __init__(self, owner: dict[str, Any], chosen: dict[str, Any]) -> None:
        super().__init__(chosen)
        self.owner = owner

    def __getitem__(self, key: str) -> Any:
        return self.owner[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.owner[key] = value

    def pop(self, key: str, *default: Any) -> Any:
        """Take an item away from the module."""
        return self.owner.pop(key, *default)


class _ModuleAttributes:
    """Stands for a module: an object with only those of its attributes that are looked at."""

    def __init__(self, owner: dict[str, Any], chosen: dict[str, Any]) -> None:
        self.__dict__ = _SetOn(owner, chosen)


def _is_lazy(tensor: Tensor | None) -> bool:
    """Whether a tensor gets its shape when its module is first run."""
    return tensor is not None and parameters.is_lazy(tensor)


def _new_things(roots: list[nn.Module], known: dict[int, nn.Module]) -> Iterator[Any]:
    """What is to be looked into below modules that are not known yet."""
    for module in (module for root in roots for module in root.modules()):
        if id(module) in known:
            continue
        known[id(module)] = module
        held = module.__dict__
        if len(held) > len(_OWN):
            set_on = {k: v for k, v in held.items() if type(v) not in ATOMIC_TYPES and k not in _OWN}
            if set_on:
                yield _ModuleAttributes(held, set_on)
        if module._forward_hooks or module._forward_pre_hooks:
            yield SimpleNamespace(hooks=[*module._forward_hooks.values(), *module._forward_pre_hooks.values()])
        if not is_library(type(module).__module__):
            yield type(module)


def _global_generators(tensors: Sequence[Tensor]) -> list[torch.Generator]:
    """That of the CPU, and those of the CUDA devices that the segment is on."""
    found = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices = {tensor.device.index for tensor in tensors if tensor.is_cuda} | {torch.cuda.current_device()}
        found += [torch.cuda.default_generators[index] for index in sorted(devices)]
    return found


def _unique(replayable_states: list[ReplayableState]) -> list[ReplayableState]:
    """Each generator once."""
    return list({id(getattr(source, "generator", source)): source for source in replayable_states}.values())


@contextmanager
def _all_bound(captured: Sequence[tuple[ConvertedClosure, list[Tensor]]]) -> Iterator[None]:
    if not captured:
        yield
        return
    (first, values), *rest = captured
    with first.rebind(values), _all_bound(rest):
        yield

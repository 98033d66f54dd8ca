"""Everything a checkpointed function reaches through closures and modules: tensors, random generators, buffers.

In: a function and its arguments. Out: the tensors that it can reach, the references to put their values into when it
is recomputed, and the state to replay. This runs at every call of a segment, so it must be cheap: modules of libraries
are only asked for parameters, buffers, hooks and attributes that were set on them; closures are searched for functions,
for objects, and for modules whose class the user wrote.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from remat.closures.capture import ConvertedClosure
from remat.closures.capture_filter import BaseCaptureFilter
from remat.closures.references import ItemRef, Reference, is_library
from remat.execute.rng_state import ReplayableState
from remat.frameworks.torch.capture_filter import DifferentiableTensors
from remat.frameworks.torch.modules import forward_hooks, is_uninitialized, registered_buffers, registered_parameters
from remat.frameworks.torch.replayable_state import BufferState, GeneratorState, global_generators
from remat.frameworks.torch.saved_tensors import comparable_storage

__all__ = ["SegmentClosure"]

_OWN = frozenset(nn.Module().__dict__)  # attributes that every module has
ATOMIC_TYPES: frozenset[type] = frozenset(
    {int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device}
)
_PLAIN = (Tensor, nn.Parameter)  # subclasses, such as sharded parameters, are replaced by the library that made them


class SegmentFilter(BaseCaptureFilter):
    """Accepts tensors; notes the modules and generators that are found on the way."""

    opaque_types: ClassVar[tuple[type, ...]] = (*DifferentiableTensors.opaque_types, nn.Module)
    atomic_types: ClassVar[frozenset[type]] = ATOMIC_TYPES

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.generators: list[torch.Generator] = []

    def accepts(self, leaf: Any) -> bool:
        """Whether a leaf is a tensor that has values; modules and generators are noted."""
        if isinstance(leaf, nn.Module):
            self.modules.append(leaf)
        elif isinstance(leaf, torch.Generator):
            self.generators.append(leaf)
        return isinstance(leaf, Tensor) and not is_uninitialized(leaf)

    def visit(self, value: Any, name: str) -> None:
        """Note the module behind a bound method or a partial."""
        if isinstance(value, MethodType):
            self.accepts(value.__self__)
        elif isinstance(value, partial):
            self.accepts(value.func)


class SegmentClosure:
    """The tensors that a segment reaches other than by its arguments, and the state that its recomputation replays.

    `tensors` are in the order in which `rebind` takes their values; the caller takes the list away, so that what the
    segment must not keep alive is not kept alive here.
    """

    def __init__(self, fn: Callable[..., Any], arguments: Iterable[Any], inputs: Sequence[Tensor]) -> None:
        self.tensors: list[Tensor] = []
        self._indices: dict[int, int] = {}
        self._closures: list[tuple[ConvertedClosure, list[int]]] = []  # with the indices of their tensors
        search = SegmentFilter()
        modules, private_states = self._search(search, fn, arguments)
        self._training = [(module, module.training) for module in modules]
        registries = [
            registry for module in modules for registry in (registered_parameters(module), registered_buffers(module))
        ]
        self._registered: list[tuple[dict[str, Any], str, int]] = [
            (registry, name, self._index_of(tensor))
            for registry in registries
            for name, tensor in registry.items()
            if tensor is not None and not is_uninitialized(tensor)
        ]
        del self._indices
        self.lazy = any(is_uninitialized(tensor) for registry in registries for tensor in registry.values())
        in_training = [module for module in modules if module.training and _has_buffers(module)]
        self.buffers = {
            comparable_storage(buffer)
            for module in in_training
            for buffer in registered_buffers(module).values()
            if buffer is not None and not is_uninitialized(buffer)
        }
        generators = {id(generator): generator for generator in search.generators}
        self.replayable_states: list[ReplayableState] = [
            *global_generators(_cuda_devices(inputs)),
            *map(GeneratorState, generators.values()),
            *_unique(private_states),
            *map(BufferState, in_training),
        ]

    def _search(
        self, search: SegmentFilter, fn: Callable[..., Any], arguments: Iterable[Any]
    ) -> tuple[list[nn.Module], list[ReplayableState]]:
        """Convert the closures of the function, its arguments and their modules; the modules and private generators.

        Closures lead to modules, and attributes and hooks of modules to closures, until nothing new is found.
        """
        objects = [leaf for leaf in arguments if type(leaf) not in ATOMIC_TYPES]
        for leaf in objects:
            search.accepts(leaf)
        waiting = [leaf for leaf in objects if not isinstance(leaf, SegmentFilter.opaque_types)]
        if isinstance(fn, nn.Module):
            search.modules.append(fn)
        else:
            waiting.insert(0, fn)
        modules: dict[int, nn.Module] = {}
        private_states: list[ReplayableState] = []
        while waiting or search.modules:
            if waiting:
                closure = ConvertedClosure(search, waiting[0], *waiting[1:])
                private_states += closure.replayable_states
                self._closures.append((closure, [self._index_of(tensor) for tensor in closure.take_values()]))
            for value in waiting:
                if isinstance(value, _ModuleAttributes):
                    dict.clear(value.__dict__)  # its copies of the attributes; the module keeps its own
            roots, search.modules = search.modules, []
            waiting = list(_searchable(roots, modules))
        return list(modules.values()), private_states

    def _index_of(self, tensor: Tensor) -> int:
        index = self._indices.get(id(tensor))
        if index is None:
            index = self._indices[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return index

    @contextmanager
    def rebind(self, values: Sequence[Tensor]) -> Iterator[None]:
        """A block in which these values are where the tensors were, and modules are in the mode they were in.

        After it everything is as it was before the block: what the function writes when it is recomputed is undone.
        """
        before: list[tuple[Reference, Any]] = []
        toggled = [(module, module.training) for module, training in self._training if module.training != training]
        references = [closure.references for closure, _ in self._closures]
        for captured in references:
            before += [(place.reference, place.reference.get()) for place in captured]
        try:
            for module, training in toggled:
                module.training = not training
            for registry, name, index in self._registered:
                now, value = registry.get(name), values[index]
                if now is not value and type(value) in _PLAIN and (now is None or type(now) in _PLAIN):
                    before.append((ItemRef(registry, name), ItemRef(registry, name).get()))
                    registry[name] = value
            with _all_bound([(closure, [values[index] for index in indices]) for closure, indices in self._closures]):
                yield
        finally:
            for reference, content in reversed(before):
                if reference.get() is not content:
                    reference.put(content)
            for (closure, _), captured in zip(self._closures, references, strict=True):
                closure.references = captured
            for module, training in toggled:
                module.training = training


class _AttributeView(dict[str, Any]):
    """Some attributes of a module; items are read from and written to the module's own dict."""

    def __init__(self, owner: dict[str, Any], chosen: dict[str, Any]) -> None:
        super().__init__(chosen)
        self.owner = owner

    def __getitem__(self, key: str) -> Any:
        return self.owner[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.owner[key] = value

    def pop(self, key: str, *default: Any) -> Any:
        """Delete an attribute of the module."""
        return self.owner.pop(key, *default)


class _ModuleAttributes:
    """A stand-in for a module that has only those of its attributes that are searched."""

    def __init__(self, owner: dict[str, Any], chosen: dict[str, Any]) -> None:
        self.__dict__ = _AttributeView(owner, chosen)


def _searchable(roots: list[nn.Module], visited: dict[int, nn.Module]) -> Iterator[Any]:
    """What to search for closures in these modules and below: attributes, hooks, classes; each module once."""
    for module in (module for root in roots for module in root.modules()):
        if id(module) in visited:
            continue
        visited[id(module)] = module
        attributes = module.__dict__
        if len(attributes) > len(_OWN):
            chosen = {k: v for k, v in attributes.items() if type(v) not in ATOMIC_TYPES and k not in _OWN}
            if chosen:
                yield _ModuleAttributes(attributes, chosen)
        if hooks := forward_hooks(module):
            yield SimpleNamespace(hooks=hooks)
        if not is_library(type(module).__module__):
            yield type(module)


def _cuda_devices(tensors: Sequence[Tensor]) -> list[int]:
    """The CUDA devices that a segment may use: those of its inputs, and the current one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    return sorted({tensor.device.index for tensor in tensors if tensor.is_cuda} | {torch.cuda.current_device()})


def _has_buffers(module: nn.Module) -> bool:
    return any(buffer is not None for buffer in registered_buffers(module).values())


def _unique(states: list[ReplayableState]) -> list[ReplayableState]:
    """Each generator once."""
    return list({id(getattr(state, "generator", state)): state for state in states}.values())


@contextmanager
def _all_bound(closures: Sequence[tuple[ConvertedClosure, list[Tensor]]]) -> Iterator[None]:
    if not closures:
        yield
        return
    (first, values), *rest = closures
    with first.rebind(values), _all_bound(rest):
        yield

"""What a segment draws on beside its arguments: private random generators, and the buffers of modules that train.

In: a function and its arguments. Out: sources to be replayed, and the cells that the function reads, as they are now.
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

from remat.execute.captured import Captured
from remat.execute.rng import Source
from remat.execute.slots import is_library
from remat.frameworks.torch.captured import Tensors
from remat.frameworks.torch.sources import Buffers, TorchGenerator

__all__ = ["Drawn"]

_OWN = frozenset(nn.Module().__dict__)  # what every module has
_DULL: frozenset[type] = frozenset(
    {int, float, bool, complex, str, bytes, type(None), Tensor, nn.Parameter, torch.dtype, torch.device}
)


class _Things:
    """What is looked for in closures: modules and generators."""

    opaque: ClassVar[tuple[type, ...]] = (*Tensors.opaque, nn.Module)
    plain: ClassVar[frozenset[type]] = _DULL

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.generators: list[torch.Generator] = []

    def __bool__(self) -> bool:
        return True

    @staticmethod
    def unpack(value: Any) -> Any:
        return value

    def has(self, leaf: Any) -> bool:
        """Nothing is lifted out; modules and generators are noted."""
        if isinstance(leaf, nn.Module):
            self.modules.append(leaf)
        elif isinstance(leaf, torch.Generator):
            self.generators.append(leaf)
        return False

    def meet(self, value: Any, name: str) -> None:
        """Methods and partials of modules lead to them."""
        if isinstance(value, MethodType):
            self.has(value.__self__)
        elif isinstance(value, partial):
            self.has(value.func)


class Drawn:
    """The sources of a segment, and `bind`, which gives cells back what they held."""

    def __init__(self, fn: Callable[..., Any], arguments: Iterable[Any], tensors: Sequence[Tensor]) -> None:
        things, self._captured = _Things(), list[Captured]()
        odd = [leaf for leaf in arguments if type(leaf) not in _DULL]
        for leaf in odd:
            things.has(leaf)
        waiting = [leaf for leaf in odd if not isinstance(leaf, _Things.opaque)]
        if isinstance(fn, nn.Module):
            things.modules.append(fn)
        else:
            waiting.insert(0, fn)
        modules: dict[int, nn.Module] = {}
        private: list[Source] = []
        while waiting or things.modules:
            if waiting:
                found = Captured(things, waiting[0], *waiting[1:])
                private += found.sources
                self._captured.append(found)
            roots, things.modules = things.modules, []
            waiting = list(_new_things(roots, modules))
        gathering = [m for m in modules.values() if m.training and any(b is not None for b in m._buffers.values())]
        unique = {id(each): each for each in things.generators}
        self.sources: list[Source] = [
            *map(TorchGenerator, _global_generators(tensors)),
            *map(TorchGenerator, unique.values()),
            *_unique(private),
            *map(Buffers, gathering),
        ]

    @contextmanager
    def bind(self) -> Iterator[None]:
        """A block in which cells that nobody writes hold what they held when the segment was called."""
        with _all_bound(self._captured):
            yield


def _new_things(roots: list[nn.Module], known: dict[int, nn.Module]) -> Iterator[Any]:
    """What is to be looked into below modules that are not known yet."""
    for module in (module for root in roots for module in root.modules()):
        if id(module) in known:
            continue
        known[id(module)] = module
        held = module.__dict__
        if len(held) > len(_OWN):
            set_on = {k: v for k, v in held.items() if type(v) not in _DULL and k not in _OWN}
            if set_on:
                yield SimpleNamespace(**set_on)
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


def _unique(sources: list[Source]) -> list[Source]:
    """Each generator once."""
    return list({id(getattr(source, "generator", source)): source for source in sources}.values())


@contextmanager
def _all_bound(captured: Sequence[Captured]) -> Iterator[None]:
    if not captured:
        yield
        return
    with captured[0].bind(None), _all_bound(captured[1:]):
        yield

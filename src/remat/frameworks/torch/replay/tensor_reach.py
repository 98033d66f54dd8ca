"""What a function reaches on PyTorch: modules, tensors and generators, besides Python's containers and variables.

Modules are searched as a whole, with their hooks, children and attributes. For modules whose class the user wrote,
objects and containers in attributes are searched if the attribute's name occurs in reached code. Modules of
torch.distributed and of compilers manage their own state: only their tensors and children are taken. One module takes
about 3 us.
"""

from collections.abc import Iterable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from remat.closures.captures import Captures
from remat.closures.kinds import Kind, kind_of
from remat.closures.libraries import add_users_package, is_always_library, is_library
from remat.closures.reach import Reach
from remat.frameworks.torch.internals.fsdp import is_reachable_fsdp1
from remat.frameworks.torch.internals.functorch import is_wrapped, wrapped_by_active_transform
from remat.frameworks.torch.internals.modules import (
    OWN,
    children_of,
    is_compiled,
    is_uninitialized,
    parts_of,
    registered_tensors,
)

__all__ = ["Place", "TorchReach", "accepts", "is_made"]

Place = tuple[Any, Any]  # a container and a key, or a Reference and None; None where a value cannot be replaced

_ATOMIC = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, Node)
_TAKEN = (Tensor, nn.Module, torch.Generator)
_BACKWARD = ("backward", "vjp")
_SELF_MANAGED = ("torch.distributed", "torch.nn.parallel", "torch._dynamo", "torch.jit")
_torch_kinds: dict[type, Kind] = {}


def _kind_of(cls: type) -> Kind:
    kind = _torch_kinds.get(cls)
    if kind is None:
        kind = Kind.TAKEN if issubclass(cls, _TAKEN) else Kind.ATOMIC if issubclass(cls, _ATOMIC) else kind_of(cls)
        if is_always_library(cls.__module__):  # do not keep a user's class alive here
            _torch_kinds[cls] = kind
    return kind


def is_made(tensor: Tensor) -> bool:
    """Whether a tensor is computed from others that require a gradient, so that it has a graph."""
    return tensor.requires_grad and not tensor.is_leaf


def accepts(leaf: Any) -> bool:
    """Whether a leaf is a tensor that requires a gradient, or that torch.func differentiates or maps."""
    if not isinstance(leaf, Tensor):
        return False
    # A wrapped tensor requires a gradient at the level of its transform, which `requires_grad` does not show here.
    return wrapped_by_active_transform(leaf) if is_wrapped(leaf) else leaf.requires_grad


class TorchReach(Reach):
    """One search; `made` has the places of tensors with a graph, `tensors` all other tensors, each once.

    With `captures`, as for loops, the places of all tensors that require a gradient are noted there.
    """

    def __init__(self, captures: Captures | None = None) -> None:
        super().__init__()
        self.captures = captures
        self.modules: list[nn.Module] = []
        self.compiled = False  # whether anything is compiled
        self.registries: list[dict[str, Any]] = []  # the modules' own parameters and buffers
        self.tensors: list[Tensor] = []
        self.made: list[tuple[Tensor, Place]] = []
        self.statistics: list[Tensor] = []  # buffers of modules in training, which are written into whatever their size
        self.torch_generators: list[torch.Generator] = []
        self._users: dict[type, bool] = {}  # whether a module class is the user's
        self.lazy = False  # whether a module creates parameters at its first call
        self.fsdp1 = False  # whether a module is wrapped by FSDP1

    def kind(self, cls: type) -> Kind:
        """What to do with values of a type."""
        return _kind_of(cls)

    def take(self, value: Any, owner: Any, key: Any) -> None:
        """Note a tensor or a generator, or search a module."""
        if type(value) is nn.Parameter and self.captures is None and value.is_leaf:  # nearly all that a segment reaches
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self.tensors.append(value)
            return
        if isinstance(value, Tensor):
            if self.captures is not None and self.captures.accepts(value):
                self.captures.add(owner, key)
            if is_made(value):
                self.made.append((value, (owner, key)))
            elif id(value) not in self._seen:
                self._seen[id(value)] = value
                self._take_tensor(value)
        elif id(value) not in self._seen:
            self._seen[id(value)] = value
            if isinstance(value, nn.Module):
                self._enter_modules(value)
            else:
                self.torch_generators.append(value)

    def runs(self, cls: type, method: str) -> bool:
        """Whether a method may run; the backward of a custom function does in loops, but not in recomputed segments."""
        if self.captures is None and method in _BACKWARD and issubclass(cls, torch.autograd.Function):
            return False
        return super().runs(cls, method)

    def meet_constructors(self, cls: type) -> None:
        """Search what runs when an object is made; modules are named by `super()`, and made before steps run."""
        if not issubclass(cls, nn.Module):
            super().meet_constructors(cls)

    def is_data(self, value: Any) -> bool:
        """Whether a value is a number, a string or a tensor without a gradient."""
        kind = _kind_of(type(value))
        return kind in (Kind.ATOMIC, Kind.ARRAY) or (isinstance(value, Tensor) and not accepts(value))

    def _visit_function(self, function: FunctionType) -> None:
        self.compiled = self.compiled or is_compiled(function)
        super()._visit_function(function)

    def take_members(self, value: Any, names: Iterable[str]) -> bool:
        """Search these attributes and children of a module; False if one of them is a method or a property."""
        if not isinstance(value, nn.Module) or _is_self_managed(type(value)):
            return False
        attributes = vars(value)
        parts = parts_of(attributes)
        spaces = (attributes, *parts[:3])
        places = [(space, name) for name in names for space in spaces if name in space]
        if len({name for _, name in places}) < len(set(names)):
            return False
        self._add_own(attributes, parts)
        for space, name in places:
            self.meet(space[name], space, name)
        return True

    def _take_tensor(self, tensor: Tensor) -> None:
        if is_uninitialized(tensor):
            self.lazy = True
        else:
            self.tensors.append(tensor)

    def _enter_modules(self, root: nn.Module) -> None:
        waiting, seen = [root], self._seen
        while waiting:
            module = waiting.pop()
            self.modules.append(module)
            for child in children_of(module):
                if child is not None and id(child) not in seen:
                    seen[id(child)] = child
                    waiting.append(child)
            if _is_self_managed(type(module)):
                self.compiled = self.compiled or is_compiled(module)
                self.fsdp1 = is_reachable_fsdp1(module) or self.fsdp1
                for tensor in registered_tensors(module):
                    self.meet(tensor)
            else:
                self._enter(module)

    def _enter(self, module: nn.Module) -> None:
        """Search one module, without its children."""
        attributes = module.__dict__
        parts = parts_of(attributes)
        self._add_own(attributes, parts)
        for registry in parts[:2]:
            for name, tensor in registry.items():
                if tensor is not None:
                    self.take(tensor, registry, name)
        if parts[1] and attributes["training"]:
            self.statistics += [buffer for buffer in parts[1].values() if buffer is not None]
        if any(parts[3:]):
            for hook in (hook for hooks in parts[3:] for hook in hooks.values()):
                self.meet(hook)
        is_users = self._is_users(type(module))
        if len(attributes) > len(OWN):
            for name, value in attributes.items():
                if name not in OWN and (kind := _kind_of(type(value))) is not Kind.ATOMIC:
                    self.meet_attribute(name, value, attributes, named=is_users and kind is not Kind.TAKEN)
        if is_users:  # the class of a planned block has the user's as its base, and a method that compilers ignore
            self.meet_class(vars(type(module)).get("_remat_plain", type(module)))

    def _is_users(self, cls: type[nn.Module]) -> bool:
        """Whether a module class is the user's, that is, not from a framework or a library that belongs to it."""
        is_users = self._users.get(cls)
        if is_users is None:
            add_users_package(cls)
            is_users = self._users[cls] = not is_library(cls.__module__)
        return is_users

    def _add_own(self, attributes: dict[str, Any], parts: tuple[dict[Any, Any], ...]) -> None:
        """Add the dicts of a module: attributes, children, hooks and registries, without their contents."""
        self.containers.append(attributes)
        self.containers += parts[2:]
        self.registries += parts[:2]


def _is_self_managed(cls: type) -> bool:
    return cls.__module__.startswith(_SELF_MANAGED)

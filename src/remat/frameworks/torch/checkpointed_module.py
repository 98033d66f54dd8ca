"""A module that is recomputed in the backward: a wrapper that leaves no trace in the names of what is in it."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.checkpoint as theirs
from torch import nn

from remat.frameworks.torch.checkpoint import checkpoint
from remat.profiling.profiler import recorded_call
from remat.segments import CheckpointOptions

__all__ = ["CheckpointedModule", "checkpoint_module"]

_CHILD = "_remat_dropped"


class CheckpointedModule(nn.Module):
    """The module, each call of which is a segment; its parameters, buffers, saved state and attributes."""

    def __init__(self, module: nn.Module, options: CheckpointOptions) -> None:
        super().__init__()
        self.__dict__["_terms"], self.__dict__["_prefix"] = options, ""
        self._modules[_CHILD] = module
        self.training = module.training
        self.register_load_state_dict_post_hook(_name_plainly)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns; what its backward needs is recomputed."""
        module = self._modules[_CHILD]
        assert module is not None
        if torch.compiler.is_compiling():  # the compiler knows PyTorch's own segments, and sees into them
            return theirs.checkpoint(module, *args, use_reentrant=False, **kwargs)
        with recorded_call("drop", module.forward) as call:
            return checkpoint(module, args, kwargs, self._terms, call)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):  # such as __deepcopy__, which would make a copy of the module alone
                raise
            module = self.__dict__.get("_modules", {}).get(_CHILD)
            if module is None:  # while it is made or unpickled
                raise
            return getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in self.__dict__ or hasattr(type(self), name)  # such as __class__, which libraries change
        if own or _CHILD not in self.__dict__.get("_modules", {}):
            super().__setattr__(name, value)
        else:
            setattr(self._modules[_CHILD], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._modules[_CHILD], name)

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """Add a buffer to the module."""
        self._inside.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """Add a parameter to the module."""
        self._inside.register_parameter(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        """Add a module to the module."""
        self._inside.add_module(*args, **kwargs)

    def register_module(self, *args: Any, **kwargs: Any) -> None:
        """Add a module to the module."""
        self._inside.add_module(*args, **kwargs)

    @property
    def _inside(self) -> nn.Module:
        module = self._modules[_CHILD]
        assert module is not None
        return module

    def __getitem__(self, key: Any) -> Any:
        return self._modules[_CHILD][key]  # type: ignore[index]

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """The wrapper, then the module and all below it, by the names that they have without the wrapper."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            module = self._modules[_CHILD]
            assert module is not None
            yield from module.named_modules(memo, prefix, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state of the module, as without the wrapper."""
        module = self._modules[_CHILD]
        assert module is not None
        return module.state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Nothing is the wrapper's own; PyTorch then looks for the module under the name that it has here."""
        self.__dict__["_prefix"] = prefix
        for key in [key for key in state_dict if key.startswith(prefix)]:
            state_dict[f"{prefix}{_CHILD}.{key[len(prefix) :]}"] = state_dict.pop(key)


def checkpoint_module(module: nn.Module, options: CheckpointOptions) -> CheckpointedModule:
    """The module, recomputed in the backward."""
    return CheckpointedModule(module, options)


def _name_plainly(module: Any, keys: Any) -> None:
    """Missing and unexpected keys are named as without the wrapper."""
    prefix = module.__dict__["_prefix"]
    for names in keys:
        names[:] = [_without(name, prefix) for name in names]


def _without(name: str, prefix: str) -> str:
    inside = f"{prefix}{_CHILD}."
    return prefix + name[len(inside) :] if name.startswith(inside) else name

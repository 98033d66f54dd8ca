"""`remat.drop` of a module: a wrapper around it whose calls are segments, and that changes none of the names inside.

The wrapped module is an ordinary child, named `_remat_dropped`. Parameters, buffers, the state dict, submodules and
attributes have the names that they have without the wrapper: optimizers, checkpoints on disk and FSDP do not see it.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.utils.checkpoint as theirs
from torch import nn

from remat.frameworks.torch.checkpoint import checkpoint
from remat.profiling.profiler import recorded_call
from remat.segments import CheckpointOptions

__all__ = ["CheckpointedModule", "checkpoint_module"]

_CHILD = "_remat_dropped"


class CheckpointedModule(nn.Module):
    """A module, each call of which is a segment; attributes are read from, set on and deleted from the module."""

    def __init__(self, module: nn.Module, options: CheckpointOptions) -> None:
        super().__init__()
        super().add_module(_CHILD, module)
        self.training = module.training
        self.register_load_state_dict_pre_hook(_prefix_keys)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_unprefix_reported_keys)  # type: ignore[no-untyped-call]
        self.__dict__["_prefix"] = ""
        self.__dict__["_options"] = options  # from here on, attributes are the module's

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns; what its backward needs is recomputed."""
        module = self._inside
        if torch.compiler.is_compiling():  # the compiler knows PyTorch's own checkpoint, and traces through it
            return theirs.checkpoint(module, *args, use_reentrant=False, **kwargs)
        with recorded_call("drop", module.forward) as call:
            return checkpoint(module, args, kwargs, self.__dict__["_options"], call)

    @property
    def _inside(self) -> nn.Module:
        return cast(nn.Module, super().__getattr__(_CHILD))

    def _is_complete(self) -> bool:
        """False while the wrapper is made, copied or unpickled: there is no module yet to ask."""
        return "_options" in self.__dict__

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # Without the module's dunders: its __deepcopy__, for one, would make a copy of the module alone.
            if name.startswith("__") or not self._is_complete():
                raise
            return getattr(self._inside, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in self.__dict__ or hasattr(type(self), name)  # such as __class__, which fully_shard replaces
        if own or not self._is_complete():
            super().__setattr__(name, value)
        else:
            setattr(self._inside, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._inside, name)

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

    def __getitem__(self, key: Any) -> Any:
        return self._inside[key]  # type: ignore[index]

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """The wrapper, then the module and all below it, by the names that they have without the wrapper."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self._inside.named_modules(memo, prefix, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state of the module, as without the wrapper."""
        return self._inside.state_dict(*args, **kwargs)


def checkpoint_module(module: nn.Module, options: CheckpointOptions) -> CheckpointedModule:
    """The module, recomputed in the backward."""
    return CheckpointedModule(module, options)


def _prefix_keys(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before loading: put the name of the child into the keys, where PyTorch looks for the state of a child."""
    module.__dict__["_prefix"] = prefix
    for key in [key for key in state_dict if key.startswith(prefix)]:
        state_dict[f"{prefix}{_CHILD}.{key[len(prefix) :]}"] = state_dict.pop(key)


def _unprefix_reported_keys(module: Any, incompatible_keys: Any) -> None:
    """After loading: take the name of the child out of the missing and unexpected keys."""
    prefix = module.__dict__["_prefix"]
    inside = f"{prefix}{_CHILD}."
    for keys in incompatible_keys:
        keys[:] = [prefix + key[len(inside) :] if key.startswith(inside) else key for key in keys]

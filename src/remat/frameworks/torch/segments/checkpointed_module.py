"""`remat.drop` of a module: an object of a subclass of the module's class that shares the module's `__dict__`.

Rule. Parameters, buffers, children, hooks, attributes and flags are those of the module, since both objects have the
same `__dict__`; only the class differs, and all it adds is that calls are segments. So `isinstance`, `len`, names,
state dicts, `functional_call`, parametrizations and `fully_shard` find what they find on the module. The module itself
is unchanged: its calls are plain. The segment is what `forward` computes. Hooks of the dropped module are outside of it
and run once, as FSDP expects; hooks of modules below it are inside and run again. A class with its own `__call__`, a
`forward` that was set on the object, and TorchScript are entered at `__call__`, hooks included.

What it can miss. Code that asks for the exact class (`type(module) is nn.Linear`) finds a subclass with the same name.
A change of class of *one* of the objects afterwards (parametrizations, `fully_shard`) is not seen by the other: apply
it to the dropped module, or before the drop. A copy or a pickle that contains both objects has two dicts with the same
parameters, buffers and children.

Cost. A class for each class and options, an object for each drop, and a function call for each call.
"""

import copy
import copyreg
from collections.abc import Callable
from functools import partial, update_wrapper
from inspect import getattr_static
from types import FunctionType, MethodType
from typing import Any, SupportsIndex, TypeVar, cast

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from remat.errors import ProblemError
from remat.frameworks.compilers import compiled_checkpoint, looks_at_calls, run_uncompiled, traces_segments
from remat.frameworks.torch.internals.fsdp import refuse_fsdp1, share_fsdp_state
from remat.frameworks.torch.segments.checkpoint import checkpoint
from remat.profiling.profiler import recorded_call
from remat.segments import CheckpointOptions

__all__ = ["CheckpointedModule", "checkpoint_module", "entry_of", "method_like"]

M = TypeVar("M", bound=nn.Module)


class CheckpointedModule:
    """Base class of dropped modules, by which `isinstance(module, CheckpointedModule)` recognizes them.

    Copies and pickles are made by the module's class, which may have its own way, and then dropped again.
    """

    _remat_class: type[nn.Module]  # the class of the module
    _remat_options: CheckpointOptions

    def __init_subclass__(cls, **_: object) -> None:
        """Do nothing: a registry of the module's class must not see a second class with the same name."""

    def __copy__(self) -> "CheckpointedModule":
        copied = object.__new__(type(self))
        copied.__setstate__(copy.copy(_plain_view(self)))
        return copied

    def __deepcopy__(self, memo: dict[int, object]) -> "CheckpointedModule":
        copied = object.__new__(type(self))
        memo[id(self)] = copied  # before its contents are copied, which may refer to it
        copied.__setstate__(copy.deepcopy(_plain_view(self), memo))
        return copied

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        if "_remat_class" not in vars(type(self)):  # a library's subclass, which it may not want to be pickled
            return super().__reduce_ex__(protocol)
        # Refer to the class by name only if necessary: that of a GraphModule is local. Objects with slots cannot change
        # class.
        cls = self._remat_class if _slots(self._remat_class) else nn.Module
        return _new_dropped, (cls, self._remat_options), _plain_view(self)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, nn.Module):
            super().__setstate__(state)  # type: ignore[misc]
            return
        if type(state) is not self._remat_class:  # unpickled, or a copy of a GraphModule, which has a class of its own
            object.__setattr__(self, "__class__", _dropped_class(state, self._remat_options))
        _share_contents(state, self)


def checkpoint_module(module: M, options: CheckpointOptions) -> M:
    """The module, recomputed in the backward: a new object with the same contents; a second drop replaces the first."""
    if "_remat_class" in vars(type(module)):
        module = cast(M, _plain_view(cast(CheckpointedModule, module)))
    refuse_fsdp1("remat.drop is given", [module])  # one inside of it is refused when it is called
    try:
        dropped: Any = object.__new__(_dropped_class(module, options))
    except TypeError as error:
        raise ProblemError(
            f"remat.drop cannot make a subclass of {type(module).__qualname__}: {error}. "
            "Call remat.checkpoint(module, ...) where the module is called"
        ) from error
    _share_contents(module, dropped)
    share_fsdp_state(module, dropped)
    return cast(M, dropped)


def _plain_view(dropped: CheckpointedModule) -> nn.Module:
    """The module without the drop: an object of its class with the same contents."""
    module: nn.Module = object.__new__(dropped._remat_class)
    _share_contents(dropped, module)
    return module


def _share_contents(module: object, other: object) -> None:
    """Share the module's `__dict__` with the other object, and copy its `__slots__`, which are not in the dict."""
    object.__setattr__(other, "__dict__", vars(module))
    for name in _slots(type(module)):
        if hasattr(module, name):
            object.__setattr__(other, name, getattr(module, name))


def _slots(cls: type) -> list[str]:
    return cast(list[str], copyreg._slotnames(cls))  # type: ignore[attr-defined]


def _new_dropped(cls: type[nn.Module], options: CheckpointOptions) -> object:
    """A dropped module without contents, for unpickling: the contents may refer to it, and bring their class along."""
    return object.__new__(_subclass(cls, options, "forward"))


def _dropped_class(module: nn.Module, options: CheckpointOptions) -> type:
    """The subclass of the module's class whose calls are segments."""
    return _subclass(type(module), options, entry_of(module))


def entry_of(module: nn.Module) -> str:
    """The method that a segment replaces: `forward`, unless that would miss part of what a call does."""
    cls = type(module)
    calls_forward = getattr_static(cls, "__call__") is nn.Module.__call__ or isinstance(module, torch.fx.GraphModule)
    # What is set on the object takes precedence over the class: its own forward, or code from `module.compile()`.
    is_patched = "forward" in vars(module) or vars(module).get("_compiled_call_impl") is not None
    is_function = isinstance(getattr_static(cls, "forward", None), FunctionType)
    return "forward" if calls_forward and is_function and not is_patched else "__call__"


def _subclass(cls: type[nn.Module], options: CheckpointOptions, entry: str) -> type:
    """The subclass of a class in which the method `entry` is a segment, shared by all modules of the class."""
    for known in type.__subclasses__(cls):  # a cache that keeps no class alive
        if vars(known).get("_remat_options") == options and entry in vars(known):
            return known
    contents: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    contents |= {"_remat_class": cls, "_remat_options": options, entry: _segment_method(cls, entry, options)}
    if issubclass(cls, LazyModuleMixin) and cls.cls_to_become is not None:  # its class after its first call
        contents["cls_to_become"] = _subclass(cls.cls_to_become, options, entry)
    if issubclass(cls, torch.fx.GraphModule):  # it writes the new forward into its class
        contents["recompile"] = lambda self: cast(Any, _plain_view(self)).recompile()
    bases = (cls,) if issubclass(cls, CheckpointedModule) else (CheckpointedModule, cls)
    metaclass: Callable[..., type] = type(cls)
    return metaclass(cls.__name__, bases, contents)


def _segment_method(cls: type[nn.Module], name: str, options: CheckpointOptions) -> Callable[..., object]:
    """The method of a class as a segment; it is looked up at each call, since it may be replaced on the class."""
    run = _run_segment

    def method(self: nn.Module, *args: object, **kwargs: object) -> object:
        return run(getattr(cls, name), self, args, kwargs, options)

    return method_like(getattr(cls, name), cast(FunctionType, method))


def method_like(plain: Callable[..., Any], method: FunctionType) -> Callable[..., Any]:
    """A method with the name, the documentation and the globals of `plain`; it may use only closures of its own.

    TorchScript compiles the source of `plain`, which it finds by `__wrapped__`, with this function's globals.
    """
    if not isinstance(plain, FunctionType):
        return method
    twin = FunctionType(method.__code__, plain.__globals__, plain.__name__, None, method.__closure__)
    return update_wrapper(twin, plain)


def _run_segment(
    plain: Any, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], options: CheckpointOptions
) -> object:
    is_compiling = torch.compiler.is_compiling()
    if is_compiling and traces_segments():  # a partial, since PyTorch 2.11 does not compile `__get__` of a function
        return compiled_checkpoint(partial(plain, module), args, kwargs)
    if is_compiling or looks_at_calls():
        return run_uncompiled(_run_segment, plain, module, args, kwargs, options)
    method: MethodType = plain.__get__(module)
    with recorded_call("drop", method) as call:
        return checkpoint(method, args, kwargs, options, call)

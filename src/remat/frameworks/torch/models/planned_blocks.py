"""Blocks of a model whose calls follow a plan: each module gets, in place, a subclass of its class that does so.

The rule: a call of a block's `forward` is passed to whatever runs the model (`BlockCalls`): a plan, or a measurement.
Without one, as when a block is called alone, it is a plain call. Parameters, buffers, names, hooks, flags, copies and
pickles are those of the module, since only its class changes. Hooks of a block are outside the recomputed part and run
once; those of modules inside it run again.

A module that a model calls several times, as ALBERT does, is one block with several calls: a plan is for the *calls* of
blocks, in the order in which the model makes them. Some may be left out, as by layer drop; calls in another order are
separate segments.
"""

import copyreg
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, Protocol, SupportsIndex, cast

import torch
from torch import nn

from remat.errors import ProblemError
from remat.execute.nested_ranges import Item, Range
from remat.execute.recomputation import variable_set
from remat.frameworks.compilers import compiled_checkpoint, run_uncompiled, traces_segments
from remat.frameworks.torch.internals.saved_tensor_hooks import has_saved_tensor_hooks
from remat.frameworks.torch.lineage.lineage import dropped_results, run_by_lineage
from remat.frameworks.torch.models.block_ranges import BlockOutput, RangeRun, versions_of
from remat.frameworks.torch.models.compiled_blocks import CompiledBlock, CompileOptions, compiled_block
from remat.frameworks.torch.replay.known_reach import ReachCache
from remat.frameworks.torch.segments.checkpoint import CheckpointFrame, checkpoint
from remat.frameworks.torch.segments.checkpointed_module import entry_of, method_like
from remat.planners import Plan
from remat.profiling.profiler import recorded_call
from remat.pytree import flatten
from remat.segments import CheckpointOptions, display_name

__all__ = [
    "Block",
    "BlockCalls",
    "PlannedCalls",
    "are_handled",
    "block_calls",
    "model_forward",
    "plain_module",
    "planned_module",
    "to_restore",
]

_OPTIONS = CheckpointOptions()
_MARKS = ("_remat_forward", "_remat_block")


class BlockCalls(Protocol):
    """Handles the calls of blocks while a model runs."""

    model: str  # the token that the model's blocks share

    def call(self, block: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a block with these arguments."""


class Block(NamedTuple):
    """The number of a block, and the model that it belongs to."""

    number: int
    model: str
    is_kept: bool  # whether all of its calls are recorded, for compilers
    compiled: CompileOptions | None = None


_calls: ContextVar[BlockCalls | None] = ContextVar("block_calls", default=None)


def block_calls(calls: BlockCalls | None) -> variable_set[BlockCalls | None]:
    """A context in which `calls` handles the calls of a model's blocks."""
    return variable_set(_calls, calls)


def are_handled(model: str) -> bool:
    """Whether the calls of a model's blocks are already handled."""
    calls = _calls.get()
    return calls is not None and calls.model == model


class PlannedCalls:
    """One forward of a model: each call of a block is recorded, or part of a range, according to the plan.

    When it is recorded, results with the names in `remade` are not held (lineage.py). `caches` have what the blocks
    reach (known_reach.py).

    A `given` plan must know all blocks; one made from a sample may not have seen a block that is sometimes left out.
    """

    def __init__(
        self,
        model: str,
        order: tuple[int, ...],
        items: tuple[Item, ...],
        sharded: Sequence[Sequence[nn.Module]],
        remade: Sequence[tuple[str, ...]],
        caches: Sequence[ReachCache],
        *,
        given: bool,
    ) -> None:
        self._given, self._remade, self._caches = given, remade, caches
        self.model, self._order, self._items = model, order, items
        self._sharded = [sharded[number] if any(sharded) else () for number in order]
        self._next = 0
        self._run: RangeRun | None = None
        self._output: BlockOutput | None = None
        self._frame: CheckpointFrame | None = None  # of the last block

    def call(self, block: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a block; calls that the plan does not expect are separate segments."""
        at = self._place_of(block)
        if at is None and self._given and block not in self._order:
            raise ProblemError(
                f"the model calls a block ({display_name(fn)}, number {block}) that its plan= does not know: the plan "
                "is for another model, or for other blocks. Plan this one, with memory= and sample="
            )
        item = None if at is None else self._items[at]
        self._next = self._next if at is None else at + 1
        remade = () if at is None else self._remade[at]
        if isinstance(fn, CompiledBlock):
            fn, remade = fn.remaking(remade), ()
        dropped = dropped_results(remade) if remade else None
        if isinstance(item, int) or not torch.is_grad_enabled():
            if dropped and torch.is_grad_enabled() and not has_saved_tensor_hooks():
                return run_by_lineage(fn, args, kwargs, dropped, self._sharded[at] if at is not None else ())
            return fn(*args, **kwargs)
        with recorded_call("auto_checkpoint", fn) as call:
            # A user's segment around the model drops and recomputes what is saved here.
            if at is None or item is None or has_saved_tensor_hooks():
                return checkpoint(fn, args, kwargs, _OPTIONS, call)
            arguments = flatten((args, kwargs))[0]
            run, taken = self._range(at, item, arguments)
            given = versions_of(arguments)
            try:
                out = checkpoint(
                    fn, args, kwargs, _OPTIONS, call, run.frame_of(at, taken, dropped, self._caches[block])
                )
            finally:
                self._frame = run.newest_frame()
        self._output = BlockOutput(out, given, taken) if at + 1 < item.stop else None
        return out

    def _place_of(self, block: int) -> int | None:
        """The place of a call in the plan, or None; blocks before it may be left out, as by layer drop."""
        try:
            return self._order.index(block, self._next)
        except ValueError:
            return None

    def _range(self, at: int, item: Range, arguments: list[Any]) -> tuple[RangeRun, dict[int, int]]:
        """The range that a call belongs to, and the tensors that it takes from the call before."""
        run, output = self._run, self._output
        if at > item.start and run is not None and output is not None and run.has(at - 1):
            taken = output.taken_by(arguments)
            if taken:
                return run, taken
        if at > item.start:
            item = item.rest_from(at)
        self._run = RangeRun(item, self._sharded)
        return self._run, {}


class _Planned:
    """The base of the classes of planned blocks and models."""

    _remat_plain: type[nn.Module]
    _remat_entry: str
    __jit_unused_properties__: ClassVar[list[str]] = ["remat_plan", "remat_budget"]  # TorchScript would compile them

    def __init_subclass__(cls, **_: object) -> None:
        """Does nothing, so that a registry in the module's class does not see a second class with the same name."""

    @property
    def remat_plan(self) -> Plan | None:
        """The plan of a model's blocks; if there are several, that of the newest shape."""
        last = getattr(vars(self).get("_remat_forward"), "last", None)
        return None if last is None else last.plan

    @property
    def remat_budget(self) -> tuple[int, int, int] | None:
        """For the newest shape: the budget, the bytes of the model's outputs, and the measured peak."""
        last = getattr(vars(self).get("_remat_forward"), "last", None)
        if last is None or last.measured_peak is None:  # a given plan is not measured
            return None
        return last.memory, last.outputs, last.measured_peak

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        reduced = super().__reduce_ex__(protocol)
        if isinstance(reduced, tuple) and reduced[0] is copyreg.__newobj__ and reduced[1][0] is type(self):  # type: ignore[attr-defined]
            return _new_planned, (self._remat_plain, self._remat_entry, *reduced[1][1:]), *reduced[2:]
        return reduced


def planned_module(module: nn.Module) -> None:
    """Give a module a subclass of its class that follows `_remat_block` or `_remat_forward`, which are set on it."""
    if "_remat_plain" in vars(type(module)):
        return
    try:
        module.__class__ = _subclass(type(module), entry_of(module))
    except TypeError as error:
        raise ProblemError(f"{type(module).__qualname__} cannot be planned: {error}") from error


def plain_module(module: nn.Module) -> None:
    """Restore the class of a planned module, and remove what was set on it; other modules do not change."""
    if "_remat_plain" in vars(type(module)):
        module.__class__ = cast(Any, module)._remat_plain
        for name in _MARKS:
            vars(module).pop(name, None)


def to_restore(model: nn.Module) -> Callable[[], None]:
    """A function that makes all modules of a model planned or plain again, as they are now."""
    marks = [(each, {name: vars(each)[name] for name in _MARKS if name in vars(each)}) for each in model.modules()]
    classes = [type(each) for each, _ in marks]

    def restore() -> None:
        for (module, set_on_it), cls in zip(marks, classes, strict=True):
            plain_module(module)
            module.__class__ = cls
            vars(module).update(set_on_it)

    return restore


def _new_planned(cls: type[nn.Module], entry: str, *args: Any) -> object:
    return cls.__new__(_subclass(cls, entry), *args)


def _subclass(cls: type[nn.Module], entry: str) -> type[nn.Module]:
    for known in type.__subclasses__(cls):  # a cache that keeps no class alive
        if vars(known).get("_remat_plain") is cls and vars(known)["_remat_entry"] == entry:
            return known
    contents: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    contents |= {"_remat_plain": cls, "_remat_entry": entry, entry: _method(cls, entry)}
    metaclass: Callable[..., type[nn.Module]] = type(cls)
    return metaclass(cls.__name__, (_Planned, cls), contents)


def _method(cls: type[nn.Module], name: str) -> Callable[..., Any]:
    run = _run_planned

    def method(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run(getattr(cls, name), self, args, kwargs)

    return method_like(getattr(cls, name), cast(FunctionType, method))


def _run_planned(plain: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # A compiler around a planned model or block must leave to Python what the plan compiles separately.
    if torch.compiler.is_compiling() and _compiles_itself(module):
        return run_uncompiled(_run_planned, plain, module, args, kwargs)
    fn, planned = _as_block(module, plain.__get__(module)), vars(module).get("_remat_forward")
    return fn(*args, **kwargs) if planned is None else planned.run(module, fn, args, kwargs)


def _compiles_itself(module: nn.Module) -> bool:
    """Whether the plan compiles this model or block."""
    marks = [vars(module).get(name) for name in _MARKS]
    return any(mark is not None and mark.compiled is not None for mark in marks)


def model_forward(model: nn.Module) -> Callable[..., Any]:
    """The forward of a planned model without its plan; calls of blocks, also of the model itself, are still handled."""
    planned: Any = type(model)
    return _as_block(model, getattr(planned._remat_plain, planned._remat_entry).__get__(model))


def _as_block(module: nn.Module, fn: Callable[..., Any]) -> Callable[..., Any]:
    block = vars(module).get("_remat_block")
    return fn if block is None else partial(_call_block, block, fn)


def _call_block(block: Block, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        if not block.is_kept and torch.is_grad_enabled() and traces_segments():
            return compiled_checkpoint(fn, args, kwargs)
        return fn(*args, **kwargs)
    if block.compiled is not None:
        fn = compiled_block(fn, block.compiled)
    calls = _calls.get()
    if calls is None or calls.model != block.model:
        return fn(*args, **kwargs)
    return calls.call(block.number, fn, args, kwargs)

"""FSDP2 (`torch.distributed.fsdp.fully_shard`): which sharded modules a step calls, and the end of a range for them;
and the parameters of a block that is run again while another one is pulled back.

FSDP1 (`FullyShardedDataParallel`) gathers and frees parameters once for a forward and a backward of the whole model,
which the ranges of a loop are not: a step that calls such a module is refused.

The only file that touches FSDP's private state. It is checked with 2.11 and 2.13.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from torch import nn

from remat.errors import ProblemError, StepError
from remat.frameworks.torch.modules import Parts, all_parts

__all__ = [
    "FirstCall",
    "any_fsdp_module",
    "end_backward",
    "fsdp_modules_called",
    "gathered",
    "is_sharded",
    "meshes_of",
    "refuse_sharded_parts",
    "reshard",
    "sharded_modules_of",
    "share_fsdp_state",
    "unsharded_class",
]


def any_fsdp_module(modules: Sequence[nn.Module]) -> bool:
    """Whether a module is sharded. A program that uses FSDP has imported it, so it is not imported here."""
    return _any_of("FSDPModule", modules)


def is_sharded(model: nn.Module, parts: Parts | None = None) -> bool:
    """Whether a module of a model, or a parameter, is sharded: then its blocks wait for other processes.

    `parts` are all of its modules and parameters, if they are known.
    """
    if "torch.distributed.tensor" not in sys.modules and "torch.distributed.fsdp" not in sys.modules:
        return False
    modules, parameters = parts or all_parts(model)
    is_distributed = any(hasattr(kind, "device_mesh") for kind in {type(each) for each in parameters})
    return is_distributed or any_fsdp_module([*{type(each): each for each in modules}.values()])


def _any_of(name: str, modules: Sequence[nn.Module]) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(module, getattr(fsdp, name)) for module in modules)


@contextmanager
def fsdp_modules_called(modules: Sequence[nn.Module], called: list[Any], *, first: bool = True) -> Iterator[None]:
    """Add those FSDP modules among `modules` that are called in the block to the list.

    FSDP reduces gradients in hooks of its own and adds them to `.grad`, so these are differentiated by `backward`
    and not by `grad`. Raises a StepError if a module of FSDP1 is called, and, where the list is empty and it is not the
    `first` step, a FirstCall: the loop was begun as one without such modules.
    """
    if not any_fsdp_module(modules) and not _any_of("FullyShardedDataParallel", modules):
        yield
        return

    def note(module: nn.Module, _: Any) -> None:
        if _any_of("FullyShardedDataParallel", [module]):
            raise StepError(
                f"a step calls a {type(module.module).__name__} that is wrapped by FSDP1 (FullyShardedDataParallel), "
                "which frees its parameters before the loop runs the step again: shard it by FSDP2 "
                "(torch.distributed.fsdp.fully_shard), or wrap what contains the loop, and nothing that steps call"
            )
        if any_fsdp_module([module]) and all(module is not each for each in called):
            if not first and not called:
                raise FirstCall(module)
            called.append(module)

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


class FirstCall(BaseException):
    """A step has called a module of FSDP2, and none before it has: no error, which a step might catch."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def meshes_of(modules: Sequence[Any]) -> list[Any]:
    """The meshes over which modules of FSDP2 are sharded."""
    return [group.mesh_info.mesh for module in modules for group in _parameter_groups(module)]


def _parameter_groups(module: Any) -> list[Any]:
    # A state has one group of parameters in 2.11, and a list of them in 2.13.
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def sharded_modules_of(model: nn.Module, names: Sequence[str]) -> list[tuple[nn.Module, ...]]:
    """For each of these modules of a model, the sharded modules that have its parameters: around it, and inside."""
    modules = dict(model.named_modules(remove_duplicate=False))
    sharded = {name: module for name, module in modules.items() if any_fsdp_module([module])}
    if not sharded:
        return [()] * len(names)
    found = []
    for name in names:
        around = next((each for each in [name, *_parents(name)] if each in sharded), None)
        inside = [each for each in modules[name].modules() if each is not modules[name] and any_fsdp_module([each])]
        found.append((*(() if around is None else (sharded[around],)), *inside))
    return found


def refuse_sharded_parts(blocks: Mapping[str, nn.Module]) -> None:
    """Raise a ProblemError if a part of a block, which is to be measured alone, is sharded by itself."""
    for name, block in blocks.items():
        parts = [part for part, module in block.named_modules() if part and any_fsdp_module([module])]
        if parts:
            raise ProblemError(
                f"a part of block {name!r} is sharded by itself, {parts[0]!r}: FSDP2 takes each backward through it "
                "for the end of one through the model, so the block cannot be measured alone. Call auto_checkpoint "
                "before fully_shard, or give it a plan= that was made so"
            )


def unsharded_class(module: nn.Module) -> type:
    """The class that a module has without `fully_shard`."""
    return type(module).__bases__[1] if any_fsdp_module([module]) else type(module)


def reshard(model: nn.Module) -> None:
    """Free the whole parameters of all sharded modules."""
    for module in model.modules():
        if any_fsdp_module([module]):
            cast(Any, module).reshard()


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:stop]) for stop in reversed(range(len(parts)))] if name else []


@contextmanager
def gathered(modules: Sequence[Any]) -> Iterator[None]:
    """A block in which sharded modules have their whole parameters; those that had them before keep them.

    So had those whose parameters are on their way for the backward: FSDP gathers them while it still pulls back others.
    """
    pairs = [(module, group) for module in modules for group in _parameter_groups(module)]
    free = [module for module, group in pairs if not group.is_unsharded and group._all_gather_result is None]
    for module in modules:
        module.unshard()
    try:
        yield
    finally:
        for module in free:
            module.reshard()


def end_backward(modules: Sequence[Any]) -> None:
    """Let the next forward of sharded modules gather their parameters, though no backward of a root has ended.

    Below another sharded module FSDP takes the next recorded range for a part of this backward: it stays in the state
    PRE_BACKWARD and does not gather. There is no public way to say that a backward is over.
    """
    for module in modules:
        state = module._get_fsdp_state()
        state._training_state = type(state._training_state).IDLE


def share_fsdp_state(module: nn.Module, other: nn.Module) -> None:
    """Let FSDP find the state of a module that it manages under another object too; it is stored by identity."""
    composable = sys.modules.get("torch.distributed._composable_state")
    state = None if composable is None else composable._get_module_state(module)
    if composable is not None and state is not None:
        composable._insert_module_state(other, state)

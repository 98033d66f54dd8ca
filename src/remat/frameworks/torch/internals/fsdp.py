"""FSDP2 (`torch.distributed.fsdp.fully_shard`): the sharded modules that a step calls, and their parameters.

A loop has to tell FSDP where the backward of a range ends, and a block that is recomputed while another one is pulled
back needs its parameters gathered.

FSDP1 (`FullyShardedDataParallel`) gathers and frees parameters once per forward and backward of the whole model, and
keeps them in the attributes of modules, which are as at the call while something is recomputed. So steps, segments and
planned models that call such a module are refused; segments inside it are not.

This is the only file that touches FSDP's private state. It is checked with 2.11 and 2.13.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from torch import nn

from remat.errors import ProblemError, StepError
from remat.frameworks.torch.internals.modules import Parts, all_parts

__all__ = [
    "FirstCall",
    "any_fsdp_module",
    "end_backward",
    "fsdp1_calls_refused",
    "fsdp_modules_called",
    "gathered",
    "gathered_parameters",
    "is_reachable_fsdp1",
    "is_sharded",
    "meshes_of",
    "refuse_fsdp1",
    "refuse_sharded_parts",
    "reshard",
    "sharded_modules_of",
    "share_fsdp_state",
    "unsharded_class",
]


def any_fsdp_module(modules: Sequence[nn.Module]) -> bool:
    """Whether a module is sharded; FSDP is not imported here, since a program that uses it has imported it."""
    return _any_of("FSDPModule", modules)


def is_sharded(model: nn.Module, parts: Parts | None = None) -> bool:
    """Whether a module or a parameter of a model is sharded, so that its blocks wait for other processes.

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


def is_fsdp1(module: nn.Module) -> bool:
    """Whether a module is a wrapper of FSDP1."""
    return _any_of("FullyShardedDataParallel", [module])


def refuse_fsdp1(what: str, modules: Sequence[nn.Module]) -> None:
    """Raise a ProblemError, which begins with `what`, if a module is wrapped by FSDP1."""
    found = [*{type(each): each for each in modules if type(each).__module__.startswith("torch.distributed")}.values()]
    for module in filter(is_fsdp1, found):
        raise ProblemError(f"{what} {_described(module)}, {_ADVICE}")


_ADVICE = (
    "which frees its parameters before they are used again. Put what is recomputed inside, as in "
    "FullyShardedDataParallel(remat.drop(block)), or shard by FSDP2 (torch.distributed.fsdp.fully_shard)"
)


def _described(module: Any) -> str:
    return f"a {type(module.module).__name__} that is wrapped by FSDP1 (FullyShardedDataParallel)"


def is_reachable_fsdp1(module: Any) -> bool:
    """Whether a module is a wrapper of FSDP1; raises a StepError if nothing can be found out about its parameters.

    Without `use_orig_params=True` they are views of memory that was written into, which refuse every question.
    """
    if not is_fsdp1(module):
        return False
    if not module._use_orig_params:
        raise StepError(
            f"a segment or a step reaches {_described(module)} without use_orig_params=True: give it that, or let what "
            "is recomputed refer to its own modules alone, as remat.drop(block) inside of it does"
        )
    return True


@contextmanager
def fsdp1_calls_refused() -> Iterator[None]:
    """A context in which a call of a module that is wrapped by FSDP1 raises a StepError."""

    def refuse(module: nn.Module, _: Any) -> None:
        if is_fsdp1(module):
            raise StepError(f"a segment calls {_described(module)}, {_ADVICE}")

    handle = nn.modules.module.register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def fsdp_modules_called(modules: Sequence[nn.Module], called: list[Any], *, first: bool = True) -> Iterator[None]:
    """Append those FSDP modules among `modules` that are called in the block to the list `called`.

    FSDP reduces gradients in its own hooks and adds them to `.grad`, so such modules are differentiated by `backward`
    and not by `grad`. Raises a StepError if an FSDP1 module is called. Raises a FirstCall if the list is empty and this
    is not the `first` step, since the loop was started as one without such modules.
    """
    if not any_fsdp_module(modules) and not any(map(is_fsdp1, modules)):
        yield
        return

    def note(module: nn.Module, _: Any) -> None:
        if is_fsdp1(module):
            raise StepError(
                f"a step calls {_described(module)}, which frees its parameters before the loop runs the step again: "
                "shard it by FSDP2 (torch.distributed.fsdp.fully_shard), or wrap what contains the loop, and nothing "
                "that steps call"
            )
        if any_fsdp_module([module]) and all(module is not each for each in called):
            if not first and not called:
                raise FirstCall(module)
            called.append(module)

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        with ExitStack() as stack:
            for module in modules:
                if any_fsdp_module([module]):
                    stack.enter_context(_NotedMethods.told_to(note, module))
            yield
    finally:
        handle.remove()


class _NotedMethods:
    """Notes methods that `register_fsdp_forward_method` made a forward of a module; loops in a loop share one.

    They run no hook of modules: they ask the module's state by name for what its hooks refer to as an object. That
    attribute of the instance is this object while any loop notes, and hides the method of its class.
    """

    def __init__(self, state: Any) -> None:
        self.pre_forward = state._pre_forward
        self.hides_method = "_pre_forward" not in vars(state)
        self.notes: list[Callable[[nn.Module, Any], None]] = []  # the innermost loop's last

    def __call__(self, called: nn.Module, *args: Any) -> Any:
        """Tell the loops, innermost first, and go on as FSDP does."""
        for note in reversed(self.notes):
            note(called, None)
        return self.pre_forward(called, *args)

    @classmethod
    @contextmanager
    def told_to(cls, note: Callable[[nn.Module, Any], None], module: Any) -> Iterator[None]:
        """A context in which such methods of a module are noted."""
        state = module._get_fsdp_state()
        noted = state._pre_forward
        if not isinstance(noted, cls):
            noted = state._pre_forward = cls(state)
        noted.notes.append(note)
        try:
            yield
        finally:
            noted.notes.remove(note)
            if noted.hides_method and not noted.notes:  # otherwise it stays and only calls what others have put there
                del state._pre_forward


class FirstCall(BaseException):
    """A step has called an FSDP2 module, and no earlier step has; not an Exception, which the step might catch."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def meshes_of(modules: Sequence[Any]) -> list[Any]:
    """The meshes over which FSDP2 modules are sharded."""
    return [group.mesh_info.mesh for module in modules for group in _parameter_groups(module)]


def _parameter_groups(module: Any) -> list[Any]:
    # A state has one parameter group in 2.11, and a list of them in 2.13.
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def gathered_parameters(modules: Sequence[Any]) -> set[int]:
    """The ids of the parameters that FSDP2 has gathered for modules among these; it frees and fills their memory."""
    sharded = [module for module in modules if any_fsdp_module([module])]
    states = [each for module in sharded for group in _parameter_groups(module) for each in group.fsdp_params]
    return {id(each._unsharded_param) for each in states if hasattr(each, "_unsharded_param")}


def sharded_modules_of(model: nn.Module, names: Sequence[str]) -> list[tuple[nn.Module, ...]]:
    """For each named module, the sharded modules that hold its parameters: around it and inside it."""
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
    """Raise a ProblemError if a part of a block that is to be measured alone is sharded separately."""
    for name, block in blocks.items():
        parts = [part for part, module in block.named_modules() if part and any_fsdp_module([module])]
        if parts:
            raise ProblemError(
                f"a part of block {name!r} is sharded separately, {parts[0]!r}: FSDP2 takes each backward through it "
                "for the end of one through the model, so the block cannot be measured alone. Call auto_checkpoint "
                "before fully_shard, or give it a plan= that was made before"
            )


def unsharded_class(module: nn.Module) -> type:
    """The class that a module has without `fully_shard`."""
    return type(module).__bases__[1] if any_fsdp_module([module]) else type(module)


def reshard(model: nn.Module) -> None:
    """Free the gathered parameters of all sharded modules."""
    for module in model.modules():
        if any_fsdp_module([module]):
            cast(Any, module).reshard()


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:stop]) for stop in reversed(range(len(parts)))] if name else []


@contextmanager
def gathered(modules: Sequence[Any]) -> Iterator[None]:
    """A context in which sharded modules have their parameters gathered; those gathered before stay so afterwards.

    This includes modules whose parameters are being gathered for the backward: FSDP prefetches them while it pulls back
    others.
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
    """Make the next forward of sharded modules gather their parameters, although no backward of a root has ended.

    Below another sharded module, FSDP takes the next recorded range for a part of this backward: it stays in the state
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

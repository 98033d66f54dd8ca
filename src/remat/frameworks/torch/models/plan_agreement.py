"""One plan in all processes: a block with sharded parameters must be recomputed in all of them or in none.

The rule: each run of a block with sharded parameters (FSDP2, DTensors) waits for the processes of its meshes, and each
run of one with collectives of its own (`nn.SyncBatchNorm`, experts) for those of its groups. So these measure the model
together, equally often, and use the measurements of the first process, the smallest budget and the largest peak: all
make the same plan. A model that was planned before it was sharded was timed separately in each
process, so the plans may differ: at the first call all use that of the first process. Plans that were given (`plan=`)
are compared instead. There is one plan for all shapes, since a process cannot know whether others see a new shape.

What it can miss: processes that do not make the same calls, and collectives that are not in the forward of the sample.
The process group's timeout ends their wait.

The cost: one forward of the sample, and a few small messages when a model is planned and at its first call; nothing
afterwards.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch.distributed as dist
from torch import nn

from remat.errors import ProblemError
from remat.frameworks.torch.internals.collectives import groups_of, groups_used, is_single_process
from remat.frameworks.torch.internals.fsdp import any_fsdp_module, meshes_of
from remat.frameworks.torch.loops.agreement import largest, waiting_for
from remat.frameworks.torch.models.compiled_blocks import CompiledBlock
from remat.frameworks.torch.models.cut_blocks import CutBlocks
from remat.frameworks.torch.models.model_trial import undisturbed
from remat.frameworks.torch.models.planned_blocks import block_calls

__all__ = [
    "compare_plans",
    "groups_of_model",
    "groups_waited_for",
    "in_all_or_none",
    "largest",
    "of_first_process",
    "planning_with",
]

T = TypeVar("T")


def groups_of_model(model: nn.Module) -> list[Any]:
    """The groups of processes over which a model is sharded; none in a single process."""
    if is_single_process():
        return []
    meshes = meshes_of([module for module in model.modules() if any_fsdp_module([module])])
    meshes += [parameter.device_mesh for parameter in model.parameters() if hasattr(parameter, "device_mesh")]
    return [group for group in groups_of(meshes) if group.size() > 1]


def groups_waited_for(model: nn.Module, token: str, run: Callable[[], Any]) -> list[Any]:
    """The groups of processes that a forward of the model waits for; `run` runs one, once in each process.

    Those over which it is sharded, and those of the collectives that it was seen to run. Its blocks, which have the
    token, run without a graph, so that this takes little memory.
    """
    if is_single_process():
        return []
    calls = block_calls(_NotCompiled(token))
    with undisturbed(model), calls, groups_used(enabled=True) as used, planning_with(used):
        run()
    return [*dict.fromkeys([*groups_of_model(model), *(group for group in used if group.size() > 1)])]


def in_all_or_none(groups: Sequence[Any], block: str, left_out: bool) -> bool:
    """Whether a block left itself out; raise a ProblemError in all processes if it did in some of them only."""
    most, others = largest([int(left_out), int(not left_out)], groups)
    if most and others:
        raise ProblemError(
            f"block {block!r} left itself out at random in some processes and not in others, so they would wait for "
            "each other in vain while the model is planned: seed them alike meanwhile, or plan it before it is sharded"
        )
    return left_out


def planning_with(groups: Sequence[Any]) -> AbstractContextManager[None]:
    """A context whose errors of communication say who waits for whom to plan a model."""
    return waiting_for(groups, (), what="the planning of a model")


class _NotCompiled(CutBlocks):
    """Blocks whose collectives can be seen."""

    def call(self, block: int, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().call(block, fn.plain if isinstance(fn, CompiledBlock) else fn, args, kwargs)


def of_first_process(value: T, groups: Sequence[Any]) -> T:
    """The value of the first process, broadcast in one group after the other."""
    for group in groups:
        values = [value]
        dist.broadcast_object_list(values, group=group, group_src=0)
        value = values[0]
    return value


def compare_plans(plan: str, groups: Sequence[Any]) -> None:
    """Raise a ProblemError in each process if they were given different plans."""
    for group in groups:
        plans: list[Any] = [None] * group.size()
        dist.all_gather_object(plans, plan, group=group)
        if len(set(plans)) > 1:
            ranks = dist.get_process_group_ranks(group)
            others = [rank for rank, each in zip(ranks, plans, strict=True) if each != plans[0]]
            raise ProblemError(
                f"the model is sharded over ranks {ranks}, and ranks {others} were given another plan than rank "
                f"{ranks[0]}: each block that is run again waits for all of them. Give all ranks the same plan=, such "
                "as one that was saved by one of them"
            )

"""One plan in all processes: they agree on budget and sizes before planning a loop in which they wait for each other.

The rule: a step that waits for other processes (an FSDP2 module, DTensors, the user's collectives) must run equally
often in all of them, so their plans must be the same. A budget in bytes gives one plan only if all processes use the
same numbers. So the processes of the groups that the first step was seen to use take the largest sizes and the smallest
budget among them, and must have the same number of steps, or each of them raises an error. Other processes are not
asked: stages of a pipeline and parts of a mesh plan on their own, and so do processes whose steps wait for nobody
(DDP). With `slots=` or `plan=` the plans are equal if all processes were given the same; if not, each raises an error
too. Otherwise a step would meet a different step of the other processes, and appear not to repeat itself.

The first step itself waits for the others before there is anything to agree on. If a group's timeout ends its wait, or
that of a later step of either sweep, the error names the rank, the ranks that it waits for, and the loop.

What it can miss: a collective that only a later step has, or a compiled one. Then the plans may differ, and the group's
timeout ends the wait. With NCCL a timeout may end the process instead, as it does without a loop.

Cost: one dispatch mode around the first step if there are several processes, and one reduction of a few numbers for
each loop whose steps wait for others.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from remat.errors import ProblemError
from remat.frameworks.torch.internals.collectives import device_of, groups_of
from remat.frameworks.torch.internals.fsdp import meshes_of
from remat.frameworks.torch.loops.first_step import FirstStep
from remat.loops.request import LoopRequest
from remat.measuring import DEFAULT_TIMES, StepCost
from remat.problem import Level, Loop, Memory

__all__ = ["agree", "largest", "waiting_for"]

_OF_EXCHANGE = ("gloo/transport", "Timed out waiting", "closed by peer", "reset by peer")  # in errors without a type


def agree(request: LoopRequest, steps: int | None, state: int, first: FirstStep) -> tuple[LoopRequest, StepCost | None]:
    """The smallest budget and the largest cost of a step among the processes that wait for each other, if any do.

    `state` are the bytes of a carry. Raises a ProblemError in each process if their loops differ in length, or if they
    were given different numbers of slots or different plans.
    """
    if not (first.groups or first.fsdp_modules):
        return request, None
    cost, capacity = _estimate(first, state), 0 if request.memory is None else request.memory.device.capacity or 0
    equal = _equal_numbers(request, steps)
    ends = [end for number in equal.values() for end in (number, -number)]
    most = largest([cost.loop.state, cost.loop.tape, cost.workspace, -capacity, *ends], first.groups)
    for (what, number), high, low in zip(equal.items(), most[4::2], most[5::2], strict=True):
        if high != -low:
            raise ProblemError(
                f"the plans of this loop differ: it has {number} {what} in rank {dist.get_rank()}, and {-low} to "
                f"{high} in the ranks that its steps wait for. Give all of them the same"
            )
    if request.memory is None or not capacity:
        return request, None
    state, tape, workspace, capacity = most[:4]
    budget = Memory(levels=[Level(request.memory.device.name, -capacity)])
    loop = Loop(**{**cost.loop.to_dict(), "state": state, "tape": tape})
    return replace(request, memory=budget), replace(cost, loop=loop, workspace=workspace)


def _equal_numbers(request: LoopRequest, steps: int | None) -> dict[str, int]:
    """What must be the same in all processes, by its name in messages; 0 if there is no such number."""
    slots = None if request.memory is None else request.memory.device.slots
    return {
        "steps": -1 if steps is None else steps,
        "slots": slots or 0,
        "forward steps in its plan": 0 if request.plan is None else request.plan.forward_steps,
    }


def _estimate(first: FirstStep, state: int) -> StepCost:
    """The cost of a step that waits for other processes, estimated from its first run.

    It is not run again to be measured: the other processes might run it a different number of times, and FSDP takes any
    backward for that of the whole model. The workspace is estimated as one tape, for cotangents in flight, and twice
    the parameters, for their gradients.
    """
    parameters = [p for module in first.fsdp_modules for p in module.parameters()] or first.inputs.tensors
    parameter_bytes = sum(p.numel() * p.element_size() for p in parameters)
    tape = max(1, first.tape_bytes)
    loop = Loop(None, max(1, state), tape, *DEFAULT_TIMES[:3], per_range=DEFAULT_TIMES[3])
    return StepCost(loop, tape + 2 * parameter_bytes, bookkeeping=0)


def largest(numbers: Sequence[int], groups: Sequence[Any]) -> list[int]:
    """The largest of each number among all processes of the groups, one group after the other."""
    for group in groups:
        most: Tensor = torch.tensor(numbers, device=device_of(group))
        try:
            dist.all_reduce(most, dist.ReduceOp.MAX, group)
        except RuntimeError as error:
            raise ProblemError(
                f"{_no_answer([group])}, to agree on one plan ({error}). All of them must make the call"
            ) from error
        numbers = most.tolist()
    return list(numbers)


@contextmanager
def waiting_for(
    groups: Sequence[Any], modules: Sequence[Any], place: str = "", what: str = "a step of this loop"
) -> Iterator[None]:
    """A context whose errors of communication say who waits, in what, and at which place in the user's files.

    `groups` and `modules` are the process groups and FSDP2 modules that steps use, which may be noted while they run.
    """
    try:
        yield
    except RuntimeError as error:
        groups = [*groups_of(meshes_of(modules)), *groups]
        if not groups or not (isinstance(error, dist.DistError) or any(each in str(error) for each in _OF_EXCHANGE)):
            raise
        raise ProblemError(
            f"{place}{': ' * bool(place)}{_no_answer(groups)}, in {what} ({error}). Another rank has not "
            "come to it, in forward or backward, or has raised an error in it: all of them must run it"
        ) from error


def _no_answer(groups: Sequence[Any]) -> str:
    ranks = sorted({rank for group in groups for rank in dist.get_process_group_ranks(group)})
    return f"rank {dist.get_rank()} did not get an answer from all of the ranks {ranks}, which it waits for"

"""The first step of a loop, recorded before there is a plan, and what it has shown about the loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remat.frameworks.torch.activity import Activity
from remat.frameworks.torch.loop_inputs import LoopInputs
from remat.frameworks.torch.tape import Tape
from remat.pytree import PyTree

__all__ = ["FirstStep", "RecordedStep"]


@dataclass(frozen=True)
class RecordedStep:
    """The tape and the results of the first step, with which the first sweep begins, and its bytes if counted."""

    tape: Tape
    carry: PyTree
    y: PyTree
    tape_bytes: int
    allocated: int  # bytes that the step allocated, freed or not


@dataclass(frozen=True)
class FirstStep(RecordedStep):
    """The first step, with what it has shown; results that are not active are detached."""

    activity: Activity
    inputs: LoopInputs
    reached: tuple[list[bool], list[bool]]  # by leaf of the carry, and of `xs`: whether a result depends on it
    fsdp_modules: list[Any]  # FSDP modules that steps call, as far as they have run
    groups: Sequence[Any]  # the process groups that the step waits for, as far as they were seen

"""The first step of a loop, recorded before there is a plan, and what it has shown about the loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from remat.frameworks.torch.loops.activity import Activity
from remat.frameworks.torch.loops.loop_inputs import LoopInputs
from remat.frameworks.torch.loops.tape import Tape
from remat.pytree import PyTree

__all__ = ["FirstStep"]


@dataclass(frozen=True)
class FirstStep:
    """The first step, with which the first sweep begins, and what it has shown; inactive results are detached."""

    tape: Tape
    carry: PyTree
    y: PyTree
    tape_bytes: int  # 0 if bytes are not counted
    allocated: int  # bytes that the step allocated, freed or not
    activity: Activity
    inputs: LoopInputs
    reached: tuple[list[bool], list[bool]]  # by leaf of the carry, and of `xs`: whether a result depends on it
    fsdp_modules: list[Any]  # FSDP modules that steps have called so far
    groups: Sequence[Any]  # the process groups that the step was seen to wait for

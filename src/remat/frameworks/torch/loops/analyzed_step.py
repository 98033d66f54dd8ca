"""A step of a loop on PyTorch after closure conversion, with the state that steps of a later sweep start from."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from remat.closures.capture import ConvertedClosure
from remat.errors import StepError
from remat.execute.rng_state import ReplayableState
from remat.frameworks.torch.internals.autocast import AutocastState
from remat.frameworks.torch.internals.functorch import below_transforms, is_wrapped, outside_transforms
from remat.frameworks.torch.loops.inner_backward import InnerBackward
from remat.frameworks.torch.loops.left_by_steps import LeftBySteps
from remat.frameworks.torch.loops.loop_contents import LoopContents
from remat.pytree import PyTree

__all__ = ["AnalyzedStep", "as_truth_value"]


@dataclass(frozen=True)
class AnalyzedStep:
    """A step after closure conversion."""

    closure: ConvertedClosure
    autocast: AutocastState
    replayable_states: Sequence[ReplayableState]  # random generators, buffers and Python contents that steps may change
    contents: LoopContents  # one of them
    left: LeftBySteps  # what its steps leave for later ones
    under_functorch: bool = False  # whether torch.func runs the loop at another level
    modules: Sequence[Module] = ()  # the modules that it closes over
    compiled: bool = False  # whether it, or something that it closes over, is compiled
    inner_backward: InnerBackward | None = None  # if its code calls `backward`
    levels: Sequence[int] = ()  # of the vmaps for which it runs once, outermost first

    def rebind(self, values: Mapping[int, Tensor]) -> AbstractContextManager[Callable[..., Any]]:
        """A context that yields the step with these captured tensors, given by index."""
        return self.closure.rebind(values)

    def holds(self, cond: Callable[[PyTree], object], values: Mapping[int, Tensor], carry: PyTree) -> bool:
        """Whether a condition holds for a carry, with these captured tensors of the step."""
        with self.rebind(values):
            return as_truth_value(cond(carry))


def as_truth_value(answer: object) -> bool:
    """The answer of a condition as a bool; raises a StepError if it is not one truth value."""
    count = answer.numel() if isinstance(answer, Tensor) else int(answer is not None)
    if count != 1:
        what = "None" if answer is None else f"{count} values"
        raise StepError(f"cond must return one truth value, and returned {what}; .all() and .any() make one of many")
    if not isinstance(answer, Tensor) or not is_wrapped(answer):
        return bool(answer)
    # Below all transforms there are numbers, for every example.
    with outside_transforms():
        of_examples = below_transforms(answer)
        if of_examples.any() == of_examples.all():
            return bool(of_examples.all())
    raise StepError(
        "the examples that vmap maps take different numbers of steps in a while_loop: its condition holds for only "
        "some of them. Use scan with the length of the longest, and torch.where to leave finished ones unchanged"
    )

"""The first training step under a new plan: does it stay within the budget, as the trial did?

A trial knows the model and, if it was given, the loss. It does not know what the program holds between forward and
backward, a loss that it was not given, or a branch that the model takes at random.

The rule: when the backward of the model's output has ended, the allocator's peak is read, relative to the level at the
call, and gradients that did not exist then are subtracted. If it is above the budget, the backward raises; all
gradients are complete at that point.

What it can miss: the CPU, whose allocator counts only under a profiler; a step in which the model is called again
before the backward, since the activations of both calls are live then; models in several processes, where one that
raises would leave the others waiting.

The cost: two readings of the allocator's counters, once per plan. This resets the peak that CUDA reports, as measuring
the model does.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from remat.errors import InfeasibleError
from remat.frameworks.torch.internals.graph import call_after_backward
from remat.frameworks.torch.leaves import nbytes, tensors_in
from remat.frameworks.torch.meter import CudaMeter
from remat.units import bytes_text

__all__ = ["FirstTrainingStep"]


class FirstTrainingStep:
    """One call of a model, observed until the backward of its output has ended."""

    def __init__(self, model: nn.Module, meter: CudaMeter, memory: int, tried: int) -> None:
        self._meter, self._memory, self._tried = meter, memory, tried
        self._without: list[Tensor] = [each for each in model.parameters() if each.requires_grad and each.grad is None]
        self._handles: list[Any] = []
        self._is_ending = False

    def run(self, call: Callable[[], Any]) -> Any:
        """Make the call, and check its peak when its backward ends; return its result."""
        self._before = self._meter.now()
        self._meter.reset_peak()  # the trial, or loading the model, may have had a higher peak
        out = call()
        nodes = {tensor.grad_fn for tensor in tensors_in(out) if tensor.grad_fn is not None}
        self._handles = [node.register_prehook(self._begin_backward) for node in nodes]
        return out

    def forget(self) -> None:
        """Stop observing."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._without = [], []

    def _begin_backward(self, _: tuple[Tensor | None, ...]) -> None:
        if not self._is_ending:
            self._is_ending = True  # at the first of several outputs that is pulled back
            call_after_backward(self._end_backward)

    def _end_backward(self) -> None:
        if not self._handles:  # forgotten since
            return
        gradients = sum(nbytes(each.grad) for each in self._without if each.grad is not None)
        peak = self._meter.peak() - self._before - gradients
        self.forget()
        if peak > self._memory:
            raise InfeasibleError(
                f"the first training step took {bytes_text(peak, up=True)}, {bytes_text(peak - self._memory, up=True)} "
                f"more than memory={bytes_text(self._memory)}. Its gradients are complete. When the plan was tried, "
                f"forward and backward of the model took {bytes_text(self._tried, up=True)}: the rest is what the "
                "program does besides. If that is the loss, pass it to auto_checkpoint as loss=, so that it is planned "
                "for; otherwise free what is held between forward and backward, or give more memory",
                peak,
                "bytes",
            )

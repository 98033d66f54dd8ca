"""Runs of a model to measure its peak and its seconds, without side effects."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from remat.errors import ProblemError
from remat.execute.recomputation import recomputing
from remat.execute.state_replay import preserved_state
from remat.frameworks.torch.internals.fsdp import is_sharded, reshard
from remat.frameworks.torch.internals.graph import gradients_put_back, hooks_suspended, set_gradients
from remat.frameworks.torch.internals.saved_tensor_hooks import without_saved_tensor_hooks
from remat.frameworks.torch.meter import allocator_of, cuda_of
from remat.frameworks.torch.models.measure_chain import cotangent_loss
from remat.frameworks.torch.replay.environment import reached, replayable_states

__all__ = ["Loss", "Trial", "loss_of", "undisturbed"]

Loss = Callable[[Any], Tensor]


class undisturbed(ExitStack):  # used as a function
    """A context in which a model may run and be differentiated any number of times, without side effects."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model

    def __enter__(self) -> "undisturbed":
        reach = reached(self._model)
        self.enter_context(gradients_put_back(self._model.parameters()))
        self.enter_context(preserved_state(replayable_states(reach)))
        self.enter_context(without_saved_tensor_hooks())
        self.enter_context(recomputing(True))
        self.enter_context(hooks_suspended([tensor for tensor in reach.tensors if tensor.requires_grad]))
        self.enter_context(torch.enable_grad())
        if is_sharded(self._model):  # modules that were cut out had no backward, which would free their parameters
            self.callback(reshard, self._model)
        return self


def loss_of(out: Any, loss: Loss | None) -> Tensor | None:
    """What to differentiate: the loss, if one is given or the model returns one; else the whole output."""
    if loss is not None:
        found = loss(out)
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise ProblemError(f"loss must return a scalar tensor, not {found!r:.60}")
        return found
    own = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
    if isinstance(own, Tensor) and own.numel() == 1 and own.requires_grad:
        return own
    return cotangent_loss(out)


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """A context without the garbage collector, since what it frees of earlier runs would be missing in the peak."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Trial:
    """One forward and backward of a model with gradients allocated: its peak above the starting level, its seconds."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device]) -> None:
        self._model, self._meter, self._device = model, allocator_of(devices), cuda_of(devices)
        self.peak = 0

    def run(self, run: Callable[[], Any], loss: Loss | None) -> "Trial":
        """Run the model once, and note the peak."""
        with self.gradients_there(), _no_garbage_collected(), self._meter.counting():
            before = self._meter.now()
            self._meter.reset_peak()
            self._step(run, loss)
            self.peak = self._meter.peak() - before
        return self

    def seconds_of(self, run: Callable[[], Any], loss: Loss | None) -> float:
        """The seconds of one forward and backward."""
        with self.gradients_there():
            began = perf_counter()
            self._step(run, loss)
            return perf_counter() - began

    def _step(self, run: Callable[[], Any], loss: Loss | None) -> None:
        out = run()  # held here, as many callers hold it until the backward has ended
        value = loss_of(out, loss)
        if value is not None:
            torch.autograd.backward(value)
        del out
        if self._device is not None:
            torch.cuda.synchronize(self._device)

    @contextmanager
    def gradients_there(self) -> Iterator[None]:
        """A context without side effects on the model, in which every parameter has a gradient to add to."""
        with undisturbed(self._model):
            parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
            set_gradients((parameter, torch.zeros_like(parameter)) for parameter in parameters)
            yield

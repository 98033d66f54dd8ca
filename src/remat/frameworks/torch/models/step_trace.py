"""The joint graph of one training step: the model's operators, those of the loss, and the backward, as they ran once.

The rule: the forward is traced as a block is (block_trace.py). In the backward, one node of autograd is one operation,
which holds all that it unpacks until it is done. Nodes that unpack nothing, such as those that accumulate gradients,
are part of the operation before. The `unpacks` of an operation are the numbers of the saved tensors that it unpacks, in
the order in which the model's forward saved them: by these a run knows its position (planned_lineage.py). The caller
holds the model's outputs until the backward has ended; neither they nor what the loss computes is recomputed.

The workspace of kernels is measured where the allocator reports it, and counts while they run.

Python's local variables hold tensors of a forward after their last use. How long is found in a forward of which
autograd saves nothing; then operations that do nothing are inserted, which read these tensors and so keep them live.
How long a backward holds its results is found in the traced backward itself (backward_trace.py).

What it can miss: tensors of the forward that Python holds in the backward. So a plan made from the graph is tried
before it is used (plan_trials.py).

The cost: one forward, one step, and some ten runs of each distinct operator, with the memory of a step that keeps
everything.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from remat.frameworks.torch.internals.autocast import forget_casts
from remat.frameworks.torch.meter import cuda_of
from remat.frameworks.torch.models.backward_trace import BackwardTrace, WatchedTrace
from remat.frameworks.torch.models.model_trial import Loss, Trial, loss_of
from remat.frameworks.torch.workspace_meter import WorkspaceMeter
from remat.measuring.merged_writes import merged_writes
from remat.problem import Graph
from remat.problem.operation import Operation
from remat.pytree import flatten

__all__ = ["trace_step"]


def trace_step(model: nn.Module, run: Callable[[], Any], loss: Loss | None, devices: Sequence[torch.device]) -> Graph:
    """The graph of a training step of a model that `run` calls; the step has no side effects."""
    names = {id(module): name for name, module in model.named_modules()}
    meter = WorkspaceMeter(devices)
    with Trial(model, devices).gradients_there(), meter.counting():
        trace = _StepTrace(names, cuda_of(devices), meter, _holds(run, names, cuda_of(devices)))
        with saved_tensors_hooks(trace.pack_numbered, trace.unpack), trace:
            out = run()
        trace.end_model(leaf for leaf in flatten(out)[0] if isinstance(leaf, Tensor))
        with saved_tensors_hooks(trace.pack_plain, trace.unpack), trace:
            value = loss_of(out, loss)
        if value is not None:
            trace.end_loss(value)
            with trace.backward():
                torch.autograd.backward(value)
    return trace.joint_graph()


class _Lives(WatchedTrace):  # type: ignore[no-untyped-call]
    """Records after how many operations the storages that a forward makes are freed."""

    def now(self) -> int:
        return len(self._operations)

    def holds(self) -> "_Holds":
        """The storages that stay live beyond the last operation that uses them."""
        last = {storage: at for at, each in enumerate(self._operations) for storage in (*each.reads, *each.outputs)}
        made = {storage for each in self._operations for storage in each.outputs}
        found: dict[int, list[int]] = {}
        for storage in sorted(made):
            end = self.ends.get(storage, len(self._operations))
            if end > last[storage] + 1:
                found.setdefault(end - 1, []).append(storage)
        return _Holds([each.name for each in self._operations], found)


class _Holds(NamedTuple):
    """The operations of a forward, and by position the storages that are held until after an operation."""

    operations: list[str]
    storages: dict[int, list[int]]


class _NothingIsSavedError(Exception):
    """Raised if a forward differentiates inside, so that it cannot run with nothing saved."""


def _holds(run: Callable[[], Any], names: dict[int, str], device: torch.device | None) -> _Holds:
    lives = _Lives(names, device)
    forget_casts()
    try:
        with saved_tensors_hooks(lambda _: None, _not_saved), lives:
            out = run()
    except _NothingIsSavedError:
        return _Holds([], {})
    finally:
        forget_casts()
    holds = lives.holds()
    del out
    return holds


def _not_saved(_: object) -> Tensor:
    raise _NothingIsSavedError


class _StepTrace(BackwardTrace):  # type: ignore[no-untyped-call]
    """Records the operators of a whole step."""

    def __init__(
        self, modules: dict[int, str], device: torch.device | None, meter: WorkspaceMeter, holds: _Holds
    ) -> None:
        super().__init__(modules, device, meter)
        self._holds = holds
        self._of_model = 0  # operations
        self._outputs: list[int] = []
        self._held: list[int] = []  # by the caller, until the backward has ended

    def end_model(self, outputs: Iterable[Tensor]) -> None:
        """Called when the model has returned these tensors."""
        self._of_model = len(self._operations)
        self._outputs = [self._number(each, "") for each in outputs if each.layout is torch.strided]
        self._held = [*self._outputs]

    def end_loss(self, value: Tensor) -> None:
        """Called when the loss, or whatever else is differentiated, is computed."""
        self._held.append(self._number(value, ""))

    def joint_graph(self) -> Graph:
        """The graph of the step."""
        once = set(self._outputs)
        forward = [
            replace(
                each,
                repeatable=each.repeatable and at < self._of_model and not once & {*each.outputs, *each.writes},
                workspace=self._meter.workspace(each.workspace),
            )
            for at, each in enumerate(self._operations)
        ]
        made = {storage for each in forward for storage in each.outputs}
        operations, backward = merged_writes(self._with_holds(forward)), self.pullbacks(made)
        if backward:
            held = (*self._held, *self.never_unpacked())
            backward[-1] = replace(backward[-1], inputs=(*backward[-1].inputs, *held))
        return Graph([*operations, *backward], self._storages, [each for each in self._outputs if each in made])

    def _with_holds(self, forward: Sequence[Operation]) -> list[Operation]:
        """The operations, with inserted ones that read held storages.

        What Python holds is not known if the forward took another path; what the graphs of unused results hold is.
        """
        is_known = [each.name for each in self._operations[: self._of_model]] == self._holds.operations
        held = {at: [*storages] for at, storages in self._holds.storages.items()} if is_known else {}
        made = {storage for each in forward for storage in each.outputs}
        for storage, count in self.released.items():
            if count < len(forward) and storage in made:
                held.setdefault(count - 1, []).append(storage)
        found: list[Operation] = []
        for at, each in enumerate(forward):
            found.append(each)
            if at in held:
                found.append(Operation("held", 0.0, held[at], repeatable=False))
        return found

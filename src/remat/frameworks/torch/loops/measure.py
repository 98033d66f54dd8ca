"""The cost of a step on PyTorch, measured by real runs, once for each kind of step.

The rule: bytes are those that the allocator reports, including kernel workspace, such as that of convolutions; for
budgets below SMALL, and on a CPU that the program itself profiles, they are those of tensors alone. Measuring leaves no
trace: everything that the step can reach (contents of lists, dicts and objects, buffers, generators) is afterwards as
it was before, however the measurement ends. The first step of the loop has run by then, and its tape tells whether a
second one fits into free memory.

Not all state can be restored: measured runs move an iterator on, or the place in a file. So the step that is measured
runs once more afterwards, and another result than before is an error. What this can miss: state that returns to where
it was, and state that does not show in the carry.

What the cache can miss: a later step that takes more than the first one did. A cost is reused only for a step of the
same code, on leaves of the same specs, whose first run saved and allocated as many bytes, within 2 %.
"""

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from remat.errors import InfeasibleError
from remat.execute.determinism import DeterminismCheck
from remat.execute.gradients import Gradients
from remat.execute.recomputation import recomputing
from remat.execute.state_replay import StateReplay, preserved_state
from remat.frameworks.torch.internals.collectives import is_single_process
from remat.frameworks.torch.internals.modules import backward_hooks_exchanged
from remat.frameworks.torch.internals.saved_tensor_hooks import has_saved_tensor_hooks, without_saved_tensor_hooks
from remat.frameworks.torch.leaves import spec_of
from remat.frameworks.torch.loops.backend import TorchBackend
from remat.frameworks.torch.loops.torch_loop_call import TorchLoopCall
from remat.frameworks.torch.meter import allocator_of, cuda_of, free_bytes, meter_for, one_step
from remat.frameworks.torch.replay.input_versions import was_written_into
from remat.loops.plan_log import plans_not_logged
from remat.measuring import MeasurementSetup, StepCost, measure_step
from remat.measuring.cost_cache import cached_cost
from remat.memory_meter import free_host_bytes
from remat.pytree import PyTree
from remat.units import bytes_text

__all__ = ["measured"]

STEPS = 8  # length of the measured loop, of which only a few steps run
SMALL = 1 << 16  # below this, the 5 KB of a generator's state, which segments copy, would be a large part of the budget
CUDA_OWN = 1 << 19  # bytes of fingerprints on the device, in blocks of 512


class _NoHooks(TorchFunctionMode):
    """A mode in which tensors get no hooks: those of a step are for real gradients, and these are only measured."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function; `register_hook` does nothing."""
        return RemovableHandle(OrderedDict()) if func is Tensor.register_hook else func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class _Setup(MeasurementSetup):
    """A measurement that skips gradients which autograd refuses: they are an error when they are asked for."""

    # The setups from which a step was measured, with its number and its result before it was measured.
    first_runs: list[tuple[MeasurementSetup, int, PyTree]] = field(default_factory=list, repr=False)

    def at(self, step: int) -> MeasurementSetup:
        """The same setup at the state before a later step."""
        # In a context that counts: PyTorch prints a warning if memory is freed in one that was allocated outside.
        with self.meter.counting():
            setup = super().at(step)
            # The first step without a tape is a trial (inner_gradients.py), for which generators are copied.
            carry = setup.backend.advance(setup.again(), step, step + 1)
            self.first_runs.append((setup, step, carry))
            return setup

    def compare(self, backend: TorchBackend) -> None:
        """Raise a DeterminismError if a step gives another result now than before it was measured."""
        while self.first_runs:  # emptied, since each run refers to a setup, and that to this list
            setup, step, carry = self.first_runs.pop()
            again = backend.advance(setup.again(), step, step + 1)
            mismatch = backend.mismatch(again, backend.fingerprint(carry), recorded=0)
            if mismatch is not None:
                DeterminismCheck.raise_mismatch(mismatch, step + 1)

    def pull_back(self, tapes: list[Any], gradients: list[Gradients]) -> None:
        """Pull back a tape; skip one whose tensors a step has modified."""
        try:
            super().pull_back(tapes, gradients)
        except RuntimeError as error:
            if not was_written_into(error):
                raise


def measured(call: TorchLoopCall, leaves: Sequence[Any]) -> StepCost:
    """The cost of a step, measured now or by an earlier loop whose first step is as large."""
    assert call.request.memory is not None
    capacity = call.request.memory.device.capacity or 0
    step, first = call.step, call.first_step
    if call.agreed is not None:
        return call.agreed
    specs = tuple(spec_of(leaf, "leaf") for leaf in leaves)
    active = (*call.activity.carry, *call.activity.xs, *call.activity.ys)
    modes = (repr(step.autocast), step.under_functorch, has_saved_tensor_hooks())
    settings = (torch.get_num_threads(), *modes, capacity < SMALL)
    key = ("torch", *step.closure.cache_key, call.carry, call.xs, specs, active, *settings)
    # Equal code and shapes may still save more (a flag, a branch): the bytes of the first step tell them apart.
    size = (0, 0) if first is None else (first.tape_bytes, first.allocated)
    return cached_cost(key, size, capacity, lambda: _measure(call, leaves, capacity, size[0]))


def _measure(call: TorchLoopCall, leaves: Sequence[Any], capacity: int, tape_bytes: int) -> StepCost:
    """The cost of a step, from real runs of the first few."""
    steps = min(call.steps or 1, STEPS)
    devices = [leaf.device for leaf in leaves if isinstance(leaf, Tensor)]
    device = cuda_of(devices)
    _check_it_fits(tape_bytes, devices)
    init, xs, captured = call.split(leaves)
    assert call.inputs is not None
    states = [*call.step.replayable_states, call.step.closure.counters]
    # Measured steps are not part of the program: whatever they change or register is undone.
    with (
        preserved_state(states, None if call.replay is None else [*call.replay.initial, None]),
        without_saved_tensor_hooks(),
        _NoHooks() if call.step.closure.mentions("register_hook") else nullcontext(),
        backward_hooks_exchanged(call.step.modules, None),
        torch.no_grad(),
        recomputing(True),
        plans_not_logged(),
        one_step("while one step was measured", capacity),
    ):
        first = [*init, *(x[:steps] for x in xs), *captured]
        backend, state = call.backend_on(first, steps, call.inputs.copy(), measured=True)
        finish = (lambda: None) if device is None else partial(torch.cuda.synchronize, device)
        meter = meter_for(devices) if capacity < SMALL else allocator_of(devices)
        ones, timed = partial(_ones, backend), is_single_process()
        free = max(0, capacity - 2 * tape_bytes)  # the recorded first step stays in memory meanwhile
        setup = _Setup(backend, meter, state, ones, finish, timed=timed, replay=StateReplay(states))
        cost = measure_step(setup, steps, free)
        if call.request.check != "never":
            setup.compare(backend)
        setup.first_runs.clear()
        return replace(cost, bookkeeping=0 if device is None else CUDA_OWN)


def _ones(backend: TorchBackend, state: Any, gradients: Gradients | None) -> Gradients:
    """Gradients that start with ones for a carry, and for all outputs if there are any."""
    gradients = gradients or backend.new_gradients([], ())
    stacked, cotangents = backend.runner.outputs.leaves, gradients.outputs
    if stacked and not cotangents:
        pairs = zip(stacked, backend.activity.ys, strict=True)
        cotangents = [torch.ones_like(leaf) if active else None for leaf, active in pairs]
    pairs = zip(backend.runner.tree.flatten_like(state, "carry"), backend.activity.carry, strict=True)
    carry = [torch.ones_like(leaf) if active and isinstance(leaf, Tensor) else None for leaf, active in pairs]
    return replace(gradients, carry=carry, outputs=cotangents)


def _check_it_fits(need: int, devices: Sequence[torch.device]) -> None:
    """Raise an InfeasibleError if fewer bytes are free than a step takes."""
    free = free_bytes(devices) or free_host_bytes()
    if free is not None and need > free:
        raise InfeasibleError(
            f"a single step takes {bytes_text(need, up=True)} and {bytes_text(free)} are free on the device: a budget "
            "cannot help. Free memory, or make the step smaller",
            need,
            "bytes",
        )

"""What a step costs on NumPy, measured by running the first steps of a loop a few times under tracemalloc."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from remat.execute.gradients import Gradients
from remat.execute.state_replay import preserved_state
from remat.frameworks.numpy.backend import NumpyBackend
from remat.frameworks.numpy.leaves import ArraySpec
from remat.frameworks.numpy.meter import NumpyMeter
from remat.loops.loop_call import LoopCall
from remat.measuring import MeasurementSetup, StepCost, measure_step
from remat.measuring.cost_cache import cached_cost

__all__ = ["measured"]

STEPS = 8  # of which a few are run


def measured(call: LoopCall[NumpyBackend], leaves: Sequence[Any], *, custom_vjp: bool) -> StepCost:
    """What a step costs: from a few runs of the first ones, or from an earlier loop whose first step is as large.

    Random generators get back their state.
    """
    with preserved_state(call.step.replayable_states):
        specs = tuple(ArraySpec.of(leaf, "leaf") for leaf in leaves)
        key = ("numpy", *call.step.cache_key, call.carry, call.xs, specs, tuple(call.needs_grad), custom_vjp)
        backend, state = call.new_backend(leaves, 1)
        tape_bytes = backend.size(backend.record(state, 0, 1)[1])
        assert call.request.memory is not None
        capacity = call.request.memory.device.capacity or 0
        return cached_cost(key, (tape_bytes,), capacity, lambda: _measure(call, leaves, capacity))


def _measure(call: LoopCall[NumpyBackend], leaves: Sequence[Any], capacity: int) -> StepCost:
    """Run the first steps a few times; only the first one if the length is not known: there may be no second."""
    steps = min(call.steps or 1, STEPS)
    backend, state = call.new_backend(leaves, steps)
    empty = backend.new_gradients([], (), [leaf[:steps] for leaf in call.split(leaves)[1]])

    def ones_like(state: Any, gradients: Gradients | None) -> Gradients:
        gradients = gradients or empty
        runner, outputs = backend.runner, gradients.outputs
        if runner.outputs.leaves and not outputs:
            outputs = _ones(runner.outputs.leaves, runner.outputs.specs)
        carry = _ones(runner.tree.flatten_like(state, "carry"), runner.specs)
        return replace(gradients, carry=carry, outputs=outputs)

    return measure_step(MeasurementSetup(backend, NumpyMeter(), state, ones_like), steps, capacity)


def _ones(leaves: Sequence[Any], specs: Sequence[ArraySpec]) -> list[Any]:
    return [np.ones_like(leaf) if spec.differentiable else None for leaf, spec in zip(leaves, specs, strict=True)]

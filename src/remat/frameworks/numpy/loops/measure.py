"""The cost of a step on NumPy, measured by running the first steps of a loop a few times under tracemalloc."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from remat.execute.gradients import Gradients
from remat.execute.state_replay import StateReplay, preserved_state
from remat.frameworks.numpy.leaves import ArraySpec
from remat.frameworks.numpy.loops.backend import NumpyBackend
from remat.frameworks.numpy.meter import NumpyMeter
from remat.loops.loop_call import LoopCall
from remat.measuring import MeasurementSetup, StepCost, measure_step
from remat.measuring.cost_cache import cached_cost
from remat.pytree import Leaf, PyTree

__all__ = ["measured"]

STEPS = 8  # at most; the fourth is run, since the first carries may differ, and a short range from there


def measured(
    first: LoopCall[NumpyBackend], further: LoopCall[NumpyBackend], leaves: Sequence[Leaf], key: tuple[object, ...]
) -> StepCost:
    """The cost of a step: from a few runs of the first steps, or from an earlier loop whose first tape is as large.

    The loop itself is compared with the `first` run of step 0, not with `further` ones. No run has side effects. `key`
    is what the cost depends on besides the step and the sizes of its arguments.
    """
    states = [*first.step.replayable_states, first.step.counters]
    with preserved_state(states):
        replay = StateReplay(states)
        sizes = tuple((type(leaf), np.shape(leaf), getattr(leaf, "dtype", None)) for leaf in leaves)
        key = ("numpy", *first.step.cache_key, first.carry, first.xs, sizes, tuple(first.needs_grad), *key)
        # Always run: the bytes of its tape tell whether an earlier measurement was of the same step.
        backend, state = first.new_backend(leaves, 1)
        tape_bytes = backend.size(backend.record(state, 0, 1)[1])
        replay.rewind(replay.initial)
        assert first.request.memory is not None
        capacity = first.request.memory.device.capacity or 0
        return cached_cost(key, (tape_bytes,), capacity, lambda: _measure(further, leaves, capacity, replay))


def _measure(call: LoopCall[NumpyBackend], leaves: Sequence[Leaf], capacity: int, replay: StateReplay) -> StepCost:
    """Run the first steps a few times; if the length is unknown only the first, since there may be no second."""
    steps = min(call.steps or 1, STEPS)
    backend, state = call.new_backend(leaves, steps)
    empty = backend.new_gradients([], (), [leaf[:steps] for leaf in call.split(leaves)[1]])

    def ones_like(state: PyTree, gradients: Gradients | None) -> Gradients:
        gradients = gradients or empty  # sums are passed from pullback to pullback, as in a real reverse sweep
        runner, outputs = backend.runner, gradients.outputs
        if runner.outputs.leaves and not outputs:
            outputs = _ones(runner.outputs.leaves, runner.outputs.specs)
        carry = _ones(runner.tree.flatten_like(state, "carry"), runner.specs)
        return replace(gradients, carry=carry, outputs=outputs)

    setup = MeasurementSetup(backend, NumpyMeter(), state, ones_like, replay=replay)
    return measure_step(setup, steps, capacity)


def _ones(leaves: Sequence[Leaf], specs: Sequence[ArraySpec]) -> list[np.ndarray | None]:
    return [np.ones_like(leaf) if spec.differentiable else None for leaf, spec in zip(leaves, specs, strict=True)]

"""What a step costs on NumPy, measured by running the first steps of a loop a few times under tracemalloc."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from remat.execute.gradients import Gradients
from remat.execute.state_replay import StateReplay, preserved_state
from remat.frameworks.numpy.backend import NumpyBackend
from remat.frameworks.numpy.leaves import ArraySpec
from remat.frameworks.numpy.meter import NumpyMeter
from remat.loops.loop_call import LoopCall
from remat.measuring import MeasurementSetup, StepCost, measure_step
from remat.measuring.cost_cache import cached_cost
from remat.pytree import Leaf, PyTree

__all__ = ["measured"]

STEPS = 8  # of which a few are run: the fourth, as a carry may be other before, and a short range from it on


def measured(
    first: LoopCall[NumpyBackend], further: LoopCall[NumpyBackend], leaves: Sequence[Leaf], key: tuple[object, ...]
) -> StepCost:
    """What a step costs: from a few runs of the first ones, or from an earlier loop whose first step is as large.

    The `first` run of step 0 is the one that the loop itself is compared with, `further` ones are not. No trace is left
    of any. `key` is what the cost depends on besides the step and the sizes of its arguments.
    """
    states = [*first.step.replayable_states, first.step.counters]
    with preserved_state(states):
        replay = StateReplay(states)
        sizes = tuple((type(leaf), np.shape(leaf), getattr(leaf, "dtype", None)) for leaf in leaves)
        key = ("numpy", *first.step.cache_key, first.carry, first.xs, sizes, tuple(first.needs_grad), *key)
        # Run in any case: the bytes of its tape tell whether an earlier measurement is one of the same step.
        backend, state = first.new_backend(leaves, 1)
        tape_bytes = backend.size(backend.record(state, 0, 1)[1])
        replay.rewind(replay.initial)
        assert first.request.memory is not None
        capacity = first.request.memory.device.capacity or 0
        return cached_cost(key, (tape_bytes,), capacity, lambda: _measure(further, leaves, capacity, replay))


def _measure(call: LoopCall[NumpyBackend], leaves: Sequence[Leaf], capacity: int, replay: StateReplay) -> StepCost:
    """Run the first steps a few times; only the first one if the length is not known: there may be no second."""
    steps = min(call.steps or 1, STEPS)
    backend, state = call.new_backend(leaves, steps)
    empty = backend.new_gradients([], (), [leaf[:steps] for leaf in call.split(leaves)[1]])

    def ones_like(state: PyTree, gradients: Gradients | None) -> Gradients:
        gradients = gradients or empty  # sums go on from pullback to pullback, as in a real reverse sweep
        runner, outputs = backend.runner, gradients.outputs
        if runner.outputs.leaves and not outputs:
            outputs = _ones(runner.outputs.leaves, runner.outputs.specs)
        carry = _ones(runner.tree.flatten_like(state, "carry"), runner.specs)
        return replace(gradients, carry=carry, outputs=outputs)

    setup = MeasurementSetup(backend, NumpyMeter(), state, ones_like, replay=replay)
    return measure_step(setup, steps, capacity)


def _ones(leaves: Sequence[Leaf], specs: Sequence[ArraySpec]) -> list[np.ndarray | None]:
    return [np.ones_like(leaf) if spec.differentiable else None for leaf, spec in zip(leaves, specs, strict=True)]

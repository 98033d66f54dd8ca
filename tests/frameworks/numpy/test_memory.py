"""What is live is what the plan says: states by weak references, bytes by what Python allocates."""

import gc
import weakref

import autograd.numpy as np
import numpy
import pytest
from autograd import grad

import remat
from tests.frameworks.untracked import Box


@pytest.mark.parametrize(("steps", "slots"), [(50, 2), (50, 5), (200, 3)])
def test_no_more_states_are_alive_than_the_slots_and_the_working_set(monkeypatch, steps, slots):
    """With 2 slots a recursive executor would hold 12 of 50 states."""
    alive, most = Box(frozenset()), Box(0)  # a set, or a variable, would be put back where steps are run again

    def forget(number):
        alive.value -= {number}

    def watch(array):
        number = id(array)
        alive.value |= {number}
        weakref.finalize(array, forget, number)
        most.value = max(most.value, len(alive.value))
        return array

    from remat.frameworks.numpy.loops import backend

    original = backend.copier
    monkeypatch.setattr(backend, "copier", lambda **how: lambda leaf: watch(original(**how)(leaf)))

    def step(h, x):
        after = np.tanh(h * 1.1)
        if isinstance(after, numpy.ndarray):
            watch(after)
        return after, None

    gc.disable()  # nothing may wait for the collector
    try:
        grad(lambda h: np.sum(remat.scan(step, h, length=steps, slots=slots)[0]))(numpy.linspace(0, 1, 7))
    finally:
        gc.enable()
    assert 0 < most.value <= slots + 2
    assert not alive.value

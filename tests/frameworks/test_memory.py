"""What is live is what the plan says: states by weak references, bytes by what Python allocates."""

import gc
import tracemalloc
import weakref

import autograd.numpy as np
import numpy
import pytest
from autograd import grad

import remat


@pytest.mark.parametrize(("steps", "slots"), [(50, 2), (50, 5), (200, 3)])
def test_no_more_states_are_alive_than_the_slots_and_the_working_set(monkeypatch, steps, slots):
    """With 2 slots a recursive executor would hold 12 of 50 states."""
    alive, most = set(), [0]

    def watch(array):
        number = id(array)
        alive.add(number)
        weakref.finalize(array, alive.discard, number)
        most[0] = max(most[0], len(alive))
        return array

    from remat.frameworks.numpy import backend

    original = backend.frozen_copy
    monkeypatch.setattr(backend, "frozen_copy", lambda leaf: watch(original(leaf)))

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
    assert most[0] <= slots + 2
    assert not alive


def lstm_like(hidden=48, batch=24, steps=120):
    rng = numpy.random.default_rng(0)
    w = rng.normal(size=(hidden, hidden)) / hidden**0.5
    h = rng.normal(size=(batch, hidden))

    def loss(w, **budget):
        def step(state, x):
            h, c = state
            c = np.tanh(np.dot(h, w)) * c + np.sin(h)
            return (np.tanh(c) * h + 0.1, c), None

        return np.sum(remat.scan(step, (h, h), length=steps, **budget)[0][0])

    return loss, w


def traced_peak(function, *args):
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        function(*args)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("memory", ["1 MiB", "3 MiB", "8 MiB", "30 MiB"])
def test_the_true_peak_stays_under_the_budget(memory):
    loss, w = lstm_like()
    gradient = grad(lambda w: loss(w, memory=memory))
    gradient(w)  # measured and planned
    always_live = 3 * w.nbytes  # the gradient, and what autograd makes of it outside
    assert traced_peak(gradient, w) <= remat.Memory(memory).device.capacity + always_live


def test_the_first_call_measures_inside_the_budget_too():
    loss, w = lstm_like(hidden=49)
    assert traced_peak(grad(lambda w: loss(w, memory="4 MiB")), w) <= 2**22 + 3 * w.nbytes


def test_more_memory_means_less_recomputation_and_enough_of_it_none():
    loss, w = lstm_like(steps=60)
    counts = []
    for memory in ("600 KiB", "2 MiB", "64 MiB"):
        with remat.profile() as run:
            grad(lambda w, memory=memory: loss(w, memory=memory))(w)
        counts.append(run.calls[0].trace.forward_steps)
    assert counts[0] > counts[1] > counts[2] == 60


def test_a_fraction_is_of_what_is_free():
    loss, w = lstm_like(steps=20)
    with remat.profile() as run:
        grad(lambda w: loss(w, memory=0.5))(w)
    assert run.calls[0].trace.recomputed == 0


def test_a_measured_trace_agrees_with_the_simulation_of_its_plan():
    loss, w = lstm_like(steps=40)
    with remat.profile() as run:
        grad(lambda w: loss(w, slots=5))(w)
    plan, trace = run.calls[0].plan, run.calls[0].trace
    assert plan.forward_steps == trace.forward_steps
    state = next(iter(trace)).live.state["ram"] // 2  # a kept state and the working one
    tape = max(event.live.tape for event in trace)
    simulated = remat.plan(remat.Loop(40, state=state, tape=tape), slots=5).simulate()
    assert [event.op for event in trace] == [event.op for event in simulated]
    assert [event.live.state for event in trace] == [event.live.state for event in simulated]
    assert trace.peak == pytest.approx(simulated.peak, rel=0.05)
    assert (trace.advances, trace.records) == (simulated.advances, simulated.records)
    assert trace.seconds > 0
    assert {what for what, _, _ in trace.at_peak} == {what for what, _, _ in simulated.at_peak}
    assert "forward" in str(trace)


def test_progress_is_told():
    class Bar:
        def __init__(self):
            self.told = []

        def update(self, done, total):
            self.told.append((done, total))

    bar = Bar()
    grad(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=10, slots=3, progress=bar)[0])(0.3)
    assert bar.told[-1] == (35, 35)  # 25 forward steps and 10 pullbacks
    assert bar.told == sorted(bar.told)


def test_outputs_of_a_long_range_are_pulled_back_one_step_at_a_time():
    def heat(h, x):
        return h + 0.1 * (np.roll(h, 1) + np.roll(h, -1) - 2 * h), np.mean(h)

    def loss(h):
        return np.sum(remat.scan(heat, h, length=120, memory="3 MiB")[1] ** 2)

    h = numpy.linspace(0, 1, 5000)
    grad(loss)(h)
    assert traced_peak(grad(loss), h) <= 3 * 2**20 + 3 * h.nbytes

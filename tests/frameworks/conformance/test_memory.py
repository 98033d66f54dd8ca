"""What is live is what the plan says: states by weak references, bytes by what each framework allocates."""

import gc
import weakref

import numpy
import pytest

import remat
from remat.units import to_bytes

from .comparison import assert_same
from .frameworks import where_python_runs_each_step

# What a program allocates depends on how it is optimised.
optimised = pytest.mark.parametrize("quick", [False], ids=["optimised"])


@pytest.fixture
def no_collector():
    """Nothing may wait for the collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# States.


@where_python_runs_each_step  # inside of a compiled program there are no objects to count
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(("steps", "slots"), [(50, 2), (50, 3), (50, 5), (200, 3), (200, 9)])
def test_no_more_states_are_alive_than_the_slots_and_the_working_set(framework, steps, slots):
    """With 2 slots a recursive executor would hold 12 of 50 states."""
    alive, most = set(), [0]

    def watch(array):
        storage = framework.storage(array)
        if storage is not None:
            number = id(storage)
            alive.add(number)
            weakref.finalize(storage, alive.discard, number)
            most[0] = max(most[0], len(alive))

    def step(h, _):
        after = framework.np.tanh(h * 1.1)
        watch(after)
        return after, None

    def last(h):
        return framework.np.sum(remat.scan(step, h, length=steps, slots=slots)[0])

    framework.gradient(last, framework.array(numpy.linspace(0, 1, 7)))
    assert most[0] <= slots + 2  # the working state, and the one that the running step makes
    assert not alive


@where_python_runs_each_step  # the same
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("backward", [True, False])
def test_everything_is_free_after_the_reverse_sweep_and_when_there_is_none(framework, backward):
    alive = []

    def step(h, x):
        after = framework.np.tanh(h * 1.1 + x)
        storage = framework.storage(after)
        if storage is not None:
            alive.append(weakref.ref(storage))
        return after, after * 2

    xs = framework.array(numpy.ones((30, 3)))
    pull = framework.vjp(
        lambda h: framework.np.sum(remat.scan(step, h, xs, slots=4)[1]), framework.array([1.0, 2.0, 3.0])
    )
    if backward:
        pull(framework.array(1.0))
    del pull
    assert alive
    assert not any(ref() is not None for ref in alive)


# Bytes.


def lstm_like(framework, hidden=48, batch=24, steps=120):
    """A loss whose state is large beside what Python allocates around it, and its parameters."""
    np, rng = framework.np, numpy.random.default_rng(0)
    w = framework.array(rng.normal(size=(hidden, hidden)) / hidden**0.5)
    h = framework.array(rng.normal(size=(batch, hidden)))

    def loss(w, **budget):
        def step(state, x):
            h, c = state
            c = np.tanh(np.dot(h, w)) * c + np.sin(h)
            return (np.tanh(c) * h + 0.1, c), None

        return np.sum(remat.scan(step, (h, h), length=steps, **budget)[0][0])

    return loss, w


@optimised
@pytest.mark.parametrize("memory", ["1 MiB", "3 MiB", "8 MiB", "30 MiB"])
def test_peaks_stay_within_the_budget(framework, memory):
    loss, w = lstm_like(framework)

    def budgeted(w):
        return loss(w, memory=memory)

    if framework.runs_python:
        framework.gradient(budgeted, w)  # measured and planned
    always = 3 * 48 * 48 * 8  # the gradient, and what the framework makes of it outside
    assert framework.peak(budgeted, w) <= to_bytes(memory, "memory") + always


@where_python_runs_each_step  # JAX measures nothing: sizes come from shapes
def test_the_first_call_measures_inside_the_budget_too(framework):
    loss, w = lstm_like(framework, hidden=49)
    assert framework.peak(lambda w: loss(w, memory="4 MiB"), w) <= 2**22 + 3 * 49 * 49 * 8


@optimised
def test_slots_bound_what_is_allocated(framework):
    """Four times as many steps take hardly more memory; a plain loop would hold something of every step."""

    def peak(steps):
        loss, w = lstm_like(framework, steps=steps)
        if framework.runs_python:
            framework.gradient(lambda w: loss(w, slots=5), w)  # planned
        return framework.peak(lambda w: loss(w, slots=5), w)

    state, short, long = 2 * 24 * 48 * 8, peak(30), peak(120)
    assert long <= 1.5 * short  # what is noted of each step is small
    assert long < 40 * state  # 6 of them, residuals of a step, cotangents


@optimised
def test_outputs_of_a_long_range_are_pulled_back_one_step_at_a_time(framework):
    np = framework.np

    def heat(h, x):
        return h + 0.1 * (np.roll(h, 1) + np.roll(h, -1) - 2 * h), np.mean(h)

    def loss(h):
        return np.sum(remat.scan(heat, h, length=120, memory="3 MiB")[1] ** 2)

    h = framework.array(numpy.linspace(0, 1, 5000))
    if framework.runs_python:
        framework.gradient(loss, h)
    assert framework.peak(loss, h) <= 3 * 2**20 + 3 * 5000 * 8


# Budgets, plans and traces.


def calls_of(framework, loss, w, **how):
    """What a profile says of the gradient of a loss."""
    with remat.profile() as run:
        found = framework.gradient(lambda w: loss(w, **how), w)
    assert len(run.calls) == 1
    return run.calls[0], found


def test_more_memory_means_less_recomputation_and_enough_of_it_none(framework):
    loss, w = lstm_like(framework, steps=60)
    found = [calls_of(framework, loss, w, memory=memory) for memory in ("600 KiB", "2 MiB", "64 MiB")]
    steps = [call.plan.forward_steps for call, _ in found]
    assert steps[0] > steps[1] > steps[2] == 60
    if framework.runs_python:
        assert [call.trace.forward_steps for call, _ in found] == steps
    for _, gradients in found[1:]:
        assert_same(gradients, found[0][1])


def test_a_fraction_is_of_what_is_free(framework):
    loss, w = lstm_like(framework, steps=20)
    call, _ = calls_of(framework, loss, w, memory=0.5)
    assert call.budget > 2**20
    assert call.plan.forward_steps == 20


def test_a_profile_names_the_framework_and_what_was_planned(framework):
    loss, w = lstm_like(framework, steps=20)
    call, _ = calls_of(framework, loss, w, slots=3, **framework.any_plan)
    assert (call.framework, call.steps, call.status) == (framework.name, 20, "done")
    assert call.plan.forward_steps == call.trace.forward_steps
    assert call.plan.forward_steps == remat.plan(remat.Loop(20), slots=3).forward_steps


def test_measured_traces_agree_with_the_simulation_of_their_plans(framework):
    loss, w = lstm_like(framework, steps=40)
    call, _ = calls_of(framework, loss, w, slots=5, **framework.any_plan)
    plan, trace = call.plan, call.trace
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


def test_predicted_and_measured_peaks_agree(framework):
    loss, w = lstm_like(framework)
    call, _ = calls_of(framework, loss, w, memory="3 MiB", **framework.any_plan)
    assert call.trace.peak <= 3 * 2**20
    assert call.trace.peak == pytest.approx(call.plan.peak, rel=0.05)
    assert call.trace.forward_steps == call.plan.forward_steps


def test_progress_is_told_to_the_end(framework):
    class Bar:
        def __init__(self):
            self.told = []

        def update(self, done, total):
            self.told.append((done, total))

    bar = Bar()
    framework.gradient(
        lambda x: remat.scan(
            lambda x, _: (framework.np.sin(x), None), x, length=10, slots=3, progress=bar, **framework.any_plan
        )[0],
        framework.array(0.3),
    )
    assert bar.told[-1] == (35, 35)  # 25 forward steps and 10 pullbacks
    assert [done for done, _ in bar.told] == sorted(done for done, _ in bar.told)

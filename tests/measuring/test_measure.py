"""Measuring finds what a step costs in bytes, and runs it a few times only."""

import gc
import weakref
from itertools import count

import autograd.numpy as np
import numpy
import pytest
from autograd import grad

import remat
from remat.measuring import StepCost
from remat.measuring import cost_cache as loop_calls
from remat.planners.measured_budget import plan_within
from remat.problem import Loop, Memory


def measured(step, init, steps=50, memory="50 MiB"):
    loop_calls._costs.clear()
    with remat.profile() as run:
        grad(lambda h: np.sum(remat.scan(step, h, length=steps, memory=memory)[0]))(init)
    ((_, found, _),) = loop_calls._costs.values()
    return found, run.calls[0]


def test_sizes_are_those_of_the_arrays():
    h = numpy.ones((100, 100))
    found, _ = measured(lambda h, _: (np.tanh(h), None), h)
    assert found.loop.state == pytest.approx(h.nbytes, rel=0.02)
    assert found.loop.tape == pytest.approx(h.nbytes, rel=0.1)  # tanh holds its result
    found, _ = measured(lambda h, _: (np.sin(np.tanh(h)) * h, None), h)
    assert found.loop.tape == pytest.approx(3 * h.nbytes, rel=0.1)  # h, tanh h, and sin of that
    assert found.loop.backward > 0 < found.loop.forward
    assert found.loop.record > 0


def test_what_a_step_allocates_while_it_runs_is_set_aside():
    h = numpy.ones((10, 10))

    def step(h, _):
        return h + np.sum(numpy.ones((300, 1000))) * 1e-9, None

    found, ran = measured(step, h, memory="5 MiB")
    assert found.workspace >= 2_400_000
    assert ran.plan.memory.device.capacity <= 5 * 2**20 - 2_400_000
    assert "set aside" in ran.plan.reason


def test_a_step_is_measured_once_for_all_calls_that_look_the_same():
    loop_calls._costs.clear()

    def gradient(h, scale):
        calls = count()  # an iterator: measuring puts variables back

        def step(h, _):
            next(calls)
            return np.tanh(h * scale), None

        grad(lambda h: np.sum(remat.scan(step, h, length=100, memory="50 MiB")[0]))(h)
        return next(calls)

    first = gradient(numpy.ones(1000), 1.0)
    assert 100 < first <= 135
    assert gradient(numpy.ones(1000), 2.0) == 101  # all tapes fit, and one step was looked at before
    assert gradient(numpy.ones(2000), 2.0) == first
    assert len(loop_calls._costs) == 2


def test_measuring_uses_up_no_random_numbers():
    def step(x, _):
        return x + numpy.random.rand(), None

    loop_calls._costs.clear()
    results = []
    for how in ({"slots": 5}, {"memory": "5 MiB"}):
        numpy.random.seed(7)
        values = []

        def loss(x, how=how, values=values):
            end = remat.scan(step, x, length=20, **how)[0]
            values.append(end._value)
            return end

        grad(loss)(1.0)
        results.append(values[0])
    assert results[0] == results[1]


def test_tape_sizes_agree_with_what_is_allocated():
    from remat.frameworks.numpy.meter import NumpyMeter

    loop_calls._costs.clear()
    w = numpy.ones((64, 64)) / 64

    def step(state, _):
        h, c = state
        gate = np.tanh(np.dot(h, w))
        c = c * gate + np.sin(h)
        return (np.tanh(c), c), None

    with remat.profile() as run:
        grad(lambda h: np.sum(remat.scan(step, (h, h), length=10, slots=3)[0][0]))(numpy.ones((32, 64)))
    by_walking = max(event.live.tape for event in run.calls[0].trace)
    grad(lambda h: np.sum(remat.scan(step, (h, h), length=10, memory="4 MiB")[0][0]))(numpy.ones((32, 64)))
    found = next(iter(loop_calls._costs.values()))[1]
    assert by_walking == pytest.approx(found.loop.tape + found.bytes_per_range, rel=0.1)
    meter = NumpyMeter()
    with meter.counting():
        before = meter.now()
        array = numpy.ones(100_000)
        assert meter.now() - before >= array.nbytes


def test_a_step_that_is_larger_is_measured_anew():
    def run(op, times):
        def step(h, _):
            for _ in range(times):
                h = op(h)
            return h, None

        grad(lambda h: np.sum(remat.scan(step, h, length=50, memory="1 MiB")[0]))(numpy.ones(2000) * 0.5)
        return list(loop_calls._costs.values())[-1][1].loop.tape

    loop_calls._costs.clear()
    small = run(np.negative, numpy.int64(3))
    assert run(np.tanh, numpy.int64(3)) > small + 40_000
    assert run(np.tanh, numpy.int64(6)) > small + 90_000
    assert len(loop_calls._costs) == 1


def test_what_is_remembered_holds_nothing_of_the_users():
    class Big:
        pass

    def loss(h):
        big = Big()
        alive.append(weakref.ref(big))
        return np.sum(remat.scan(lambda h, _: (np.tanh(h) + (big is None), None), h, length=9, memory="1 MiB")[0])

    alive = []
    grad(loss)(numpy.ones(10))
    gc.collect()
    assert alive[0]() is None


def test_a_loop_of_unknown_length_is_measured_on_its_first_step_only():
    table = [1.0, 2.0]

    def loss(w):
        body = lambda c: (c[0] + 1, c[1] * table[c[0]] * w)  # noqa: E731
        return remat.while_loop(lambda c: c[0] < 2, body, (0, 1.0), memory="4 MiB")[1]

    assert grad(loss)(0.5) == pytest.approx(2.0)
    assert grad(lambda w: remat.while_loop(lambda c: False, lambda c: 1 / 0, w, memory="4 MiB"))(0.5) == 1.0


def test_a_step_that_was_measured_in_little_room_is_measured_again_where_there_is_more():
    loop_calls._costs.clear()
    w = numpy.ones((64, 64)) / 64

    def gradient(memory):
        def step(state, _):
            h, c = state
            c = c * np.tanh(np.dot(h, w)) + np.sin(h)
            return (np.tanh(c), c), None

        with remat.profile() as run:
            grad(lambda h: np.sum(remat.scan(step, (h, h), length=100, memory=memory)[0][0]))(numpy.ones((64, 64)))
        return run.calls[0]

    with pytest.raises(remat.InfeasibleError):
        gradient("300 KiB")
    call = gradient("8 MiB")
    assert call.trace.peak == pytest.approx(call.plan.peak, rel=0.05)


@pytest.mark.parametrize(("hidden", "memory"), [(16, "1 MiB"), (48, "4 MiB"), (96, "16 MiB")])
def test_predictions_hold_and_budgets_are_used(hidden, memory):
    from remat.units import to_bytes

    loop_calls._costs.clear()
    rng = numpy.random.default_rng(0)
    w, xs = rng.normal(size=(hidden, hidden)) / hidden**0.5, rng.normal(size=(200, 24, hidden))

    def loss(w):
        def step(state, x):
            h, c = state
            c = c * np.tanh(np.dot(h, w) + x) + np.sin(h)
            return (np.tanh(c), c), None

        zeros = numpy.zeros((24, hidden))
        return np.sum(remat.scan(step, (zeros, zeros), xs, memory=memory)[0][0])

    with remat.profile() as run:
        grad(loss)(w)
    (call,) = run.calls
    assert call.trace.peak == pytest.approx(call.plan.peak, rel=0.05)
    assert call.trace.peak >= 0.6 * to_bytes(memory, "memory") or call.trace.recomputed == 0


@pytest.mark.parametrize("sizes", [(100, 1_000, 50), (562, 252_624, 76_374), (10**6, 5 * 10**6, 10**5)])
def test_the_smallest_budget_that_an_error_names_is_the_smallest(sizes):
    state, tape, workspace = sizes
    cost = StepCost(Loop(None, state, tape, 1.0, 1.0, 2.0), workspace)
    with pytest.raises(remat.InfeasibleError) as caught:
        plan_within(cost, 50, Memory(10))
    plan_within(cost, 50, Memory(caught.value.minimum))
    with pytest.raises(remat.InfeasibleError):
        plan_within(cost, 50, Memory(caught.value.minimum - 1))

"""Steps that write into arrays: the numbers of the plain program, and nobody's data is overwritten."""

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, value_and_grad
from autograd.tracer import getval

import remat
from remat.frameworks.numpy.leaves import numbers

BUDGETS = [{"slots": 3}, {"memory": "300 KiB"}, {"memory": "10 MiB"}]


def plain(step, carry, xs):
    ys = []
    for x in xs:
        carry, y = step(carry, x)
        ys.append(y)
    return carry, None if ys[0] is None else np.stack(ys)


def assert_as_plain(loss, x, **budget):
    """`loss(x, loop)` has the value and the gradient of the plain loop."""
    found = value_and_grad(loss)(x, lambda *args: remat.scan(*args, **budget))
    expected = value_and_grad(loss)(x, plain)
    for a, b in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_captured_parameter_is_not_written_into(budget):
    matrix = numpy.array([[2.0, -1.0], [-1.0, 2.0]])

    def loss(b, loop):
        def step(x, _):
            r = b
            r -= np.dot(matrix, x)
            return x + 0.1 * r, None

        return np.sum(loop(step, numpy.zeros(2), numpy.arange(40))[0] ** 2)

    b = numpy.array([1.0, 2.0])
    assert_as_plain(loss, b, **budget)
    assert b.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("check", ["first", "always", "never"])
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_step_that_writes_now_and_then(budget, check):
    def loss(a, loop):
        def step(s, i):
            h = previous = s[0]
            h = h if i % 10 == 7 else np.sin(h) * a
            if i % 10 == 7:
                h += 0.5 * a
            return (h, previous), np.sum(h * previous)

        return np.sum(loop(step, (numpy.linspace(1, 2, 5), numpy.zeros(5)), numpy.arange(50))[1] ** 2)

    assert_as_plain(loss, 0.99, check=check, **budget)


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_carry_that_no_gradient_flows_to_may_be_written_into(budget, kind):
    def loss(a, loop):
        def step(s, i):
            h, visits = s
            visits[i % 4] += 1
            return (h * a + 0.01 * visits[0], visits), None

        return np.sum(loop(step, (np.ones(3), numpy.zeros(4, kind)), numpy.arange(40))[0][0] ** 2)

    assert_as_plain(loss, 0.9, **budget)


def test_two_names_of_one_array_stay_one_array():
    def loss(a, loop):
        def step(s, i):
            h, visits, same = s
            visits[i % 4] += 1
            return (h * a + 0.01 * same[0], visits, visits), None

        counts = numpy.zeros(4)
        return np.sum(loop(step, (np.ones(3), counts, counts), numpy.arange(9))[0][0] ** 2)

    assert_as_plain(loss, 0.9, slots=3)


def test_a_float_that_no_gradient_flows_to_may_go_where_boxes_cannot():
    import math

    def loss(a, loop):
        def step(s, x):
            h, t = s
            return (h * a + math.sin(t), t + float(x)), None

        return np.sum(loop(step, (np.ones(3), 0.0), numpy.arange(9.0))[0][0] ** 2)

    assert_as_plain(loss, 0.9, slots=3)


def test_a_leaf_that_becomes_active_in_a_later_step():
    def loss(a, loop):
        def step(s, i):
            h, buffer = s
            if i < 4:
                buffer[0] += 1.0
            else:
                buffer = buffer * a
            return (h * a + buffer[0], buffer), None

        return np.sum(loop(step, (np.ones(2), numpy.zeros(2)), numpy.arange(12))[0][0] ** 2)

    assert_as_plain(loss, 0.9, slots=3)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("check", ["first", "never"])
def test_a_histogram_that_the_step_closes_over_counts_each_step_once(budget, check):
    def loss(a, loop, visits=None):
        visits = numpy.zeros(4) if visits is None else visits

        def step(h, i):
            visits[i % 4] += 1
            return h * a + 0.01 * visits[0], None

        return np.sum(loop(step, np.ones(3), numpy.arange(40))[0] ** 2)

    assert_as_plain(loss, 0.9, check=check, **budget)
    visits = numpy.zeros(4)
    grad(loss)(0.9, lambda *args: remat.scan(*args, check=check, **budget), visits)
    assert visits.tolist() == [10.0] * 4


def test_a_large_log_that_the_step_writes_is_written():
    log = numpy.zeros(20_000)

    def loss(a, loop):
        def step(h, i):
            log[i] = getval(np.sum(h))
            return h * a, None

        return np.sum(loop(step, np.ones(3), numpy.arange(40))[0] ** 2)

    assert_as_plain(loss, 0.9, slots=3)
    assert numpy.count_nonzero(log) == 40


def test_an_array_of_the_users_that_is_a_result_is_not_written_into_later():
    scratch = numpy.zeros(2)

    def step(h, x):
        if isinstance(h, numpy.ndarray):
            numpy.multiply(h, 0.9, out=scratch)
            return scratch, None
        return h * 0.9, None

    def loss(h):
        last.append(remat.scan(step, h, length=15, slots=3)[0])
        return np.sum(last[0] ** 2)

    last = []
    grad(loss)(numpy.array([0.3, 0.8]))
    numpy.testing.assert_allclose(getval(last[0]), numpy.array([0.3, 0.8]) * 0.9**15)


def test_a_scratch_array_of_a_step_with_a_vjp_of_its_own():
    scratch = numpy.zeros(2)

    def step(h, x):
        numpy.sin(h, out=scratch)
        return scratch, None

    def vjp(h, x, carry_bar, y_bar):
        return carry_bar * numpy.cos(h), None

    def loss(h, loop):
        return np.sum(loop(h) ** 2)

    h = numpy.array([0.3, 0.8])
    plan = remat.plan(remat.Loop(12), slots=3, planner="chunks")
    found = grad(loss)(h, lambda h: remat.scan(step, h, length=12, plan=plan, vjp=vjp)[0])
    expected = grad(loss)(h, lambda h: plain(lambda h, x: (np.sin(h), None), h, range(12))[0])
    numpy.testing.assert_allclose(found, expected, rtol=1e-13)


def test_a_loop_inside_of_a_step_or_segment_writes_into_a_captured_parameter():
    def loss(b, loop, segment=lambda fn, h: fn(h)):
        def inner(h, x):
            r = b
            r -= 0.5 * h
            return np.tanh(h + r), None

        def outer(h, x):
            return segment(lambda h: loop(inner, h, numpy.arange(2))[0], h), None

        return np.sum(loop(outer, b * 1.0, numpy.arange(5))[0] ** 2)

    def with_segments(b, loop):
        return loss(b, loop) if loop is plain else loss(b, loop, remat.checkpoint)

    b = numpy.array([1.0, 2.0])
    assert_as_plain(loss, b, slots=2)
    assert_as_plain(with_segments, b, slots=2)
    assert b.tolist() == [1.0, 2.0]


def test_a_buffer_that_no_gradient_flows_to_goes_from_loop_to_loop():
    def loss(a, loop):
        def inner(s, i):
            h, visits = s
            visits[i % 4] += 1
            return (h * a + 0.01 * visits[0], visits), None

        def outer(s, i):
            (h, visits), _ = loop(inner, s, numpy.arange(3))
            visits[3] += 1
            return (h, visits), None

        return np.sum(loop(outer, (np.ones(3), numpy.zeros(4)), numpy.arange(6))[0][0] ** 2)

    assert_as_plain(loss, 0.9, slots=2)


@pytest.mark.parametrize("kind", [int, float])
def test_second_derivatives_of_a_step_that_writes_into_a_buffer(kind):
    def gradient(a, loop):
        def step(s, i):
            h, visits = s
            visits[i % 4] += 1
            h += 0.01 * visits[0]
            return (np.sin(h * a), visits), None

        return grad(lambda a: np.sum(loop(step, (a * np.ones(3), numpy.zeros(4, kind)), numpy.arange(9))[0][0]))(a)

    assert_as_plain(gradient, 0.9, slots=2)


def test_zero_times_infinity_is_nan_as_in_the_plain_program():
    def loss(a, loop):
        last, _ = loop(lambda h, x: (np.exp(h * a), None), 710.0 * a, numpy.arange(2))
        return np.tanh(last)

    with numpy.errstate(all="ignore"):
        assert numpy.isnan(grad(loss)(1.0, plain))
        assert numpy.isnan(grad(loss)(1.0, lambda *args: remat.scan(*args, slots=1)))
        assert numpy.isnan(grad(lambda a: remat.checkpoint(lambda a: np.tanh(np.exp(710.0 * a) ** 2), a))(1.0))


def doubled(log):
    """A step that writes by an operator into an array of its own, which has another name and is in the user's log."""

    def step(a, h):
        t = kept = np.sin(h)
        log.append(numbers(t))
        t += 0.1 * a
        return t * kept + h + 0.1 * log[0]

    return step


@pytest.mark.parametrize("check", ["first", "never"])
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_operators_make_new_arrays_also_in_steps_without_a_tape(budget, check):
    logs = [], []

    def loss(a, loop, log=None):
        step = doubled(logs[loop is plain] if log is None else log)
        return np.sum(loop(lambda h, x: (step(a, h), None), a * np.ones(3), numpy.arange(12))[0] ** 2)

    assert_as_plain(loss, 0.7, check=check, **budget)
    numpy.testing.assert_allclose(*logs, rtol=1e-12)
    assert_as_plain(lambda a, loop: grad(loss)(a, loop, []), 0.7, check=check, **budget)


def test_operators_on_items_and_on_variables_of_inner_functions():
    def items(a, h):
        parts = [np.sin(h)]
        kept = parts[0]
        parts[0] += 0.1 * a
        return parts[0] * kept + h

    def inner(a, h):
        t = kept = np.sin(h)
        now = lambda: t  # noqa: E731
        t += 0.1 * a
        return now() * kept + h

    for step in (items, inner):

        def loss(a, loop, step=step):
            return np.sum(loop(lambda h, x: (step(a, h), None), a * np.ones(3), numpy.arange(7))[0])

        assert_as_plain(loss, 0.7, slots=2)


@pytest.mark.parametrize("check", ["first", "never"])
def test_operators_make_new_arrays_also_in_segments(check):
    logs = [], []

    def loss(a, is_plain):
        step = doubled(logs[is_plain])
        return np.sum((step if is_plain else remat.drop(step, check=check))(a, a * np.ones(3)))

    assert value_and_grad(loss)(0.7, False) == value_and_grad(loss)(0.7, True)
    numpy.testing.assert_array_equal(*logs)

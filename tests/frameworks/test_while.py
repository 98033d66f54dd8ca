"""`while_loop`: exact gradients of loops that find their end as they run."""

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, hessian, make_jvp
from hypothesis import given, settings
from hypothesis import strategies as st

import remat

from .conftest import assert_same


def plain(x, a, most=None):
    steps = 0
    while x[0] < 10.0 * a[1] and steps != most:
        x = x * a[0] + 0.2 * np.sin(x) + 0.3
        steps += 1
    return np.sum(x**2) * a[1]


def ours(x, a, most=None, **budget):
    end = remat.while_loop(
        lambda x: x[0] < 10.0 * a[1], lambda x: x * a[0] + 0.2 * np.sin(x) + 0.3, x, max_steps=most, **budget
    )
    return np.sum(end**2) * a[1]


X, A = numpy.array([0.5, 0.7]), numpy.array([1.02, 3.0])


@pytest.mark.parametrize("budget", [{"slots": 1}, {"slots": 4}, {"slots": 200}, {"memory": "2 MiB"}], ids=str)
@pytest.mark.parametrize("most", [None, 0, 1, 7, 1000])
def test_gradients_are_those_of_the_plain_loop(budget, most):
    for argnum in (0, 1):
        assert_same(grad(ours, argnum)(X, A, most, **budget), grad(plain, argnum)(X, A, most))


def test_a_loop_that_does_not_begin():
    start = numpy.array([100.0, 1.0])
    assert_same(grad(ours)(start, A, slots=2), grad(plain)(start, A))
    assert remat.while_loop(lambda x: False, None.__class__, 3.0, slots=1) == 3.0


@given(st.integers(1, 80), st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_steps_are_run_as_often_as_the_online_plan_says(steps, slots):
    calls = []

    def body(state):
        calls.append(None)
        return state[0] + 1, np.sin(state[1])

    grad(lambda x: remat.while_loop(lambda s: s[0] < steps, body, (0, x), slots=slots)[1])(0.3)
    driver = remat.plan(remat.Loop(None), slots=slots).start()
    for _ in range(steps):
        driver.advance()
    driver.ended()
    assert len(calls) == driver.plan().forward_steps


def test_a_bound_on_the_steps_makes_the_last_one_known():
    calls = []

    def body(x):
        calls.append(None)
        return np.sin(x)

    grad(lambda x: remat.while_loop(lambda x: True, body, x, max_steps=50, slots=50))(0.3)
    assert len(calls) == 99


def test_second_order_and_forward_mode():
    def of(loss):
        return lambda x: loss(x, A)

    def with_slots(x, a):
        return ours(x, a, slots=3)

    assert_same(hessian(of(with_slots))(X), hessian(of(plain))(X), 1e-10)
    assert_same(make_jvp(of(with_slots))(X)(X), make_jvp(of(plain))(X)(X), 1e-10)


def test_long_loops_are_guarded_in_little_memory():
    calls = [0]

    def body(x):
        calls[0] += 1
        return x + 1.0 + (calls[0] > 40_000)

    with pytest.raises(remat.DeterminismError):
        grad(lambda x: remat.while_loop(lambda x: x < 30_000.0, body, x, slots=100))(0.0)


def test_a_budget_is_needed():
    with pytest.raises(remat.ProblemError, match="give a budget"):
        remat.while_loop(lambda x: x < 1, lambda x: x + 1, 0.0)
    with pytest.raises(remat.InfeasibleError):
        grad(lambda x: remat.while_loop(lambda x: x < 1, lambda x: x + 1, x, slots=0))(0.0)
    with pytest.raises(remat.ProblemError, match="max_steps"):
        remat.while_loop(lambda x: x < 1, lambda x: x + 1, 0.0, slots=1, max_steps=-1)


def test_a_body_that_returns_another_structure():
    with pytest.raises(remat.StepError, match="carry was a tuple of 2"):
        remat.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1,), (0, 1.0), slots=1)


def test_a_condition_that_is_no_answer():
    with pytest.raises(remat.StepError, match="returned None"):
        remat.while_loop(lambda x: None, lambda x: x + 1, 0.0, slots=1)
    with pytest.raises(remat.StepError, match="2 values"):
        grad(lambda x: np.sum(remat.while_loop(lambda x: x < 1, lambda x: x + 1, x, slots=1)))(numpy.zeros(2))

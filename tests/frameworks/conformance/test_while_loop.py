"""Gradients through `while_loop` are those of the plain loop, for loops that find their end as they run."""

import functools

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remat

from .adapter import Counter
from .comparison import assert_same
from .frameworks import where_python_runs_each_step
from .programs import random

X, A = [0.5, 0.7], [1.02, 3.0]


def growth(framework, loop, x, a, **how):
    """A number that depends on the carry and on what condition and body close over."""
    np = framework.np

    def body(x):
        return x * a[0] + 0.2 * np.sin(x) + 0.3

    return np.sum(loop(lambda x: x[0] < 10.0 * a[1], body, x, **how) ** 2) * a[1]


@functools.cache
def plain_gradients(framework, most):
    return gradients(framework, framework.plain_while, max_steps=most)


def gradients(framework, loop, x=X, a=A, **how):
    args = framework.array(x), framework.array(a)
    return framework.value_and_gradient(lambda x, a: growth(framework, loop, x, a, **how), *args)


@pytest.mark.parametrize("budget", [{"slots": 1}, {"slots": 4}, {"slots": 200}, {"memory": "2 MiB"}], ids=str)
@pytest.mark.parametrize("most", [None, 0, 1, 7, 1000])
def test_gradients_are_those_of_the_plain_loop(framework, budget, most):
    found = gradients(framework, remat.while_loop, max_steps=most, **budget)
    expected = plain_gradients(framework, most)
    assert_same(found[0], expected[0])
    assert_same(found[1], expected[1])


@pytest.mark.parametrize("length", [0, 1, 6, 17])
def test_an_integer_in_the_carry_counts_the_steps(framework, length):
    np = framework.np
    args = random(framework, 0, 3, 3), framework.array(numpy.ones(3))

    def loss(loop, w, x, **how):
        start = framework.array(0, "int64"), x
        i, h = loop(lambda c: c[0] < length, lambda c: (c[0] + 1, np.tanh(np.dot(c[1], w))), start, **how)
        counts.append(framework.to_numpy(i) if framework.runs_python else length)
        return framework.weigh(h)

    counts = []
    found = framework.value_and_gradient(lambda *args: loss(remat.while_loop, *args, slots=3), *args)
    expected = framework.value_and_gradient(lambda *args: loss(framework.plain_while, *args), *args)
    assert counts == [length, length]
    tolerance = 0.0 if framework.runs_python else 1e-13
    assert_same(found[0], expected[0], tolerance)
    assert_same(found[1], expected[1], tolerance)


def test_a_loop_that_does_not_begin(framework):
    start = [100.0, 1.0]
    found = gradients(framework, remat.while_loop, start, slots=2)
    assert_same(found[1], gradients(framework, framework.plain_while, start)[1])
    same = remat.while_loop(lambda x: False, lambda x: x + 1, framework.array(3.0), slots=1)
    assert framework.to_numpy(same) == 3.0


@pytest.mark.parametrize("budget", [{"slots": 2}, {"memory": "64 KiB"}], ids=str)
def test_a_condition_that_always_holds_is_ended_by_max_steps(framework, budget):
    def last(x):
        return framework.np.sum(remat.while_loop(lambda h: True, lambda h: h * 1.1, x, max_steps=12, **budget))

    plain = 1.0
    for _ in range(12):
        plain *= 1.1
    value, (found,) = framework.value_and_gradient(last, framework.array(numpy.ones(3)))
    assert value == pytest.approx(3 * plain, rel=1e-15)
    numpy.testing.assert_allclose(found, numpy.full(3, plain), rtol=1e-14)


@where_python_runs_each_step  # JAX keeps states in places of its own, which its tests count
@given(steps=st.integers(1, 80), slots=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_steps_are_run_as_often_as_the_online_plan_says(framework, steps, slots):
    counter = framework.counter()

    def body(state):
        counter.here(state[1])
        return state[0] + 1, framework.np.sin(state[1])

    def last(x):
        return remat.while_loop(lambda s: s[0] < steps, body, (0, x), slots=slots)[1]

    framework.gradient(last, framework.array(0.3))
    driver = remat.plan(remat.Loop(None), slots=slots).start()
    for _ in range(steps):
        driver.advance()
    driver.ended()
    assert counter.count == driver.plan().forward_steps


@where_python_runs_each_step  # the same
def test_max_steps_makes_the_last_step_known(framework):
    counter = framework.counter()

    def body(x):
        counter.here(x)
        return framework.np.sin(x)

    framework.gradient(
        lambda x: remat.while_loop(lambda x: True, body, x, max_steps=50, slots=50), framework.array(0.3)
    )
    assert counter.count == 99


@where_python_runs_each_step
def test_the_condition_is_asked_once_for_each_carry(framework):
    asked = []

    def cond(h):
        asked.append(None)
        return bool(h < 5)

    framework.gradient(lambda x: remat.while_loop(cond, lambda h: h * 2, x, slots=2), framework.array(1.0))
    assert len(asked) == 4


@where_python_runs_each_step
def test_the_condition_may_count(framework):
    def loss(w):
        ticks = 0

        def cond(h):
            nonlocal ticks
            ticks += 1
            return ticks < 6

        return remat.while_loop(cond, lambda h: h * w, framework.array(1.0), slots=3, max_steps=100)

    assert framework.gradient(loss, framework.array(0.9))[0] == pytest.approx(5 * 0.9**4)


def test_second_order_and_forward_mode(framework):
    x, a = framework.array(X), framework.array(A)

    def of(loop, **how):
        return lambda x: growth(framework, loop, x, a, **how)

    most = framework.some(3, None)[-1]  # a few steps where each is compiled by itself
    ours, plain = of(remat.while_loop, slots=3, max_steps=most), of(framework.plain_while, max_steps=most)
    found, expected = (framework.to_numpy(framework.hessian(f, x)) for f in (ours, plain))
    assert_same([found], [expected], 1e-10)
    found, expected = (framework.to_numpy(framework.jvp(f, x, x)) for f in (ours, plain))
    assert_same([found], [expected], 1e-10)


@where_python_runs_each_step
def test_long_loops_are_checked_in_little_memory(framework):
    counter = Counter()

    def body(x):
        counter.calls += 1
        return x + 1.0 + (counter.calls > 8_000)

    with pytest.raises(remat.DeterminismError):
        framework.gradient(lambda x: remat.while_loop(lambda x: x < 6_000.0, body, x, slots=100), framework.array(0.0))


def test_arguments_that_make_no_sense(framework):
    zero = framework.array(0.0)

    def loop(x, **how):
        return remat.while_loop(lambda x: x < 3, lambda x: x + 1, x, **how)

    with pytest.raises(remat.ProblemError, match="give a budget"):
        loop(zero)
    with pytest.raises(remat.InfeasibleError, match="slot"):
        framework.gradient(lambda x: loop(x, slots=0), zero)
    for most in (-1, 2.5):
        with pytest.raises(remat.ProblemError, match="max_steps"):
            loop(zero, slots=1, max_steps=most)
    assert framework.to_numpy(loop(zero, slots=1, max_steps=2**40)) == 3.0
    with pytest.raises(remat.ProblemError, match="cond must be a function"):
        remat.while_loop(3, lambda x: x, zero, slots=2)
    with pytest.raises(remat.ProblemError, match="body must be a function"):
        remat.while_loop(lambda x: x < 3, None, zero, slots=2)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda c: {"h": c["h"]}, {"jax": r"carry\['i'\] is gone", "": "carry was a dict with h, i"}),
        (lambda c: (c["h"], c["i"]), {"jax": "structure", "": "carry was a dict with h, i and became a tuple of 2"}),
        (lambda c: {"h": c["h"][:1], "i": c["i"]}, r"carry\['h'\] was float64\[2\] and became float64\[1\]"),
        (lambda c: {"h": c["h"] > 0, "i": c["i"]}, r"carry\['h'\] was float64\[2\] and became bool"),
    ],
    ids=["leaf", "container", "shape", "dtype"],
)
def test_a_body_that_changes_the_carry_is_told_how(framework, body, said):
    init = {"h": framework.array([1.0, 2.0]), "i": framework.array(0, "int64")}
    message = said if isinstance(said, str) else said.get(framework.name, said[""])
    with pytest.raises(remat.StepError, match=message):
        remat.while_loop(lambda c: c["i"] < 3, body, init, slots=2)


def test_a_condition_that_is_no_truth_value(framework):
    two = framework.array([0.0, 0.0])
    with pytest.raises(remat.StepError, match=r"None|one truth value"):
        remat.while_loop(lambda x: None, lambda x: x + 1, framework.array(0.0), slots=1)
    if not framework.runs_python:  # to Python, any tuple that is not empty is true
        with pytest.raises(remat.StepError, match="one truth value"):
            remat.while_loop(lambda x: (True, True), lambda x: x + 1, framework.array(0.0), slots=1)
    with pytest.raises(remat.StepError, match=r"2 values|one truth value"):
        remat.while_loop(lambda x: x < 1, lambda x: x + 1, two, slots=1)
    with pytest.raises(remat.StepError, match=r"2 values|one truth value"):
        framework.gradient(
            lambda x: framework.np.sum(remat.while_loop(lambda x: x < 1, lambda x: x + 1, x, slots=1)), two
        )


def test_a_condition_and_a_body_that_are_swapped(framework):
    # The first number is promoted by every framework; the second is one of the framework's own.
    starts = [0.5, framework.array(0.5)]
    for start in starts if framework.name != "jax" else [framework.array(0.5)]:
        with pytest.raises(remat.StepError, match=r"returns a bool, .*while_loop\(cond, body, init"):
            remat.while_loop(lambda x: x + 1.0, lambda x: x < 10.0, start, slots=3)
    with pytest.raises(remat.StepError, match="bool"):
        framework.gradient(lambda x: remat.while_loop(lambda x: x + 1.0, lambda x: x < 10.0, x, slots=3), starts[1])


@pytest.mark.parametrize(
    "cond", [lambda x: int(x < 3.0), lambda x: numpy.bool_(x < 3.0), lambda x: numpy.array(x < 3.0), lambda x: 3.0 - x]
)
def test_a_condition_may_return_what_a_while_of_python_takes(cond):
    assert remat.while_loop(cond, lambda x: x + 1.0, 0.0, slots=3) == 3.0


def test_a_carry_that_is_a_bool_stays_one(framework):
    start = framework.array(1.0) < 2.0
    assert not remat.while_loop(lambda going: going, lambda going: going ^ start, start, slots=2)

"""What a step changes besides its carry: measuring and recomputing it leave no trace, or it is found out."""

import random

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, value_and_grad

import remat
from tests.frameworks.conformance.adapter import Counter

BUDGETS = [{"slots": 3}, {"memory": "10 MiB"}, {"memory": "10 MiB", "check": "always"}]


def plain(step, h, length):
    for _ in range(length):
        h, _ = step(h, None)
    return h


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_clock_is_as_in_the_plain_loop(budget):
    def run(loop):
        clock = [0.0]

        def step(h, _):
            clock[0] += 0.1
            return h * 0.9 + 0.01 * np.sin(clock[0]), None

        return value_and_grad(lambda h: np.sum(loop(step, h) ** 2))(numpy.ones(3)), clock[0]

    (value, gradient), time = run(lambda step, h: remat.scan(step, h, length=50, **budget)[0])
    (expected, slope), now = run(lambda step, h: plain(step, h, 50))
    assert (value, time) == (expected, now)
    numpy.testing.assert_array_equal(gradient, slope)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_an_iterator_that_cannot_be_put_back_is_found_out(budget):
    numbers = iter(numpy.sin(numpy.arange(2000)))

    def step(h, _):
        return h * 0.9 + next(numbers), None

    with pytest.raises(remat.DeterminismError, match="carry had other values"):
        grad(lambda h: np.sum(remat.scan(step, h, length=50, **budget)[0]))(numpy.ones(3))


@pytest.mark.parametrize("make", [numpy.random.default_rng, numpy.random.RandomState, random.Random])
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_generator_in_the_carry(make, budget):
    def run(loop):
        generator = make(3)

        def step(s, _):
            h, generator = s
            draw = generator.gauss(0, 1) if make is random.Random else generator.normal(size=3)
            return (h * 0.9 + 0.1 * draw, generator), None

        found = value_and_grad(lambda h: np.sum(loop(step, (h, generator))[0] ** 2))(numpy.ones(3))
        return *found, generator.random()

    for a, b in zip(
        run(lambda step, s: remat.scan(step, s, length=40, **budget)[0]),
        run(lambda step, s: plain(step, s, 40)),
        strict=True,
    ):
        numpy.testing.assert_array_equal(a, b)


def test_a_generator_in_the_carry_stays_the_same():
    def step(s, _):
        return (s[0] * 0.9, numpy.random.default_rng(0)), None

    with pytest.raises(remat.StepError, match="must stay the same generator"):
        grad(lambda h: remat.scan(step, (h, numpy.random.default_rng(0)), length=4, slots=2)[0][0])(1.0)


@pytest.mark.parametrize(("planner", "slots"), [("binomial", 5), ("chunks", 4), ("save-points", 3)])
def test_an_output_that_alone_changes_is_found_in_every_range(planner, slots):
    counter = Counter()

    def step(h, i):
        counter.calls += 1
        h = np.sin(0.9 * h) + 0.5
        return h, h * (counter.calls if i % 25 == 7 else 1.0)

    plan = remat.plan(remat.Loop(100), slots=slots, planner=planner)
    with pytest.raises(remat.DeterminismError, match=r"y had other values \(relative difference .*\) after step \d+"):
        grad(lambda h: np.sum(remat.scan(step, h, numpy.arange(100), plan=plan)[1]))(1.0)


def test_rounding_that_chaos_amplifies_in_the_outputs_of_a_range_is_no_reason_to_complain():
    def step(h, i):
        traced = not isinstance(h, float)
        h = 4 * h * (1 - h) if traced else 4 * h - 4 * h**2  # equal but for rounding
        return h, h

    plan = remat.plan(remat.Loop(100), slots=2, planner="chunks")
    assert numpy.isfinite(grad(lambda h: np.sum(remat.scan(step, h, numpy.arange(100), plan=plan)[1]))(0.3))

"""Derivatives of derivatives, and forward mode, are those of the plain loop."""

import functools

import numpy
import pytest

import remat

from .comparison import assert_same
from .frameworks import forward_over_reverse, where_python_runs_each_step
from .programs import random

STEPS = 7


def values(framework):
    return random(framework, 0, 3, 3), random(framework, 1, 3), random(framework, 2, STEPS, 3)


def loss_of(framework, loop, **how):
    np = framework.np

    def loss(w, h, xs):
        h, ys = loop(lambda h, x: (np.tanh(np.dot(h, w) + x), np.sin(h) * x), h, xs, **how)
        return np.sum(ys**3) + np.sum(h**2)

    return loss


def both(framework, derived, tolerance=1e-10, **how):
    """What `derived(loss)` gives is the same for remat's loop and for the plain one."""
    ours = loss_of(framework, remat.scan, **(how or {"slots": 3}))
    plain = loss_of(framework, framework.plain_scan)
    found, expected = framework.compiled(lambda: [derived(loss) for loss in (ours, plain)])()
    assert_same([framework.to_numpy(found)], [framework.to_numpy(expected)], tolerance)


def of_one(loss, args, k):
    """The loss as a function of its argument k."""
    return lambda part: loss(*args[:k], part, *args[k + 1 :])


def product(framework, function, vector):
    """The product of the Hessian with a vector, by reverse over reverse."""
    return framework.grad(lambda x: framework.np.sum(framework.grad(function)(x) * vector))


def test_hessian_vector_products(framework):
    args = values(framework)
    for k in framework.some(0, 1, 2):
        vector = random(framework, 5, *args[k].shape)
        both(framework, lambda loss, k=k, v=vector: product(framework, of_one(loss, args, k), v)(args[k]))


def test_mixed_second_derivatives(framework):
    w, h, xs = values(framework)

    def mixed(loss):
        def squares(xs):
            return framework.np.sum(framework.grad(lambda w: loss(w, h, xs))(w) ** 2)

        return framework.grad(squares)(xs)

    both(framework, mixed)


def test_whole_hessians(framework):
    args = values(framework)
    both(framework, lambda loss: framework.hessian(of_one(loss, args, 1), args[1]))


@where_python_runs_each_step  # the same
def test_jacobians_of_gradients(framework):
    args = values(framework)
    both(framework, lambda loss: framework.jacobian(framework.grad(of_one(loss, args, 1)), args[1]))


def test_forward_mode(framework):
    args = values(framework)
    for k in framework.some(0, 1, 2):
        vector = random(framework, 5, *args[k].shape)
        both(framework, lambda loss, k=k, v=vector: framework.jvp(of_one(loss, args, k), args[k], v), 1e-12)


def test_forward_mode_of_what_a_step_closes_over_is_that_of_the_plain_loop(framework):
    xs = framework.array(numpy.arange(5))

    def last(w, loop, **how):
        return loop(lambda h, x: (framework.np.sin(w * h + x), None), framework.array(0.3), xs, **how)[0]

    w, one = framework.array(0.9), framework.array(1.0)
    found = framework.jvp(functools.partial(last, loop=remat.scan, slots=2), w, one)
    expected = framework.jvp(functools.partial(last, loop=framework.plain_scan), w, one)
    assert_same([framework.to_numpy(found)], [framework.to_numpy(expected)], 1e-14)


@forward_over_reverse
def test_forward_over_reverse(framework):
    args = values(framework)
    vector = random(framework, 5, 3)
    both(framework, lambda loss: framework.jvp(framework.grad(of_one(loss, args, 1)), args[1], vector))


@where_python_runs_each_step  # JAX's own tests have all orders of modes, which take seconds to compile
def test_third_order(framework):
    args = values(framework)
    vector = random(framework, 5, 3)

    def third(loss):
        once = product(framework, of_one(loss, args, 1), vector)
        return framework.grad(lambda h: framework.np.sum(once(h) ** 2))(args[1])

    both(framework, third, 1e-9)


@pytest.mark.parametrize("k", [0, 1, 2], ids=["parameters", "carry", "inputs"])
@pytest.mark.parametrize("order", [2, 3])
@where_python_runs_each_step  # the same
def test_squares_of_gradients_of_gradients(framework, order, k):
    args = values(framework)

    def derived(loss):
        function = of_one(loss, args, k)
        for _ in range(order):
            gradient = framework.grad(function)
            function = lambda x, g=gradient: framework.np.sum(g(x) ** 2)  # noqa: E731
        return gradient(args[k])

    both(framework, derived)


@where_python_runs_each_step  # the same
def test_a_penalty_on_the_gradient(framework):
    args = values(framework)

    def penalised(loss):
        def total(w):
            slope = framework.grad(lambda h: loss(w, h, args[2]))(args[1])
            return framework.np.sum(slope**2) + loss(w, args[1], args[2])

        return framework.grad(total)(args[0])

    both(framework, penalised)


def test_integers_beside_floats(framework):
    np = framework.np

    def last(x, loop, **how):
        start = framework.array(0, "int64"), x
        (_, x), ys = loop(lambda s, _: ((s[0] + 1, np.sin(s[1] * (1 + s[0]))), s[0]), start, length=6, **how)
        counts.append(ys)
        return np.sum(x**2)

    counts, x = [], framework.array([0.3, 0.2])
    found = framework.hessian(functools.partial(last, loop=remat.scan, slots=2), x)
    expected = framework.hessian(functools.partial(last, loop=framework.plain_scan), x)
    assert_same([framework.to_numpy(found)], [framework.to_numpy(expected)], 1e-10)
    last(x, remat.scan, slots=2)
    assert framework.to_numpy(counts[-1]).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_budget_in_bytes_serves_second_order_too(framework):
    args = values(framework)
    both(framework, lambda loss: framework.hessian(of_one(loss, args, 1), args[1]), memory="400 KiB")


def test_a_python_number_as_the_initial_carry(framework):
    np, xs = framework.np, framework.array(numpy.linspace(0.1, 1, 6))

    def last(w, loop, **how):
        start = framework.array(0.0) if loop == framework.plain_scan else 0
        return loop(lambda h, x: (np.sin(h * x * w) + w, None), start, xs, **how)[0]

    w, one = framework.array(0.5), framework.array(1.0)
    ours = functools.partial(last, loop=remat.scan, slots=3)
    plain = functools.partial(last, loop=framework.plain_scan)
    found, expected = (framework.to_numpy(framework.grad(framework.grad(f))(w)) for f in (ours, plain))
    assert_same([found], [expected], 1e-11)
    found, expected = (framework.to_numpy(framework.jvp(f, w, one)) for f in (ours, plain))
    assert_same([found], [expected], 1e-12)


@where_python_runs_each_step
def test_second_derivatives_of_random_steps_draw_the_same_numbers(framework):
    np, start = framework.np, framework.array(0.7)

    def last(x, loop, **how):
        numpy.random.seed(0)
        step = lambda h, i: (np.sin(h * x * float(numpy.random.rand())), None)  # noqa: E731
        return loop(step, x, framework.array(numpy.arange(5.0)), **how)[0]

    found = framework.grad(framework.grad(functools.partial(last, loop=remat.scan, slots=2)))(start)
    after = numpy.random.rand()
    expected = framework.grad(framework.grad(functools.partial(last, loop=framework.plain_scan)))(start)
    assert_same([framework.to_numpy(found)], [framework.to_numpy(expected)], 1e-11)
    assert after == numpy.random.rand()

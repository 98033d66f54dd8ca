"""Derivatives of derivatives, and forward mode, are those of the plain loop."""

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, hessian, hessian_vector_product, make_ggnvp, make_jvp
from autograd.differential_operators import make_hvp

import remat

from .conftest import assert_same

RNG = numpy.random.default_rng(0)
STEPS, W, H = 9, RNG.normal(size=(3, 3)), RNG.normal(size=3)
XS = RNG.normal(size=(STEPS, 3))


def step(w, h, x):
    return np.tanh(np.dot(h, w) + x), np.sin(h) * x


def plain(w, h, xs):
    total = 0.0
    for i in range(STEPS):
        h, y = step(w, h, xs[i])
        total = total + np.sum(y**3)
    return total + np.sum(h**2)


def ours(w, h, xs):
    h, ys = remat.scan(lambda h, x: step(w, h, x), h, xs, slots=3)
    return np.sum(ys**3) + np.sum(h**2)


@pytest.mark.parametrize("argnum", [0, 1, 2])
def test_hessian_vector_products(argnum):
    vector = RNG.normal(size=(W, H, XS)[argnum].shape)
    for product in (hessian_vector_product,):
        assert_same(product(ours, argnum)(W, H, XS, vector), product(plain, argnum)(W, H, XS, vector), 1e-10)
    assert_same(make_hvp(ours, argnum)(W, H, XS)[0](vector), make_hvp(plain, argnum)(W, H, XS)[0](vector), 1e-10)


def test_mixed_second_derivatives():
    def mixed(loss):
        return grad(lambda xs: np.sum(grad(loss, 0)(W, H, xs) ** 2))(XS)

    assert_same(mixed(ours), mixed(plain), 1e-10)


def test_whole_hessian():
    assert_same(hessian(ours, 1)(W, H, XS), hessian(plain, 1)(W, H, XS), 1e-10)


@pytest.mark.parametrize("argnum", [0, 1, 2])
def test_forward_mode(argnum):
    vector = RNG.normal(size=(W, H, XS)[argnum].shape)
    found, expected = (make_jvp(loss, argnum)(W, H, XS)(vector) for loss in (ours, plain))
    assert_same(found, expected)


def test_forward_over_reverse_and_third_order():
    vector = RNG.normal(size=3)

    def forward_over_reverse(loss):
        return make_jvp(lambda h: grad(loss, 1)(W, h, XS))(H)(vector)

    def third(loss):
        return grad(lambda h: np.sum(hessian_vector_product(loss, 1)(W, h, XS, vector) ** 2))(H)

    assert_same(forward_over_reverse(ours), forward_over_reverse(plain), 1e-10)
    assert_same(third(ours), third(plain), 1e-9)


def test_gauss_newton():
    def last(scan):
        def function(h):
            if scan:
                return remat.scan(lambda h, x: (step(W, h, x)[0], None), h, XS, slots=2)[0]
            for x in XS:
                h = step(W, h, x)[0]
            return h

        return make_ggnvp(function)(H)(RNG.normal(size=3) * 0 + 1.0)

    assert_same(last(True), last(False), 1e-10)


def test_integers_beside_floats():
    def count(loss_of):
        return hessian(loss_of)(numpy.array([0.3, 0.2]))

    def with_scan(x):
        (_, x), ys = remat.scan(lambda s, _: ((s[0] + 1, np.sin(s[1] * (1 + s[0]))), s[0]), (0, x), length=6, slots=2)
        assert ys.tolist() == [0, 1, 2, 3, 4, 5]
        return np.sum(x**2)

    def without(x):
        for i in range(6):
            x = np.sin(x * (1 + i))
        return np.sum(x**2)

    assert_same(count(with_scan), count(without), 1e-10)


def test_a_memory_budget_serves_second_order_too():
    def budgeted(h):
        h, ys = remat.scan(lambda h, x: step(W, h, x), h, XS, memory="400 KiB")
        return np.sum(ys**3) + np.sum(h**2)

    assert_same(hessian(budgeted)(H), hessian(plain, 1)(W, H, XS), 1e-10)


def test_what_cannot_be_done_is_said():
    def random_step(x):
        return remat.scan(lambda x, _: (x * numpy.random.rand(), None), x, length=3, slots=2)[0]

    def with_adjoint(x):
        return remat.scan(lambda x, _: (x**2, None), x, length=2, slots=2, vjp=lambda x, _, g, y: (2 * x * g, None))[0]

    with pytest.raises(remat.StepError, match="global random generators"):
        grad(grad(random_step))(1.0)
    with pytest.raises(remat.StepError, match="Leave vjp= out"):
        grad(grad(with_adjoint))(1.0)
    assert grad(with_adjoint)(3.0) == 4 * 27


def test_a_python_number_as_initial_state():
    xs = numpy.linspace(0.1, 1, 6)

    def ours(w):
        return remat.scan(lambda h, x: (np.sin(h * x * w) + w, None), 0, xs, slots=3)[0]

    def plain(w):
        h = 0
        for x in xs:
            h = np.sin(h * x * w) + w
        return h

    assert grad(grad(ours))(0.5) == pytest.approx(grad(grad(plain))(0.5), rel=1e-11)
    assert make_jvp(ours)(0.5)(1.0) == pytest.approx(make_jvp(plain)(0.5)(1.0), rel=1e-12)

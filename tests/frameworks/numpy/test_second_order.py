"""Derivatives of derivatives, and forward mode, are those of the plain loop."""

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, make_ggnvp

import remat
from tests.frameworks.numpy.comparison import assert_same

RNG = numpy.random.default_rng(0)
STEPS, W, H = 9, RNG.normal(size=(3, 3)), RNG.normal(size=3)
XS = RNG.normal(size=(STEPS, 3))


def step(w, h, x):
    return np.tanh(np.dot(h, w) + x), np.sin(h) * x


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

"""Derivatives of derivatives, and forward mode, are those of the plain loop."""

from types import SimpleNamespace

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, make_ggnvp, make_jvp

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


@pytest.mark.parametrize("kind", ["global", "closed over", "in the carry", "counter"])
def test_steps_with_effects_start_from_them_again(kind):
    """Draws and counters are those of the first sweep, to any order, and as the plain program leaves them."""

    def derivatives(loop):
        numpy.random.seed(3)
        rng, user = numpy.random.default_rng(3), SimpleNamespace(count=0)

        def step(carry, x):
            h, given = carry
            user.count += kind == "counter"
            noise = {"global": numpy.random, "closed over": rng, "in the carry": given}.get(kind)
            return (np.sin(W[0] * h + x + (noise.normal(size=3) if noise else user.count)), given), None

        def last(h):
            return np.sum(loop(step, (h, rng), XS)[0][0] * W[1])

        found = [grad(lambda h: np.sum(grad(last)(h) ** 2))(H), make_jvp(last)(H)(W[2])[1]]
        return *found, rng.normal(), numpy.random.rand(), user.count

    def plain(step, carry, xs):
        for x in xs:
            carry, _ = step(carry, x)
        return carry, None

    assert_same(derivatives(lambda *args: remat.scan(*args, slots=2)), derivatives(plain), 1e-11)


def test_what_cannot_be_done_is_said():
    def with_adjoint(x):
        return remat.scan(lambda x, _: (x**2, None), x, length=2, slots=2, vjp=lambda x, _, g, y: (2 * x * g, None))[0]

    with pytest.raises(remat.StepError, match=r"vjp= is not differentiated\. Leave it out"):
        grad(grad(with_adjoint))(1.0)
    assert grad(with_adjoint)(3.0) == 4 * 27

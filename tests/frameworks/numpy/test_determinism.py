"""Steps that do not repeat themselves are found out; random ones repeat; those that write in place do no harm."""

import autograd.numpy as np
import numpy
import pytest
from autograd import grad

import remat


def gradient(step, x=0.3, steps=20, **how):
    how = {"slots": 3} | how
    return grad(lambda x: np.sum(remat.scan(step, x, length=steps, **how)[0]))(x)


def test_writing_into_the_carry_is_what_it_is_under_autograd():
    """`h += x` is a new array to autograd, even for a name that it had before."""

    def step(h, x):
        before = h
        h += np.sin(x) * 0.5
        h *= 0.9
        return h + 0.1 * before, before * 2.0

    xs, h0 = numpy.linspace(0, 2, 12).reshape(12, 1), numpy.array([0.2, 0.5])

    def plain(h, xs):
        total = 0.0
        for i in range(12):
            h, y = (h + np.sin(xs[i]) * 0.5) * 0.9 + 0.1 * h, h * 2.0
            total = total + np.sum(y**2)
        return total + np.sum(h)

    def ours(h, xs):
        h, ys = remat.scan(step, h, xs, slots=3)
        return np.sum(ys**2) + np.sum(h)

    for argnum in (0, 1):
        numpy.testing.assert_allclose(grad(ours, argnum)(h0, xs), grad(plain, argnum)(h0, xs), rtol=1e-13)
    assert h0.tolist() == [0.2, 0.5]


def test_a_scratch_array_that_is_returned_does_not_spoil_what_is_kept():
    scratch = numpy.zeros(2)

    def step(h, x):
        if isinstance(h, numpy.ndarray):
            numpy.multiply(h, 0.9, out=scratch)
            scratch[...] += 0.1
            return scratch, None
        return h * 0.9 + 0.1, None

    def loss(h):
        return np.sum(remat.scan(step, h, length=15, slots=3)[0] ** 2)

    def plain(h):
        for _ in range(15):
            h = h * 0.9 + 0.1
        return np.sum(h**2)

    h = numpy.array([0.3, 0.8])
    numpy.testing.assert_allclose(grad(loss)(h), grad(plain)(h), rtol=1e-12)


def test_writing_that_autograd_cannot_record_is_refused_with_advice():
    def step(h, x):
        h[0] = 1.0
        return h, None

    with pytest.raises(remat.StepError, match="make new arrays"):
        gradient(step, x=numpy.array([0.3, 0.4]))


def test_writing_into_the_inputs_is_refused_with_advice():
    xs = numpy.ones((5, 2))

    def step(h, x):
        x *= 2
        return h + x, None

    with pytest.raises(remat.StepError, match="its input x"):
        grad(lambda h: np.sum(remat.scan(step, h, xs, slots=2)[0]))(numpy.zeros(2))
    assert xs.max() == 1


@pytest.mark.parametrize("own", [False, True])
def test_a_step_that_draws_and_then_writes_in_place(own):
    def step(h, x):
        noise = numpy.random.rand()
        h *= 0.9
        h += noise * x
        return h, None

    def plain(h):
        for x in numpy.linspace(0, 1, 9):
            noise = numpy.random.rand()
            h = h * 0.9 + noise * x
        return np.sum(h**2)

    how = {"vjp": lambda h, x, g, y: (0.9 * g, None)} if own else {}
    found = []
    for loss in (plain, lambda h: np.sum(remat.scan(step, h, numpy.linspace(0, 1, 9), slots=3, **how)[0] ** 2)):
        numpy.random.seed(0)
        found.append(grad(loss)(numpy.array([0.3, 0.5])))
    numpy.testing.assert_allclose(found[1], found[0], rtol=1e-13)


def test_what_cannot_be_recorded_is_found_out_at_the_first_step():
    calls = []

    def step(h, x):
        calls.append(None)
        return numpy.float64(float(h)) * 2, None

    with pytest.raises(remat.StepError, match="autograd cannot record step 0"):
        gradient(step, steps=100)
    assert len(calls) == 1

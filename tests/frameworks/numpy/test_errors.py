"""Bad input gets a clear error before any work is lost."""

import autograd.numpy as np
import numpy
import pytest
from autograd import grad
from autograd.tracer import trace_stack

import remat


def step(h, x):
    return np.tanh(h + x), h


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (numpy.array(["a"]), "dtype <U1"),
        (numpy.array([None]), "dtype object"),
        (numpy.ma.ones(3), "Masked"),
    ],
)
def test_leaves_that_are_no_arrays(init, message):
    with pytest.raises(remat.StepError, match=message):
        remat.scan(step, init, numpy.ones(4), slots=2)


def test_an_error_in_the_step_leaves_everything_as_it_was():
    def loss(w):
        box = [w]

        def step(h, x):
            if x > 2:
                raise RuntimeError("broken step")
            return h * w, None

        with pytest.raises(RuntimeError, match="broken step"):
            remat.scan(step, 1.0, numpy.arange(5), slots=2)
        assert step.__closure__[0].cell_contents is box[0]
        return w

    before = trace_stack.top
    assert grad(loss)(2.0) == 1.0
    assert trace_stack.top == before


def test_an_error_in_a_recomputed_step_says_so():
    def step(h, x):
        if remat.is_recomputing():
            raise RuntimeError("broken step")
        return np.sin(h), None

    with pytest.raises(RuntimeError, match="broken step") as caught:
        grad(lambda h: remat.scan(step, h, length=5, slots=2)[0])(0.3)
    assert any("was recomputed for the gradient" in note for note in caught.value.__notes__)


def rolled(u, w):
    return numpy.roll(u, 1) * w


def interpolated(u, w):
    return numpy.interp(numpy.arange(4.0) / 2, numpy.arange(4.0), u) * w


def copied(u, w):
    return u.copy() * w


def filled(u, w):
    new = numpy.zeros(4)
    new[1:-1] = u[1:-1] * w
    return new


@pytest.mark.parametrize("program", [rolled, interpolated, copied, filled])
def test_plain_numpy_in_a_step_that_is_differentiated(program):
    def loss(w):
        return np.sum(remat.scan(lambda u, _: (program(u, w), None), numpy.ones(4), length=5, slots=2)[0])

    with pytest.raises(remat.StepError, match=r"autograd\.numpy") as caught:
        grad(loss)(0.3)
    assert (type(caught.value).__module__, type(caught.value).__qualname__) == ("remat.errors", "StepError")


def test_plain_numpy_on_leaves_that_no_gradient_flows_to():
    def loss(w, loop):
        def step(carry, _):
            mask, u, new = *carry, numpy.zeros(4)
            new[1:] = mask[:-1]
            return (numpy.roll(new, -2), np.sin(u * w + mask)), None

        carry = numpy.arange(4.0), numpy.ones(4)
        if loop is None:
            for _ in range(5):
                carry, _ = step(carry, None)
        else:
            carry, _ = loop(step, carry, length=5, slots=2)
        return np.sum(carry[1])

    assert grad(loss)(0.3, remat.scan) == grad(loss)(0.3, None)

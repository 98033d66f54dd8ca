"""What is particular to `scan` under autograd."""

import autograd.numpy as np
import numpy
import pytest
from autograd import grad
from autograd.tracer import getval

import remat


def test_the_caller_keeps_its_arrays():
    h, xs = numpy.zeros(3), numpy.ones((6, 3))

    def step(h, x):
        h += x
        return h, None

    assert numpy.array_equal(remat.scan(step, h, xs, slots=2)[0], numpy.full(3, 6.0))
    assert not h.any()
    assert xs.flags.writeable


def test_results_can_be_written_into():
    for init in (numpy.ones(3), (numpy.ones(2), 1.0)):
        carry, _ = remat.scan(lambda h, x: (h, None), init, length=4, slots=2)
        found = []

        def loss(w, init=init, found=found):
            carry, ys = remat.scan(lambda h, x: (h, h[0] * w), init, length=4, slots=2)
            found.append(carry)
            return np.sum(ys)

        grad(loss)(1.0)
        for result in (carry, getval(found[0])):
            array = result[0] if isinstance(result, tuple) else result
            getval(array)[...] = 5.0
    x, _ = remat.scan(lambda h, x: (x, None), numpy.ones(3), numpy.ones((4, 3)), slots=2)
    x += 1


def test_a_python_number_gives_way_to_what_follows_it():
    xs = numpy.array([0.5, 0.25, 0.125])
    assert remat.scan(lambda c, x: (c, c > 0 or 0.5), 0, xs, slots=2)[1].tolist() == [0.5, 0.5, 0.5]
    _, states = remat.checkpointed_loop(lambda x: x + 1 if x < 3 else x + 0.5, 0, 12, 4)
    assert [float(state) for state in states.values()] == [2.0, 3.5, 4.5, 6.0]

    def late(w):
        return remat.scan(lambda c, i: (c + 1 if i < 3 else c * w, None), 0, numpy.arange(6), slots=2)[0]

    assert grad(late)(0.5) == pytest.approx(9 * 0.25)

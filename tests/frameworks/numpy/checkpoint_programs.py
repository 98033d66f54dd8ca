"""What the tests of checkpoints under autograd share."""

import numpy
from autograd import value_and_grad

from tests.frameworks.conftest import assert_same

A = numpy.array([[1.0, 2.0], [3.0, 4.0]])


B = numpy.array([[5.0, 6.0], [7.0, 8.0]])


X = numpy.linspace(0.1, 0.9, 5)


def same(fn, plain, *args):
    """Value and gradients of all arguments are bitwise those of the plain function."""
    for argnum in range(len(args)):
        found, expected = value_and_grad(fn, argnum)(*args), value_and_grad(plain, argnum)(*args)
        assert_same(found, expected, tolerance=0.0)

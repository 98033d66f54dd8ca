"""The instruments for tests find what they are for."""

import autograd.numpy as np
import numpy
import pytest

from remat.testing import check_gradient


def test_a_wrong_gradient_is_found():
    def right(x, p):
        return np.sum(x**2 * p["a"])

    def wrong(x, p):
        return np.sum(x**2 * p["a"]) * (1 + 1e-9)

    x, p = numpy.ones(3), {"a": 2.0}
    check_gradient(right, right, x, p)
    check_gradient(wrong, right, x, p, tolerance=1e-8)
    with pytest.raises(AssertionError, match="differs by"):
        check_gradient(wrong, right, x, p)

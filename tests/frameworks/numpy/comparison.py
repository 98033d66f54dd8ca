"""Comparison of gradients under autograd, in any container."""

import numpy
from autograd.builtins import isinstance as unboxed_isinstance

from remat.frameworks.numpy.leaves import unpack
from remat.pytree import flatten

__all__ = ["assert_same"]


def assert_same(found, expected, tolerance=1e-12):
    """Every leaf is as expected, relative to the largest number of its kind."""
    found, expected = (flatten(value, unpack)[0] for value in (found, expected))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        scale = max(numpy.max(numpy.abs(b), initial=0.0), 1e-30)
        assert numpy.max(numpy.abs(numpy.asarray(a) - b), initial=0.0) <= tolerance * scale
        assert not unboxed_isinstance(a, type(None))

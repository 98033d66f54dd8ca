"""What the tests of all frameworks share."""

import autograd.numpy as np
import numpy
import pytest
from autograd.builtins import isinstance as unboxed_isinstance
from autograd.tracer import getval

import remat
from remat.execute.tree import take_apart
from remat.frameworks.numpy.leaves import unpack


@pytest.fixture
def profiler():
    """The checkpoint profiler, counting."""
    found = remat.CheckpointProfiler
    found.reset_statistics()
    found.start_tracking()
    yield found
    found.stop_tracking()
    found.reset_statistics()


def leaves_of(value):
    return take_apart(value, unpack)[0]


def take_row(xs, i):
    leaves, tree = take_apart(xs, unpack)
    return tree.build([leaf[i] for leaf in leaves])


def in_order(value):
    """Tuples and dicts with their keys in order, for the order of leaves is that of the keys."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return tuple(map(in_order, value)) if type(value) is tuple else value


def weigh(value, seed=0):
    """A number that depends on all floats of a value, each with another weight."""
    total, rng = 0.0, numpy.random.default_rng(seed)
    for leaf in leaves_of(in_order(value)):
        raw = numpy.asarray(getval(leaf))
        if raw.dtype.kind in "fc":
            part = np.sum(
                np.sin(leaf if raw.dtype.kind == "f" else np.real(leaf) + np.imag(leaf) ** 2)
                * rng.normal(size=raw.shape)
            )
            total = total + part
    return total


def plain_loss(step, params, init, xs, steps):
    carry, ys = init, []
    for i in range(steps):
        carry, y = step(params, carry, None if xs is None else take_row(xs, i))
        ys.append(leaves_of(y))
    stacked = [np.stack([row[k] for row in ys]) for k in range(len(ys[0]))]
    return weigh(carry) + weigh(stacked, 1)


def remat_loss(step, params, init, xs, steps, **budget):
    carry, ys = remat.scan(lambda carry, x: step(params, carry, x), init, xs, length=steps, **budget)
    return weigh(carry) + weigh(leaves_of(ys), 1)


def assert_same(found, expected, tolerance=1e-12):
    """Every leaf is as expected, relative to the largest number of its kind."""
    found, expected = leaves_of(found), leaves_of(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        scale = max(numpy.max(numpy.abs(b), initial=0.0), 1e-30)
        assert numpy.max(numpy.abs(numpy.asarray(a) - b), initial=0.0) <= tolerance * scale
        assert not unboxed_isinstance(a, type(None))

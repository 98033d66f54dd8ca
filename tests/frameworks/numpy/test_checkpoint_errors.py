"""What is refused in checkpoints under autograd."""

import types

import autograd.numpy as np
import numpy
import pytest
from autograd import grad

import remat
from tests.frameworks.conformance.adapter import Counter
from tests.frameworks.numpy.comparison import assert_same

X = numpy.linspace(0.1, 0.9, 5)


def test_a_segment_that_is_not_deterministic_is_an_error_that_names_what_changed():
    counter = Counter()

    def counts(x):
        counter.calls += 1
        return {"y": np.sin(x * counter.calls)}

    with pytest.raises(remat.DeterminismError, match=r"counts.*its result\['y'\], float64\[5\], .*relative difference"):
        grad(lambda x: np.sum(remat.checkpoint(counts, x)["y"]))(X)

    def never(x):
        counter.calls += 1
        return np.sin(x * counter.calls)

    grad(lambda x: np.sum(remat.drop(never, check="never")(x)))(X)

    def shape(x):
        counter.calls += 1
        return np.sin(x[: counter.calls % 2 + 2])

    with pytest.raises(remat.DeterminismError, match=r"float64\[\d\] and became float64\[\d\]"):
        grad(lambda x: np.sum(remat.drop(shape, check="never")(x)))(X)

    def structure(x):
        counter.calls += 1
        return (np.sin(x),) * (counter.calls % 2 + 1)

    with pytest.raises(remat.DeterminismError, match="a tuple of"):
        grad(lambda x: np.sum(remat.checkpoint(structure, x)[0]))(X)


def test_a_segment_that_writes_into_its_input_is_an_error():
    def writes(x):
        x[0] = 3.0
        return np.sin(x)

    x = X.copy()
    with pytest.raises(remat.StepError, match=r"writes.*written into by it"):
        grad(lambda x: np.sum(remat.checkpoint(writes, x)))(x)
    assert x[0] == X[0]


def test_a_traced_variable_that_cannot_be_found_is_an_error():
    hidden = {}

    def fn(x):
        return x * vars(hidden["module"])["w"]

    def loss(w):
        hidden["module"] = types.ModuleType("hidden")
        hidden["module"].w = w
        return np.sum(remat.checkpoint(fn, X))

    # No box is found, so it is a plain call: the gradient is right, and all is kept.
    assert_same(grad(loss)(2.0), numpy.sum(X), tolerance=1e-15)
    with pytest.raises(remat.StepError, match="could not find"):
        grad(lambda w: loss(w) + np.sum(remat.checkpoint(lambda v: fn(X) * v, w)))(2.0)


def test_errors_about_segments_speak_of_segments():
    hidden = []

    def loss(w):
        hidden[:] = [iter([w])]
        return np.sum(remat.checkpoint(lambda v: next(hidden[0]) * v, w))

    with pytest.raises(remat.StepError, match="the segment") as info:
        grad(loss)(X)
    assert "init" not in str(info.value)

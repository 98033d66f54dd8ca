"""Values that leave a step or segment by a list or an attribute: their gradient is never lost in silence."""

import autograd.numpy as np
import numpy
import pytest
from autograd import grad
from autograd.tracer import getval

import remat

BUDGETS = [{"slots": 2}, {"memory": "1 MiB"}]


def scanned(a, log, **budget):
    def step(h, _):
        h = np.sin(h * a)
        log(np.sum(h))
        return h, None

    return remat.scan(step, np.ones(3), length=6, **budget)[0]


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_list_of_losses_is_an_error_if_it_is_differentiated(budget):
    def loss(a):
        losses = []
        scanned(a, losses.append, **budget)
        assert len(losses) == 6
        return sum(losses)

    with pytest.raises(remat.StepError, match="stored in a list"):
        grad(loss)(0.9)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("of", [lambda value: value, getval], ids=["boxes", "numbers"])
def test_a_list_of_losses_may_be_looked_at(budget, of):
    seen = []

    def loss(a):
        losses = []
        h = scanned(a, lambda value: losses.append(of(value)), **budget)
        seen.append([float(getval(value)) for value in losses])
        return np.sum(h)

    h, expected = numpy.ones(3), []
    for _ in range(6):
        h = numpy.sin(h * 0.9)
        expected.append(numpy.sum(h))
    assert numpy.isfinite(grad(loss)(0.9))
    numpy.testing.assert_allclose(seen[0], expected)


def test_what_a_segment_stores_is_an_error_if_it_is_differentiated():
    def loss(a, use):
        stored = []

        def fn(h):
            stored.append(np.sum(h * a))
            return np.sin(h) * a

        h = remat.checkpoint(fn, np.ones(3) * a)
        assert len(stored) == 1
        return np.sum(h) + (stored[0] if use else 0.0)

    assert numpy.isfinite(grad(loss)(0.9, use=False))
    with pytest.raises(remat.StepError, match="stored in a list"):
        grad(loss)(0.9, use=True)


def test_a_value_in_a_tuple_in_a_list():
    def loss(w):
        log = []

        def step(h, x):
            h = np.sin(h * w)
            log.append(("loss", np.sum(h)))
            return h, None

        remat.scan(step, np.ones(3), length=5, slots=2)
        assert [name for name, _ in log] == ["loss"] * 5
        return sum(value for _, value in log)

    with pytest.raises(remat.StepError, match="from the step as y"):
        grad(loss)(0.7)

"""Random numbers in checkpointed segments are drawn again as they were."""

import random

import numpy
import pytest

import remat

from .comparison import assert_same
from .frameworks import FRAMEWORKS, on_jax, where_python_runs_each_step
from .segments import assert_plain_gradients, plainly

DRAWS = [
    pytest.param(adapter, kind, id=f"{name}, {kind}")
    for name, adapter in FRAMEWORKS.items()
    for kind in adapter.generators
]


@pytest.mark.parametrize(("framework", "kind"), DRAWS, indirect=["framework"])
@pytest.mark.parametrize("nesting", [False, True])
def test_random_numbers_are_drawn_again_as_they_were(framework, kind, nesting):
    np = framework.np
    x = framework.array(numpy.linspace(0.1, 0.9, 8).reshape(2, 4))

    def seeded():
        numpy.random.seed(1)
        random.seed(1)
        if framework.name == "torch":
            import torch

            torch.manual_seed(1)
        return framework.generators[kind]()

    def gradient(run):
        draw = seeded()

        def fn(x):
            return np.sin(x * draw()) * draw()

        def outer(x):
            return run(fn, np.cos(x)) * x * draw()

        inside = outer if nesting else fn
        found = framework.gradient(lambda x: np.sum(run(inside, x) + run(inside, x)), x)
        return found, framework.to_numpy(draw())

    (found, after), (expected, plain_after) = (
        gradient(run) for run in (remat.drop(remat.checkpoint, check="always"), plainly)
    )
    assert_same(found, expected, 1e-15)  # what flows to x is added up in another order
    assert_same(after, plain_after, 0.0)


@where_python_runs_each_step
def test_generators_that_are_passed_in_are_replayed(framework, x):
    np = framework.np

    def gradient(run):
        rng, other = numpy.random.default_rng(3), random.Random(4)

        def fn(x, given):
            return np.exp(np.sin(x * float(given["rng"].normal()) * given["other"].gauss(0, 1)))

        found = framework.gradient(lambda x: np.sum(run(fn, x, {"rng": rng, "other": other})), x)
        return found, [rng.normal(), other.random()]

    (found, after), (expected, plain_after) = gradient(remat.checkpoint), gradient(plainly)
    assert_same(found, expected, 0.0)
    assert after == plain_after


@on_jax
@pytest.mark.parametrize("style", ["key", "PRNGKey"])
def test_random_numbers_are_those_of_the_key(framework, x, style):
    import jax

    def fn(key, x):
        key, other = jax.random.split(key)
        return framework.np.sin(x * jax.random.normal(other, x.shape)), key

    def loss(run, x):
        y, key = run(fn, getattr(jax.random, style)(3), x)
        return framework.np.sum(run(fn, key, y)[0])

    assert_plain_gradients(framework, loss, x, compiled=True)

"""Caches of functions (functools) that draw random numbers or write are replayed; those of pure functions stay."""

import functools

import numpy
import pytest

import remat

from .frameworks import where_python_runs_each_step

XS = numpy.arange(9.0)
HOW = [{"slots": 1}, {"slots": 3}, {"slots": 20}, {"memory": "4 MiB"}]


def make_noise(decorate):
    calls = []

    @decorate
    def noise(k):
        calls.append(k)
        return numpy.random.standard_normal()

    return noise, calls


def loss_with(noise, framework):
    def loss(loop, w):
        def step(h, x):
            return framework.np.tanh(w * h + noise(int(x) % 4)) + numpy.random.standard_normal(), None

        return loop(step, framework.array(0.3), framework.array(XS))[0]

    return loss


CACHES = {"cache": functools.cache, "lru_cache": functools.lru_cache, "of four": functools.lru_cache(maxsize=4)}


@where_python_runs_each_step
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("decorate", CACHES.values(), ids=list(CACHES))
@pytest.mark.parametrize("filled", [(), (2, 0)], ids=["empty", "filled before"])
def test_what_a_cached_function_draws_is_drawn_once(framework, decorate, filled, how):
    found = []
    for settings in (how, None):
        noise, calls = make_noise(decorate)
        numpy.random.seed(3)
        before = {k: noise(k) for k in filled}
        loop = functools.partial(remat.scan, **settings) if settings else framework.plain_scan
        value = framework.gradient(functools.partial(loss_with(noise, framework), loop), framework.array(0.7))
        found.append((value[0], list(calls), [noise(k) for k in range(4)], numpy.random.standard_normal()))
        assert all(noise(k) == drawn for k, drawn in before.items())
    assert found[0][1:] == found[1][1:]
    numpy.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)


@where_python_runs_each_step
def test_a_cache_that_was_full_cannot_be_set_back(framework):
    noise, _ = make_noise(functools.lru_cache(maxsize=2))
    with pytest.raises((remat.DeterminismError, remat.StepError), match="its cache was full"):
        framework.gradient(
            functools.partial(loss_with(noise, framework), functools.partial(remat.scan, slots=2)), framework.array(0.7)
        )


@where_python_runs_each_step
@pytest.mark.parametrize("how", HOW, ids=str)
def test_recomputed_steps_find_the_results_of_pure_functions(framework, how):
    @functools.lru_cache(maxsize=4)
    def scale(k):
        return 0.5 + k / 10

    def loss(loop, w):
        return loop(
            lambda h, x: (framework.np.tanh(w * h * scale(int(x) % 4)) + numpy.random.standard_normal(), None),
            framework.array(0.3),
            framework.array(XS),
        )[0]

    numpy.random.seed(3)
    framework.gradient(functools.partial(loss, functools.partial(remat.scan, **how)), framework.array(0.7))
    assert scale.cache_info().misses == 4

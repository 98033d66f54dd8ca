"""Checkpointed segments: what is recomputed and how often, in any nesting."""

import functools
import random

import numpy
import pytest

import remat
from tests.frameworks.untracked import Log

from .comparison import assert_same
from .frameworks import where_python_runs_each_step
from .segments import WAYS, assert_plain_gradients, last_bit, plainly

# How often a function is run


@pytest.mark.parametrize("way", WAYS)
def test_a_segment_is_run_twice_and_one_that_is_left_alone_once(framework, x, way):
    np, counter = framework.np, framework.counter()

    def fn(x):
        counter.here(x)
        return np.exp(np.sin(x))

    framework.gradient(lambda x: np.sum(WAYS[way](fn, x)), x)
    assert counter.count == (1 if way == "adaptive, left alone" else 2)


def test_an_inner_segment_is_run_three_times_and_an_outer_one_twice(framework, x):
    np, (inner, outer) = framework.np, framework.counters(2)

    def fn(x):
        inner.here(x)
        return np.exp(np.sin(x))

    def around(x):
        outer.here(x)
        return np.cos(remat.checkpoint(fn, np.sin(x))) * x

    framework.gradient(lambda x: np.sum(remat.checkpoint(around, x)), x)
    assert (outer.count, inner.count) == (2, 3)


@pytest.mark.parametrize(("count", "recomputed"), [(4, 0), (125, 0), (126, 1), (10_000, 1)])
def test_adaptive_recomputes_only_what_is_strictly_larger(framework, profiler, count, recomputed):
    np, counter = framework.np, framework.counter()

    def fn(x):
        counter.here(x)
        return {"y": np.exp(np.sin(x)), "word": "word"}

    def loss(run, x):
        out = run(fn, x)
        assert out["word"] == "word"
        return np.sum(out["y"])

    x = framework.array(numpy.ones(count))
    run = functools.partial(remat.adaptive_checkpoint, threshold=1000)
    found = framework.gradient(functools.partial(loss, run), x)
    assert counter.count == 1 + recomputed
    assert profiler.checkpoint_count() == recomputed
    assert_same(found, framework.gradient(functools.partial(loss, plainly), x), last_bit(framework))


@pytest.mark.parametrize("early_stop", [True, False])
def test_early_stop_changes_no_gradient(framework, x, early_stop):
    np = framework.np

    def loss(run, x):
        return np.sum(run(lambda x: np.exp(np.sin(x)) + 1, x) ** 2)

    def run(fn, *args):
        return remat.drop(fn, early_stop=early_stop)(*args)

    assert_plain_gradients(framework, loss, x, run=run)


@where_python_runs_each_step
def test_a_recomputation_may_stop_early_on_torch_and_ends_elsewhere(framework, x):
    np, runs = framework.np, Log()

    def fn(x):
        y = np.sin(x)
        runs.append("sin")
        y = np.exp(y)
        runs.append("exp")
        return y + 1

    stopped = ["sin"] if framework.name == "torch" else ["sin", "exp"]
    for early_stop, again in ((True, stopped), (False, ["sin", "exp"])):
        runs.clear()
        framework.gradient(lambda x: np.sum(remat.drop(fn, early_stop=early_stop)(x)), x)  # noqa: B023
        assert runs == ["sin", "exp", *again]


@where_python_runs_each_step
def test_a_segment_knows_when_it_is_recomputed(framework, x):
    np, seen = framework.np, Log()

    def fn(x):
        seen.append(remat.is_recomputing())
        return np.exp(np.sin(x))

    def loss(x):
        y = np.sum(remat.checkpoint(lambda x: np.cos(remat.checkpoint(fn, x)) * x, x))
        assert seen == [False]
        return y

    framework.gradient(loss, x)
    assert seen == [False, True, True]
    assert not remat.is_recomputing()


# Nesting


@pytest.mark.parametrize("depth", [1, 2, 6])
def test_segments_nest_to_any_depth(framework, x, depth):
    np = framework.np

    def deep(run, x, depth):
        return np.sin(x) if depth == 0 else np.cos(run(functools.partial(deep, run), np.sin(x) * 1.5, depth - 1))

    assert_plain_gradients(framework, lambda run, x: np.sum(deep(run, x, depth)), x, compiled=True)


@where_python_runs_each_step
def test_segments_nest_deeply(framework, x):
    np = framework.np

    def deep(run, x, depth):
        return np.sin(x) if depth == 0 else np.cos(run(functools.partial(deep, run), np.sin(x) * 1.5, depth - 1))

    assert_plain_gradients(framework, lambda run, x: np.sum(deep(run, x, 30)), x)


def nested(framework, drop, weights, counters, order):
    """1, D(2, D(D(3,4),5,D(6))), D(7,8), 9."""

    def part(number):
        def run(x):
            order.append(number)
            counters[number - 1].here(x)
            return framework.np.tanh(weights[number - 1] * x)

        return run

    def chain(*parts):
        return lambda x: functools.reduce(lambda x, part: part(x), parts, x)

    inner = drop(chain(drop(chain(part(3), part(4))), part(5), drop(part(6))))
    return chain(part(1), drop(chain(part(2), inner)), drop(chain(part(7), part(8))), part(9))


def test_a_nesting_of_segments_has_the_plain_gradients_in_every_iteration(framework, x):
    rng = numpy.random.default_rng(0)
    weights = [framework.array(rng.normal(size=5)) for _ in range(9)]
    drop = functools.partial(remat.drop, early_stop=False)

    def gradients(drop, weights):
        counters, order = framework.counters(len(weights)), []

        def loss(*weights):
            return framework.np.sum(nested(framework, drop, weights, counters, order)(x))

        found = framework.gradient(loss, *weights)
        assert order[:9] == list(range(1, 10))
        return found, [counter.count for counter in counters]

    for _ in range(2):
        found, counts = gradients(drop, weights)
        expected, once = gradients(lambda part: part, weights)
        assert_same(found, expected, last_bit(framework))
        assert once == [1] * 9
        assert [counts[k] for k in (0, 1, 6, 7, 8)] == [1, 2, 2, 2, 1]
        assert all(3 <= counts[k] <= 4 for k in (2, 3, 4, 5))  # inner ones are run with outer ones again
        weights = [w - 0.1 * framework.array(g) for w, g in zip(weights, found, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_random_nestings_have_the_plain_gradients(framework, x, seed):
    np = framework.np

    def parts(rng, drop, depth, weights):
        found = []
        for _ in range(rng.randint(1, 3)):
            if depth and rng.random() < 0.6:
                inner = parts(rng, drop, depth - 1, weights)
                found.append(drop(lambda x, inner=inner: functools.reduce(lambda x, part: part(x), inner, x)))
            else:
                function, w = rng.choice([np.tanh, np.sin, np.cos, np.exp]), weights[rng.randrange(3)]
                found.append(lambda x, function=function, w=w: function(x * w) * 0.5)
        return found

    def loss(run, x, *weights):
        def drop(fn):
            return lambda x: run(fn, x)

        net = parts(random.Random(seed), drop, 3, weights)
        return np.sum(functools.reduce(lambda x, part: part(x), net, x) ** 2)

    assert_plain_gradients(framework, loss, x, x + 1, x - 1, x * 2, tolerance=1e-14)

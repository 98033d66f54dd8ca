"""Adaptive checkpoints on JAX, and what profiles and the checkpoint profiler count of those that are traced."""

import functools

import jax
import jax.numpy as jnp
import pytest

import remat
from tests.frameworks.jax.checkpoint_programs import assert_equal, segments_of


@pytest.mark.parametrize(("count", "threshold", "recomputed"), [(4, 1000, 0), (10_000, 1000, 1), (125, 1000, 0)])
def test_adaptive_recomputes_only_what_is_strictly_larger(profiler, count, threshold, recomputed):
    runs = []

    def fn(x):
        runs.append(1)
        return {"y": jnp.exp(jnp.sin(x)), "word": "word"}

    def loss(x):
        out = remat.adaptive_checkpoint(fn, x, threshold=threshold)
        assert out["word"] == "word"
        return jnp.sum(out["y"])

    x = jnp.ones(count)
    found = jax.grad(loss)(x)
    assert len(runs) == 1
    assert profiler.checkpoint_count() == recomputed
    assert_equal(found, jax.grad(lambda x: jnp.sum(jnp.exp(jnp.sin(x))))(x), 1e-15)
    assert segments_of(loss, x) == recomputed


def test_adaptive_finds_what_is_closed_over(x):
    for threshold in (0, 1000):
        found = jax.grad(lambda w: jnp.sum(remat.adaptive_checkpoint(lambda x: jnp.sin(x * w), x, threshold=threshold)))  # noqa: B023
        assert_equal(found(x), jax.grad(lambda w: jnp.sum(jnp.sin(x * w)))(x), 1e-15)


def test_the_profiler_counts_checkpoints_as_they_are_traced(profiler):
    data, weights = jnp.ones((10, 10)), [jnp.eye(10) for _ in range(5)]

    def net(weights):
        x = data
        for weight in weights:
            x = remat.checkpoint(lambda x, w: jnp.exp(jnp.sin(x @ w)), x, weight)
        return jnp.sum(x)

    net(weights)
    assert profiler.checkpoint_count() == 0  # nothing was differentiated
    assert_equal(
        jax.grad(net)(weights), jax.grad(lambda ws: jnp.sum(functools.reduce(_layer, ws, data)))(weights), 1e-14
    )
    assert profiler.checkpoint_count() == 5
    assert profiler.memory_saved() == 5 * 800  # cos(x @ w): exp is its own derivative, and the caller's
    remat.checkpoint(jnp.sin, jnp.arange(3))
    jax.jit(lambda n: remat.checkpoint(lambda n: n + 1, n))(3)
    assert profiler.checkpoint_count() == 5


def _layer(x, w):
    return jnp.exp(jnp.sin(x @ w))


def test_the_profiler_counts_inner_checkpoints_once(profiler, x):
    jax.grad(lambda x: jnp.sum(remat.checkpoint(lambda x: remat.checkpoint(jnp.tanh, jnp.sin(x)), x)))(x)
    assert profiler.checkpoint_count() == 2


def test_a_profile_sees_segments_as_they_are_traced(x):
    def two(x):
        return remat.checkpoint(jnp.sin, jnp.cos(x))

    with remat.profile() as run:
        jax.jit(jax.grad(lambda x: jnp.sum(remat.drop(two)(x))))(x)
    assert [(each.what, each.name.rpartition(".")[2], each.depth) for each in run.passes] == [
        ("forward", "two", 0),
        ("forward", "sin", 1),
    ]
    assert [(call.what, call.framework, call.steps) for call in run.calls] == [
        ("drop", "jax", 1),
        ("checkpoint", "jax", 1),
    ]
    assert "checkpoint" in str(run)

"""What profiles and the checkpoint profiler count of checkpoints that JAX traces."""

import functools

import jax
import jax.numpy as jnp

import remat
from tests.frameworks.jax.checkpoint_programs import assert_equal


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

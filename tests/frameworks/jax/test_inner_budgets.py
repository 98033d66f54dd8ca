"""Loops inside of loops, each with the same budget in bytes: the whole keeps it, whatever the inner ones would take."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat
from remat.errors import InfeasibleError

W = jnp.eye(64, dtype=jnp.float32) / 2
H = jnp.linspace(0.1, 0.9, 64 * 16, dtype=jnp.float32).reshape(64, 16)  # a state of 4 KiB
KIB = 1024


def scan(step, h, length, **budget):
    return remat.scan(lambda h, _: (step(h), None), h, length=length, **budget)[0]


def while_loop(step, h, length, **budget):
    return remat.while_loop(lambda c: c[0] < length, lambda c: (c[0] + 1, step(c[1])), (0, h), **budget)[1]


def plain(step, h, length):
    return jax.lax.scan(lambda h, _: (step(h), None), h, length=length)[0]


def cell(h):
    return jnp.sin(W @ h) + 0.1


def two_inner_loops(loop, **budget):
    return lambda h: loop(cell, loop(cell, h, 12, **budget) * 2, 12, **budget)


def in_checkpoint(loop, **budget):
    return jax.checkpoint(lambda h: loop(cell, h, 24, **budget))


def in_jit_and_cond(loop, **budget):
    inner = jax.jit(lambda h: loop(cell, h, 24, **budget))
    return lambda h: jax.lax.cond(h[0, 0] > -9, inner, jnp.sin, h)


def three_deep(loop, **budget):
    return lambda h: loop(lambda h: loop(cell, h, 8, **budget), h, 6, **budget)


@pytest.mark.parametrize("step", [two_inner_loops, in_checkpoint, in_jit_and_cond, three_deep])
@pytest.mark.parametrize("loop", [scan, while_loop])
def test_a_loop_leaves_room_in_its_budget_for_those_inside(step, loop):
    def loss(h, loop, **budget):
        return jnp.sum(loop(step(loop, **budget), h, 10, **budget) ** 2)

    found = jax.jit(jax.grad(lambda h: loss(h, loop, memory=200 * KIB))).lower(H).compile()
    assert found.memory_analysis().temp_size_in_bytes < 200 * KIB
    np.testing.assert_allclose(found(H), jax.jit(jax.grad(lambda h: loss(h, plain)))(H), rtol=2e-5, atol=1e-7)


def test_a_budget_that_no_inner_plan_fits_is_refused_with_the_least_for_the_whole():
    def loss(h, memory):
        return jnp.sum(scan(two_inner_loops(scan, memory=memory), h, 10, memory=memory))

    with pytest.raises(InfeasibleError, match="the smallest that works") as refused:
        jax.make_jaxpr(jax.grad(lambda h: loss(h, 40 * KIB)))(H)
    jax.make_jaxpr(jax.grad(lambda h: loss(h, refused.value.minimum)))(H)

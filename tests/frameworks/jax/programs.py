"""Programs that the tests of JAX's loops run, and what they share."""

import jax
import jax.numpy as jnp
import numpy as np

import remat
from remat.frameworks.jax.loops.binomial_tables import online_positions


class Counter:
    """Counts evaluations of a step that calls `here` with an array of its carry."""

    def __init__(self):
        self.count = 0

    def here(self, value):
        jax.debug.callback(self._add, jnp.ravel(value)[0])

    def _add(self, _):
        self.count += 1

    def of(self, function, *args):
        jax.effects_barrier()
        self.count = 0
        found = jax.block_until_ready(function(*args))
        jax.effects_barrier()
        return found, self.count


def lstm(hidden=5, batch=3, steps=40, seed=0):
    """A cell, its parameters, initial carry and inputs."""
    rng = np.random.default_rng(seed)
    params = {
        "W": jnp.asarray(rng.normal(size=(2 * hidden, 4 * hidden)) / 3),
        "b": jnp.asarray(rng.normal(size=4 * hidden) / 3),
    }
    init = (jnp.asarray(rng.normal(size=(batch, hidden))), jnp.asarray(rng.normal(size=(batch, hidden))))
    xs = jnp.asarray(rng.normal(size=(steps, batch, hidden)))

    def cell(params, carry, x):
        h, c = carry
        i, f, o, g = jnp.split(jnp.concatenate([x, h], -1) @ params["W"] + params["b"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h.sum(-1)

    return cell, params, init, xs


def losses(cell, **budget):
    """The loss of a loop by lax.scan, and by remat."""

    def loss(scan, params, init, xs):
        (h, c), ys = scan(lambda carry, x: cell(params, carry, x), init, xs)
        return (h**2).sum() + jnp.sin(c).sum() + (ys**3).sum()

    return (
        lambda *args: loss(jax.lax.scan, *args),
        lambda *args: loss(lambda step, init, xs: remat.scan(step, init, xs, **budget), *args),
    )


def same(found, expected):
    """All leaves are the same to the last bit."""
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def close(found, expected, tolerance=1e-12):
    """All leaves are close, relative to the largest number of each."""
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape
        assert np.max(np.abs(a - b), initial=0.0) <= tolerance * max(1e-30, np.max(np.abs(b), initial=0.0))


def positions_after(steps, slots):
    """The states that a loop of unknown length holds after so many steps."""
    held = [0]
    for position, level in zip(*map(np.ndarray.tolist, online_positions(slots)), strict=True):
        if position >= steps:
            break
        held[level:] = [position]
    return held

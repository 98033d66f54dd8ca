"""Modules of flax.nnx in segments: random streams and statistics are those of plain calls, and count once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat

nnx = pytest.importorskip(
    "flax.nnx", reason="flax is not installed: 24 packages, tensorstore among them, come with it; pip install flax"
)


def call(model, x):
    return model(x)


def run(segment):
    rngs = nnx.Rngs(0, dropout=1)
    model = nnx.Sequential(nnx.Linear(4, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs))

    def loss(model, x):
        for _ in range(2):
            x = segment(model, x)
        return jnp.sum(x**2)

    value, slopes = nnx.value_and_grad(loss)(model, jnp.arange(12, dtype=jnp.float32).reshape(3, 4))
    return jax.tree.leaves((value, slopes, nnx.state(model, nnx.BatchStat)))


SEGMENTS = {
    "an argument": lambda model, x: remat.checkpoint(call, model, x),
    "the function": lambda model, x: remat.checkpoint(model, x),
    "dropped": lambda model, x: remat.drop(model)(x),
}


@pytest.mark.parametrize("segment", SEGMENTS.values(), ids=SEGMENTS)
def test_a_module_with_state_is_as_in_plain_calls(segment):
    want = run(call)
    scale = max(float(np.abs(leaf).max()) for leaf in want)
    for got, leaf in zip(run(segment), want, strict=True):
        np.testing.assert_allclose(got, leaf, atol=1e-5 * scale)

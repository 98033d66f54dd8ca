"""What the tests of checkpoints on JAX share."""

import functools

import jax
import jax.numpy as jnp
import numpy

import remat

A = numpy.array([[1.0, 2.0], [3.0, 4.0]])


def plainly(fn, *args, **kwargs):
    return fn(*args, **kwargs)


def assert_equal(found, expected, tolerance=0.0):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.result_type(a) == jnp.result_type(b)
        numpy.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def same(loss, *args, tolerance=1e-15):
    """Values and gradients of `loss(run, *args)` are those without segments, and are so in jit."""
    numbers = tuple(range(len(args)))
    found, expected = (jax.value_and_grad(functools.partial(loss, run), numbers) for run in (remat.checkpoint, plainly))
    assert_equal(found(*args), expected(*args), tolerance)
    assert_equal(jax.jit(found)(*args), jax.jit(expected)(*args), 1e-14)


def segments_of(fn, *args):
    """How many segments are in what a function is traced to, inner ones included."""
    return str(jax.make_jaxpr(fn)(*args)).count("remat2[") or str(jax.make_jaxpr(fn)(*args)).count("checkpoint[")


def held(fn, x):
    """What its backward needs."""
    return jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(fn, x)[1], x))

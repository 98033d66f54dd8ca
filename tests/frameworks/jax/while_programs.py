"""What the tests of `while_loop` on JAX share: a recurrence, and the plain loop that it must agree with."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy
from jax import lax

import remat


def ours(slots, **asked):
    return partial(remat.while_loop, slots=slots, **asked)


def plain(most):
    """The same loop as a scan of `most` steps, those after the end left out."""

    def run(cond, body, init):
        def step(carry, _):
            return lax.cond(cond(carry), body, lambda carry: carry, carry), None

        return lax.scan(step, init, None, length=most)[0]

    return run


def assert_same(found, expected, tolerance=1e-12):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.result_type(a) == jnp.result_type(b)
        a, b = (jnp.asarray(each).astype(float) for each in (a, b))
        assert a.shape == b.shape
        scale = max(1.0, float(jnp.max(jnp.abs(b), initial=0.0)))
        numpy.testing.assert_allclose(a, b, rtol=0.0, atol=tolerance * scale)


def compare(of, slots=3, most=15, **asked):
    """What `of(loop)` gives is the same with our loop as with a plain one."""
    found, expected = jax.jit(lambda: (of(ours(slots, **asked)), of(plain(most))))()
    assert_same(found, expected)


W = numpy.array([[0.9, -1.1], [1.2, 0.4]])


B = numpy.array([0.3, -0.2])


X = numpy.array([0.3, 0.7])


XS = numpy.stack([X, 2 * X, X - 1.0, X[::-1]])


ENDS = numpy.array([0, 5, 13, 1])


def recurrence(loop, params, x, end):
    """A number that depends on a closed-over matrix, on the first carry, and on how long the loop is."""
    W, b = params

    def body(carry):
        i, h, c = carry
        return i + 1, jnp.tanh(W @ h + b * c), 0.9 * c + 0.2 * h

    _, h, c = loop(lambda carry: carry[0] < end, body, (0, jnp.asarray(x), 2.0 * jnp.asarray(x)))
    return jnp.sum(jnp.sin(h)) + jnp.sum(c**2)


def gradients(loop, **keywords):
    return jax.grad(lambda params, x, end: recurrence(loop, params, x, end), (0, 1), **keywords)

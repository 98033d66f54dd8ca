"""What a carry of `while_loop` on JAX may be."""

from dataclasses import dataclass
from functools import partial

import equinox
import jax
import jax.numpy as jnp
import pytest

import remat
from tests.frameworks.jax.while_programs import (
    XS,
    X,
    assert_same,
    compare,
    ours,
)

pytestmark = pytest.mark.usefixtures("quick")


@jax.tree_util.register_dataclass
@dataclass
class Registered:
    h: jax.Array
    count: jax.Array
    nothing: None = None


class Module(equinox.Module):
    h: jax.Array
    name: str = equinox.field(static=True)


def carries():
    def noisy(c):
        key, own = jax.random.split(c["key"])
        noise = jax.random.normal(own) + jax.random.normal(c["old"])
        return {"key": key, "old": c["old"] + jnp.uint32(1), "h": jnp.sin(c["h"] + noise), "i": c["i"] + 1}

    yield (
        "keys, new and old",
        lambda x: {"key": jax.random.key(3), "old": jax.random.PRNGKey(3), "h": x, "i": 0},
        noisy,
        lambda c: c["i"] < 5,
    )
    yield (
        "dataclass and module",
        lambda x: (Registered(x, jnp.int8(1)), Module(x, "name")),
        lambda c: (
            Registered(jnp.sin(c[0].h) * c[0].count, c[0].count + jnp.int8(1)),
            equinox.tree_at(lambda m: m.h, c[1], jnp.cos(c[1].h)),
        ),
        lambda c: c[0].count < 5,
    )
    yield (
        "bools, integers, None, empty",
        lambda x: (x, True, jnp.uint8(1), None, jnp.zeros((0, 3))),
        lambda c: (jnp.where(c[1], c[0] * 1.5, jnp.sin(c[0])), jnp.logical_not(c[1]), c[2] * jnp.uint8(2), None, -c[4]),
        lambda c: c[2] < 64,
    )
    yield (
        "weak types",
        lambda x: (0, 1, 0.0, x),
        lambda c: (c[0] + 1, c[1] * c[3][0], c[2] + c[1], c[3]),
        lambda c: c[0] < 5,
    )
    yield (
        "complex",
        lambda x: (x * (1 + 0.5j), x),
        lambda c: (c[0] * (1.1 + 0.3j) + c[1], c[1]),
        lambda c: jnp.abs(c[0][0]) < 3.0,
    )


def parts(tree):
    """Numbers that all floats of a carry become, complex ones as two."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    return sum(jnp.sum(jnp.sin(leaf.real) + jnp.cos(leaf.imag) * 0.5) for leaf in leaves)


@pytest.mark.parametrize(("start", "body", "cond"), [pytest.param(*rest, id=name) for name, *rest in carries()])
def test_carries_of_every_kind(start, body, cond):
    def unrolled(x):
        carry = start(x)
        while cond(carry):
            carry = body(carry)
        return parts(carry)

    def loop(x):
        return parts(remat.while_loop(cond, body, start(x), slots=2))

    xs = abs(XS[:2])
    expected = jnp.stack([jax.grad(unrolled)(x) for x in xs])

    @jax.jit
    def found(xs):
        together = jax.grad(lambda xs: jnp.sum(jax.vmap(loop)(xs)))(xs)
        return jax.grad(loop)(xs[0]), jax.vmap(jax.grad(loop))(xs), together

    assert_same(found(xs), (expected[0], expected, expected))


def test_bfloat16():
    def of(loop):
        body = lambda x: x * jnp.bfloat16(1.25) + jnp.sin(x)  # noqa: E731
        return jax.grad(lambda x: jnp.sum(loop(lambda x: x[0] < 8.0, body, x)))(jnp.asarray(X, jnp.bfloat16))

    compare(of, slots=2)


def test_integers_alone_and_results_of_which_a_part_is_used():
    count = lambda x, loop: loop(lambda i: i < 7, lambda i: i + jnp.where(x > 0.0, 2, 1), 0)  # noqa: E731
    assert jax.grad(lambda x: x * count(x, ours(2)))(2.0) == 8.0
    assert jax.grad(lambda x: 1.0 * count(x, ours(2)))(2.0) == 0.0

    def of(loop, k):
        body = lambda s: (s[0] + 1.0, jnp.sin(s[1]), s[2] * 1.1 + s[1])  # noqa: E731
        return jax.grad(lambda x: loop(lambda s: s[0] < 7.0, body, (0.0, x, x))[k])(0.7)

    for k in range(3):
        compare(partial(of, k=k), slots=2)


def test_a_key_that_is_closed_over():
    def of(loop, x, key):
        def body(s):
            return s[0] + 1, jnp.sin(s[1] + jax.random.normal(jax.random.fold_in(key, s[0])))

        return loop(lambda s: s[0] < 5, body, (0, x))[1]

    keys = jax.random.split(jax.random.key(1), 3)
    compare(lambda loop: jax.vmap(jax.grad(partial(of, loop)), (None, 0))(0.3, keys))

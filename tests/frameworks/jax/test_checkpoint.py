"""Checkpoints on JAX: gradients are those of the plain call, and what is recomputed is what `jax.checkpoint` does."""

import functools
from collections import namedtuple
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy
import pytest
from jax.test_util import check_grads

import remat
from tests.frameworks.jax.checkpoint_programs import assert_equal, held, same, segments_of

pytestmark = pytest.mark.usefixtures("quick")


def test_it_is_traced_to_what_jax_checkpoint_is(x):
    def fn(x, w):
        return jnp.tanh(jnp.sin(x) * w)

    def traced(run):
        return jax.make_jaxpr(jax.grad(lambda x: jnp.sum(run(x, x))))(x)

    ours, theirs = traced(remat.drop(fn)), traced(jax.checkpoint(fn))
    assert str(ours) == str(theirs)


def test_nothing_is_kept_but_the_inputs(x):
    def fn(x):
        return jnp.sin(jnp.sin(jnp.sin(x)))

    assert len(held(remat.drop(fn), x)) == len(held(jax.checkpoint(fn), x)) == 1
    assert len(held(fn, x)) == 3


def test_the_function_is_traced_once_and_run_plainly_where_nothing_is_traced(x):
    seen = []

    def fn(x):
        seen.append(isinstance(x, jax.core.Tracer))
        return jnp.sin(x)

    assert_equal(remat.checkpoint(fn, x), jnp.sin(x))
    assert remat.checkpoint(lambda x: x, x) is x
    assert seen == [False]
    jax.grad(lambda x: jnp.sum(remat.checkpoint(fn, x)))(x)
    assert seen == [False, True]


def test_nested_segments(x):
    inner = remat.drop(jnp.sin)
    outer = remat.drop(lambda x: inner(jnp.cos(x)))
    twice = remat.drop(remat.drop(jnp.sin))
    assert segments_of(outer, x) == segments_of(twice, x) == 2
    assert_equal(
        jax.grad(lambda x: jnp.sum(outer(x) * twice(x)))(x),
        jax.grad(lambda x: jnp.sum(jnp.sin(jnp.cos(x)) * jnp.sin(x)))(x),
        1e-15,
    )


@dataclass
class Pair:
    left: object
    right: object


Point = namedtuple("Point", "x y")


@jax.tree_util.register_pytree_node_class
class Node:
    """A container that only JAX knows."""

    def __init__(self, value, name):
        self.value, self.name = value, name

    def tree_flatten(self):
        return (self.value,), self.name

    @classmethod
    def tree_unflatten(cls, name, children):
        return cls(children[0], name)


def test_containers_go_in_and_out_and_gradients_flow_through_all_of_them(x):
    def fn(pair, point, things, node, *, scale, flag):
        assert flag == "yes"
        assert list(things) == ["w", "n"]
        assert node.name == "node"
        first = Pair(jnp.sin(pair.left) * scale, "text")
        return {"b": (Point(jnp.exp(point.x), None), [things["w"] * 2, 3]), "a": Node(first, node.name)}

    def total(run, left, x, w, scale):
        things = {"w": w, "n": [1, "2"]}
        out = run(fn, Pair(left, 1), Point(x, 7), things, Node(Pair(x, None), "node"), scale=scale, flag="yes")
        assert list(out) == ["b", "a"]
        assert out["a"].value.right == "text"
        assert out["b"][1][1] == 3
        return jnp.sum(out["a"].value.left + out["b"][0].x + out["b"][1][0])

    same(total, x, x + 1, x + 2, jnp.array(1.5))


def test_what_is_no_array_stays_as_it_is(x):
    def fn(x, count, axis, how, activation, none, key=None, *, size):
        assert (type(count), none) == (int, None)
        assert type(size) is numpy.int64
        if how == "tile":
            x = jnp.tile(x, count)
        x = activation(x.reshape(-1, size))
        return jnp.sum(x, axis), x.shape, how, count, numpy.arange(count), len

    def loss(run, x):
        y, shape, how, count, numbers, function = run(fn, x, 2, 0, "tile", jnp.tanh, None, size=numpy.int64(5))
        assert (shape, how, count, function) == ((2, 5), "tile", 2, len)
        assert type(numbers) is numpy.ndarray
        return jnp.sum(y * numbers.sum())

    same(loss, x)


def test_arrays_of_numpy_are_traced_and_those_of_objects_are_not(x):
    words = numpy.array(["a", "b"], dtype=object)

    def fn(x, weights, mask, words):
        assert isinstance(weights, jax.core.Tracer)
        assert isinstance(mask, jax.core.Tracer)
        return jnp.where(mask, x * weights, 0.0) * len(words)

    weights = numpy.linspace(1, 2, 5)
    found = jax.grad(lambda x: jnp.sum(remat.checkpoint(fn, x, weights, weights > 1.3, words)))(x)
    assert_equal(found, jnp.where(weights > 1.3, weights, 0.0) * 2)


def test_objects_in_results_may_hold_what_comes_from_outside(x):
    def loss(x):
        y, function = remat.checkpoint(lambda v: (jnp.sin(v), lambda: x), x)
        return jnp.sum(y * function())

    assert_equal(jax.grad(loss)(x), jax.grad(lambda x: jnp.sum(jnp.sin(x) * x))(x), 1e-15)


def test_errors_of_jax_name_the_function(x):
    def decides(x, how):
        return x if x[0] > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"function decides at .*test_checkpoint.py"):
        jax.grad(lambda x: jnp.sum(remat.checkpoint(decides, x, "so")))(x)


def test_derivatives_of_any_order_and_mode(x):
    def fn(x):
        return jnp.tanh(jnp.sin(x) * jnp.exp(x))

    loss = lambda x: jnp.sum(remat.checkpoint(fn, x) ** 2)  # noqa: E731
    check_grads(loss, (x,), order=3)
    assert_equal(jax.hessian(loss)(x), jax.hessian(lambda x: jnp.sum(fn(x) ** 2))(x), 1e-13)
    assert_equal(jax.jvp(remat.drop(fn), (x,), (x,)), jax.jvp(fn, (x,), (x,)), 1e-15)
    assert_equal(jax.jacfwd(remat.drop(fn))(x), jax.jacrev(fn)(x), 1e-15)


def test_inside_vmap_and_scan_and_cond_and_while(x):
    def fn(c, a):
        return jnp.tanh(c * a)

    def loss(run, xs):
        c, ys = jax.lax.scan(lambda c, a: (run(fn, c, a), run(jnp.sin, c)), jnp.ones(5), xs)
        z = jax.lax.cond(jnp.sum(c) > 0, lambda c: run(fn, c, c), lambda c: run(jnp.cos, c), c)
        last = jax.lax.fori_loop(0, 3, lambda i, c: run(fn, c, 0.5), z)  # a known number: it can be reversed
        return jnp.sum(jax.vmap(lambda y: run(fn, y, last))(ys))

    same(loss, jnp.stack([x, x + 1, x * 2]), tolerance=1e-14)


def test_named_axes_are_seen(x):
    def loss(run, xs):
        normal = jax.vmap(lambda x: run(lambda x: jnp.sin(x) / jax.lax.psum(x, "i"), x), axis_name="i")
        return jnp.sum(normal(xs) ** 2)

    same(loss, jnp.stack([x, x + 1, x * 2]), tolerance=1e-14)


def test_derivatives_that_are_the_users_are_used(x):
    @jax.custom_vjp
    def double(x):
        return x

    double.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))
    assert jax.grad(lambda x: jnp.sum(remat.checkpoint(lambda x: double(jnp.exp(x)), x)))(x)[0] == 2 * jnp.exp(x[0])
    for threshold in (0, 10_000):
        run = functools.partial(remat.adaptive_checkpoint, double, threshold=threshold)
        assert jax.grad(lambda x: jnp.sum(run(x)))(x).tolist() == [2.0] * 5  # noqa: B023


def with_constant_ref(x):
    sums = jax.new_ref(jnp.zeros(5))
    jax.lax.fori_loop(0, 5, lambda i, _: sums.__setitem__(i, jnp.sin(x[i]) * x[0]), None)
    sums[0] = 2.0
    return jnp.sum(sums[...] ** 2)


@pytest.mark.parametrize("options", [{}, {"memory": 0}, {"memory": 100}, {"policy": "dots_saveable"}], ids=str)
def test_a_mutable_array_made_of_constants_may_be_written_with_what_has_a_gradient(options, x):
    """`jax.checkpoint` ends in a KeyError there."""
    run, plain = remat.drop(with_constant_ref, **options), lambda x: jnp.sum((jnp.sin(x) * x[0])[1:] ** 2)
    for ours in (run, jax.jit(run), lambda x: remat.checkpoint(run, x)):
        numpy.testing.assert_allclose(jax.grad(ours)(x), jax.grad(plain)(x), rtol=1e-12)
        theirs = jax.jvp(jax.grad(plain), (x,), (x,))[1]
        numpy.testing.assert_allclose(jax.jvp(jax.grad(ours), (x,), (x,))[1], theirs, rtol=1e-12)

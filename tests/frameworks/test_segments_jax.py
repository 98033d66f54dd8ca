"""Segments on JAX: gradients are those of the plain call, what is recomputed is what `jax.checkpoint` recomputes."""

import collections
import copy
import functools
from collections import namedtuple
from dataclasses import dataclass

import equinox
import jax
import jax.numpy as jnp
import numpy
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.test_util import check_grads

import remat
from tests.frameworks.jax_programs import x64  # noqa: F401

A = numpy.array([[1.0, 2.0], [3.0, 4.0]])
B = numpy.array([[5.0, 6.0], [7.0, 8.0]])


@pytest.fixture
def x():
    return jnp.linspace(0.1, 0.9, 5)


@pytest.fixture
def profiler():
    found = remat.CheckpointProfiler
    found.reset_statistics()
    found.start_tracking()
    yield found
    found.stop_tracking()
    found.reset_statistics()


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


# The numbers of the documents


def test_segments_have_the_documented_gradients():
    a, b = jnp.asarray(A), jnp.asarray(B)
    value, found = jax.value_and_grad(
        lambda a: jnp.sum(remat.checkpoint_segment(lambda inputs: inputs[0] @ inputs[1], [a, b]))
    )(a)
    assert value == 134
    assert found.tolist() == [[11, 15], [11, 15]]
    value, found = jax.value_and_grad(lambda a: jnp.sum(remat.checkpoint_segment(jnp.dot, (a, B)) ** 2))(a)
    assert value == 5194
    assert found.tolist() == [[454, 618], [1030, 1402]]


def test_a_group_has_several_outputs_and_gradients_for_all_inputs():
    def loss(a, b):
        c, transposed = remat.CheckpointGroup().checkpoint_fn((a, b), lambda a, b: (a @ b, (a @ b).T))
        return jnp.sum(c) + jnp.sum(transposed)

    a, b = jnp.asarray(A), jnp.asarray(B)
    assert loss(a, b) == 268
    assert [found.tolist() for found in jax.grad(loss, (0, 1))(a, b)] == [[[22, 30], [22, 30]], [[8, 8], [12, 12]]]


# What is recomputed


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


@pytest.mark.parametrize("depth", [1, 2, 6])
def test_segments_nest_to_any_depth(x, depth):
    def deep(run, x, depth):
        return jnp.sin(x) if depth == 0 else jnp.cos(run(functools.partial(deep, run), jnp.sin(x) * 1.5, depth - 1))

    same(lambda run, x: jnp.sum(deep(run, x, depth)), x)


# What goes in and out


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


def test_gradients_flow_to_what_is_closed_over_and_to_objects(x):
    class Model:
        def __init__(self, w):
            self.w = w

        def __call__(self, x):
            return jnp.tanh(self.w * x)

    same(lambda run, w, v: jnp.sum(run(lambda x: Model(w)(x) * v, x)), x + 1, x - 1)
    same(lambda run, w: jnp.sum(run(Model(w), x)), x + 1)
    same(lambda run, w: jnp.sum(run(lambda m, x: m(x), Model(w), x)), x + 1)
    same(lambda run, w: jnp.sum(run(lambda: jnp.sin(w))), x + 1)
    assert segments_of(lambda w: remat.checkpoint(lambda: jnp.sin(w)), x) == 1


def test_variables_that_are_assigned_again_are_what_they_were(x):
    def forward(run, h):
        for scale in (1.0, 2.0, 3.0):
            h = run(lambda: jnp.sin(h * scale))  # noqa: B023
        return jnp.sum(h)

    same(forward, x)


def test_a_function_that_uses_what_changes_is_traced_anew(x):
    held = {}

    def fn(x):
        return jnp.sin(x * held["w"])

    def loss(run, x, *weights):
        for w in weights:
            held["w"] = w
            x = run(fn, x)
        return jnp.sum(x)

    same(loss, x, x + 1, x + 2)


class Holds:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize("kind", ["object", "dict subclass", "function", "objects", "deque"])
def test_results_that_gradients_would_be_lost_in_are_errors(x, kind):
    class Kept(dict):
        pass

    def objects(y):
        made = numpy.empty(2, dtype=object)
        made[0] = y
        return made

    make = {
        "object": Holds,
        "dict subclass": lambda y: Kept(y=y),
        "function": lambda y: lambda: y,
        "objects": objects,
        "deque": lambda y: collections.deque([y]),
    }[kind]
    with pytest.raises(remat.StepError, match=r"gradients would be lost.*dataclasses"):
        jax.grad(lambda x: jnp.sum(remat.checkpoint(lambda x: make(jnp.sin(x)), x)))(x)


def test_objects_in_results_may_hold_what_comes_from_outside(x):
    def loss(x):
        y, function = remat.checkpoint(lambda v: (jnp.sin(v), lambda: x), x)
        return jnp.sum(y * function())

    assert_equal(jax.grad(loss)(x), jax.grad(lambda x: jnp.sum(jnp.sin(x) * x))(x), 1e-15)


def test_errors_of_jax_name_the_function(x):
    def decides(x, how):
        return x if x[0] > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"function decides at .*test_segments_jax.py"):
        jax.grad(lambda x: jnp.sum(remat.checkpoint(decides, x, "so")))(x)


# Orders, modes and transformations


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


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_random_numbers_are_those_of_the_key(x, make):
    def fn(key, x):
        key, other = jax.random.split(key)
        return jnp.sin(x * jax.random.normal(other, x.shape)), key

    def loss(run, x):
        y, key = run(fn, make(3), x)
        z, _ = run(fn, key, y)
        return jnp.sum(z)

    same(loss, x)


# Policies


def test_a_policy_says_what_is_kept(x):
    w = jnp.outer(x, x)

    def fn(x):
        return jnp.sin(checkpoint_name(jnp.cos(w @ x), "cosine"))

    policies = jax.checkpoint_policies
    for policy, theirs in [
        ("dots_saveable", policies.dots_saveable),
        ("everything_saveable", policies.everything_saveable),
        (policies.save_only_these_names("cosine"), policies.save_only_these_names("cosine")),
        (None, None),
    ]:
        ours, expected = remat.drop(fn, policy=policy), jax.checkpoint(fn, policy=theirs)
        assert held(ours, x) == held(expected, x)
        assert_equal(jax.grad(lambda x: jnp.sum(ours(x)))(x), jax.grad(lambda x: jnp.sum(fn(x)))(x), 1e-15)  # noqa: B023

    @remat.drop(policy="dots_saveable")
    def decorated(x):
        return jnp.sin(w @ x)

    assert segments_of(decorated, x) == 1
    assert "policy=None" not in str(jax.make_jaxpr(decorated)(x))


def test_policies_that_there_are_not(x):
    with pytest.raises(remat.ProblemError, match=r"'dots' is none of JAX's: these are .*dots_saveable"):
        remat.drop(jnp.sin, policy="dots")(x)
    for maker in ("save_only_these_names", jax.checkpoint_policies.save_only_these_names):
        with pytest.raises(remat.ProblemError, match="makes policies and is none"):
            remat.drop(jnp.sin, policy=maker)(x)
    with pytest.raises(remat.ProblemError, match="policy must be a function or its name, not 3"):
        remat.drop(jnp.sin, policy=3)
    with pytest.raises(remat.ProblemError, match="policy= is for JAX, and this runs on numpy"):
        remat.drop(numpy.sin, policy="dots_saveable")(A)


def test_policies_on_pytorch_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(remat.ProblemError, match="policy= is for JAX, and this runs on torch"):
        remat.drop(torch.sin, policy="dots_saveable")(torch.ones(2))
    with pytest.raises(remat.ProblemError, match="policy= is for JAX, and this runs on torch"):
        remat.drop(torch.nn.Linear(2, 2), policy="dots_saveable")


@pytest.mark.parametrize("option", ["policy", "prevent_cse", "static_argnums"])
def test_options_of_jax_checkpoint_are_refused_in_words(x, option):
    with pytest.raises(remat.StepError, match=f"needs no {option}="):
        remat.checkpoint(lambda x: x, x, **{option: ()})
    assert remat.checkpoint(lambda x, **kwargs: kwargs, x, **{option: 1}) == {option: 1}


# Modules


def test_modules_of_equinox_are_functions_with_parameters(x):
    module = equinox.nn.MLP(5, 3, 4, 2, key=jax.random.key(0))

    def loss(run, module, x):
        return jnp.sum(run(module, x) ** 2)

    found, expected = (
        equinox.filter_jit(equinox.filter_grad(functools.partial(loss, run)))(module, x)
        for run in (remat.checkpoint, plainly)
    )
    assert_equal(found, expected, 1e-14)


def test_a_dropped_module_is_a_pytree_of_its_parameters(x):
    module = equinox.nn.MLP(5, 5, 4, 2, key=jax.random.key(0))
    dropped = remat.drop(module)
    assert jax.tree.leaves(dropped) == jax.tree.leaves(module)
    assert dropped.layers[0].weight is module.layers[0].weight
    assert repr(dropped).startswith("drop(MLP(")
    assert segments_of(lambda x: dropped(x), x) == 1

    @equinox.filter_jit
    @equinox.filter_value_and_grad
    def loss(module, x):
        return jnp.sum(module(module(x)))

    (value, found), (other, expected) = loss(dropped, x), loss(module, x)
    assert float(value) == pytest.approx(float(other), rel=1e-14)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        numpy.testing.assert_allclose(a, b, rtol=1e-12)
    stepped = equinox.apply_updates(dropped, jax.tree.map(lambda g: -0.1 * g, found))
    assert isinstance(stepped, type(dropped))
    assert_equal(stepped.layers[0].bias, module.layers[0].bias - 0.1 * expected.layers[0].bias, 1e-12)
    changed = equinox.tree_at(lambda m: m.layers[0].bias, dropped, jnp.zeros(4))
    assert not changed.layers[0].bias.any()


def test_a_method_of_a_module_is_dropped(x):
    class Model(equinox.Module):
        linear: equinox.nn.Linear
        scale: float = equinox.field(static=True)

        @remat.drop(policy="nothing_saveable")
        def __call__(self, x, how):
            return jnp.tanh(self.linear(x)) * self.scale if how == "tanh" else x

    module = Model(equinox.nn.Linear(5, 5, key=jax.random.key(0)), 2.0)
    found = equinox.filter_grad(lambda module: jnp.sum(module(x, "tanh")))(module)
    expected = equinox.filter_grad(lambda linear: jnp.sum(jnp.tanh(linear(x)) * 2.0))(module.linear)
    assert_equal(found.linear, expected, 1e-15)
    assert segments_of(lambda x: module(x, "tanh"), x) == 1


def _times(a, b):
    return a * b


def test_a_dropped_pytree_can_be_copied_and_watched(x):
    dropped = remat.drop(jax.tree_util.Partial(_times, x))
    for made in (copy.copy(dropped), copy.deepcopy(dropped), jax.tree.map(lambda leaf: leaf, dropped)):
        assert type(made) is type(dropped)
        assert jax.tree.structure(made) == jax.tree.structure(dropped)
        assert_equal(made(x), x * x)
    with remat.profile() as run:
        found = jax.grad(lambda dropped: jnp.sum(dropped(x)))(dropped)
    assert_equal(found.args[0], x)
    assert [(call.what, call.framework) for call in run.calls] == [("drop", "jax")]
    assert [each.name for each in run.passes] == ["_times"]


# Adaptive, profiles


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

"""Carries, inputs and outputs of every kind: containers, dtypes, numbers, None."""

import functools
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy
import pytest

import remat

from .comparison import assert_same
from .frameworks import on_jax, where_python_runs_each_step
from .trees import flatten, leaves_of, tree_map

Pair = namedtuple("Pair", "h c")


@dataclass
class Body:
    h: object
    count: object
    t: object


def carriers(framework):
    """By name: an initial carry, and a step on rows of three numbers."""
    np, array = framework.np, framework.array
    x = array([0.3, -0.7, 1.1])
    framework.dataclass(Body)
    return {
        "tuple": ((x, x * 2), lambda c, a: ((np.sin(c[0] + a), c[1] * 0.9 + c[0]), c[0])),
        "list": ([x, x * 2], lambda c, a: ([np.sin(c[0] + a), c[1] * 0.9], [c[0], a])),
        "dict": (
            {"b": x, "a": x * 2},
            lambda c, a: ({"b": c["b"] + a * c["a"], "a": np.sin(c["a"])}, {"y": c["b"]}),
        ),
        "ordered dict": (
            OrderedDict(b=x, a=x * 2),
            lambda c, a: (OrderedDict(b=c["b"] + a * c["a"], a=np.sin(c["a"])), OrderedDict(y=c["b"])),
        ),
        "named tuple": (Pair(x, x * 2), lambda c, a: (Pair(np.sin(c.h + c.c), c.c + a), Pair(c.h, None))),
        "dataclass": (
            Body(x, array(0, "int64"), array(0.0)),
            lambda c, a: (Body(np.sin(c.h + a * c.t), c.count + 1, c.t + 0.1), c.h * c.count),
        ),
        "Python numbers": (
            Body(x, 0, 0.0),
            lambda c, a: (Body(np.sin(c.h + a * c.t), c.count + 1, c.t + 0.1), c.h * c.count),
        ),
        "None": ((x, None), lambda c, a: ((np.sin(c[0] + a), None), None)),
        "nested": (
            {"s": (x, [x * 3])},
            lambda c, a: ({"s": (c["s"][0] * a, [np.cos(c["s"][1][0])])}, (c, a)),
        ),
        "integers and bools": (
            (x, array(3, "int64"), array([True, False, True], "bool")),
            lambda c, a: ((np.where(c[2], np.sin(c[0]) + a, c[0] * c[1]), c[1] + 1, np.logical_not(c[2])), c[1]),
        ),
        "several dtypes": (
            (x, array([0.1, 0.2, 0.3], "float32"), array([1.0, 1j, 0.5], "complex128")),
            lambda c, a: ((np.sin(c[0]) + c[1], c[1] * array(0.9, "float32"), c[2] * (0.9 + 0.1j) + c[0] * 1j), c[2]),
        ),
        "a part": (x[:2], lambda c, a: (np.sin(c + a[:2]), c)),
        "not contiguous": (
            array(numpy.random.default_rng(2).normal(size=(4, 3))).T,
            lambda c, a: (np.sin(c * a[:, None]), c.T),
        ),
        "passed through": ((x, x * 2), lambda c, a: ((np.sin(c[0] * c[1] + a), c[1]), c[0])),
    }


KINDS = [
    "tuple",
    "list",
    "dict",
    "ordered dict",
    "named tuple",
    "dataclass",
    "Python numbers",
    "None",
    "nested",
    "integers and bools",
    "several dtypes",
    "a part",
    "not contiguous",
    "passed through",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_carry_gives_the_values_and_gradients_of_the_plain_loop(framework, kind):
    init, step = carriers(framework)[kind]
    xs = framework.array(numpy.linspace(0.1, 1.0, 27).reshape(9, 3))
    found = framework.outline(lambda: remat.scan(step, init, xs, slots=2))
    expected = framework.outline(lambda: framework.plain_scan(step, init, xs))
    assert structure(found) == structure(expected)
    if framework.runs_python:  # elsewhere the value of the loss, which depends on all of them, is compared
        assert_same(framework.value(lambda: found), framework.value(lambda: expected), 0.0)
    leaves, back = framework.split((init, xs))

    def loss(loop, wanted, part, **how):
        full = list(leaves)
        full[wanted] = part
        init, xs = back(full)
        return framework.weigh(loop(step, init, xs, **how))

    for wanted in framework.some(slice(None), slice(0, -1), slice(-1, None)):  # all, the carry, the inputs
        plain = functools.partial(loss, framework.plain_scan, wanted)
        expected = framework.value_and_gradient(plain, leaves[wanted], compiled=True)
        for slots in framework.some(2, 30):
            ours = functools.partial(loss, remat.scan, wanted, slots=slots)
            found = framework.value_and_gradient(ours, leaves[wanted])
            assert_same([found[0], *found[1]], [expected[0], *expected[1]], 0.0 if framework.name == "torch" else 1e-13)


def structure(tree):
    """What a tree is made of, without its numbers."""
    return repr(tree_map(lambda leaf: str(getattr(leaf, "dtype", type(leaf))), tree))


@pytest.mark.parametrize("seed", range(6))
def test_random_trees(framework, seed):
    np, rng = framework.np, numpy.random.default_rng(seed)

    def some(depth):
        if depth == 0 or rng.random() < 0.3:
            return framework.array(rng.normal(size=tuple(rng.integers(1, 4, size=rng.integers(0, 3)))))
        kind = rng.integers(3)
        parts = [some(depth - 1) for _ in range(rng.integers(1, 3))]
        return tuple(parts) if kind == 0 else parts if kind == 1 else dict(zip("abc", parts, strict=False))

    init, steps = some(2), int(rng.integers(1, 30))
    weights = tree_map(lambda leaf: framework.array(rng.normal(size=tuple(leaf.shape))), init)
    xs = framework.array(rng.normal(size=steps)) if rng.random() < 0.6 else None

    def step(weights, carry, x):
        total = sum(np.sum(leaf) for leaf in leaves_of(carry))
        leaves, build = flatten(carry)
        after = [
            np.sin(c * w + 0.1 * total) + (0.0 if x is None else x)
            for c, w in zip(leaves, leaves_of(weights), strict=True)
        ]
        return build(after), (total, None) if seed % 2 else None

    def loss(loop, weights, init, xs, **how):
        return framework.weigh(loop(lambda c, x: step(weights, c, x), init, xs, length=steps, **how))

    args = weights, init, xs
    expected = framework.gradient(lambda *args: loss(framework.plain_scan, *args), *args, compiled=True)
    for slots in framework.some(3, 1):
        found = framework.gradient(lambda *args, n=slots: loss(remat.scan, *args, slots=n), *args)
        assert_same(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_smaller_dtypes_stay_what_they_are(framework, dtype):
    np = framework.np
    rng = numpy.random.default_rng(0)
    w, h, xs = (framework.array(rng.normal(size=shape) * 0.5, dtype) for shape in ((3, 3), (2, 3), (8, 2, 3)))

    def loss(loop, w, h, **how):
        def step(h, x):
            h = np.sin(np.dot(h, w) + x)
            return h, h

        carry, ys = loop(step, h, xs, **how)
        assert str(carry.dtype).endswith(dtype)
        assert str(ys.dtype).endswith(dtype)
        return np.sum(np.real(carry)) + np.sum(np.imag(ys) if dtype == "complex64" else ys)

    found = framework.gradient(lambda w, h: loss(remat.scan, w, h, slots=2), w, h)
    expected = framework.gradient(lambda w, h: loss(framework.plain_scan, w, h), w, h, compiled=True)
    assert {part.dtype.name for part in found} == {dtype}
    assert_same(found, expected, 0.0 if framework.name == "torch" else 1e-5)


@pytest.mark.parametrize("budget", [{"slots": 2}, {"memory": "1 MiB"}], ids=str)
def test_a_loop_without_a_carry(framework, budget):
    xs = framework.array(numpy.linspace(0, 1, 5))

    def run(xs):
        return remat.scan(lambda c, x: (None, framework.np.sin(x)), None, xs, **budget)

    carry, ys = run(xs)
    assert carry is None
    assert tuple(ys.shape) == (5,)
    (found,) = framework.gradient(lambda xs: framework.np.sum(run(xs)[1]), xs)
    numpy.testing.assert_allclose(found, numpy.cos(framework.to_numpy(xs)), rtol=1e-14)


def test_a_loop_with_one_step(framework):
    xs = framework.array(numpy.ones((1, 3)))

    def loss(loop, h, **how):
        return framework.weigh(loop(lambda h, x: (framework.np.sin(h) + x, h * x), h, xs, **how))

    h = framework.array(numpy.linspace(0, 1, 3))
    found = framework.value_and_gradient(lambda h: loss(remat.scan, h, slots=1), h)
    expected = framework.value_and_gradient(lambda h: loss(framework.plain_scan, h), h)
    assert_same([found[0], *found[1]], [expected[0], *expected[1]], 1e-15)


@on_jax  # as lax.scan; elsewhere it is an error
def test_a_loop_with_no_steps(framework):
    xs = framework.array(numpy.ones((0, 3)))

    def loss(loop, h, **how):
        return framework.weigh(loop(lambda h, x: (framework.np.sin(h) + x, h * x), h, xs, **how))

    h = framework.array(numpy.linspace(0, 1, 3))
    found = framework.value_and_gradient(lambda h: loss(remat.scan, h, slots=1), h)
    expected = framework.value_and_gradient(lambda h: loss(framework.plain_scan, h), h)
    assert_same([found[0], *found[1]], [expected[0], *expected[1]], 0.0)


def test_a_python_number_gives_way_to_the_arrays_that_follow_it(framework):
    np, xs = framework.np, framework.array([0.5, 0.25, 0.125])

    h, ys = remat.scan(lambda c, x: (c + x, c), 0, xs, slots=2)
    assert framework.to_numpy(ys).tolist() == [0.0, 0.5, 0.75]
    assert framework.to_numpy(h) == 0.875

    def last(xs):
        return remat.scan(lambda c, x: (c * c + x, None), 0, xs, slots=2)[0]

    assert framework.gradient(last, xs)[0].tolist() == [2 * 0.5 * 2 * 0.5, 2 * 0.5, 1.0]

    def outputs(xs):
        return np.sum(remat.scan(lambda c, x: (c + x, c), 0, xs, slots=2)[1] ** 2)

    assert framework.gradient(outputs, xs)[0].tolist() == [2.5, 1.5, 0.0]


@where_python_runs_each_step
@pytest.mark.parametrize("slots", [1, 3, 9])
@pytest.mark.parametrize("kind", ["dict", "list", "dataclass"])
def test_a_step_may_change_the_container_of_its_carry(framework, kind, slots):
    xs = numpy.linspace(0.1, 1, 7).tolist()

    def in_dict(c, x):
        c["h"] = framework.np.tanh(c["h"] * 0.8 + x)
        return c, None

    def in_list(c, x):
        c[0] = framework.np.tanh(c[0] * 0.8 + x)
        return c, None

    def in_dataclass(c, x):
        c.h = framework.np.tanh(c.h * 0.8 + x)
        return c, None

    def plain(h):
        for x in xs:
            h = framework.np.tanh(h * 0.8 + x)
        return h

    step, make, take = {
        "dict": (in_dict, lambda h: {"h": h}, lambda c: c["h"]),
        "list": (in_list, lambda h: [h], lambda c: c[0]),
        "dataclass": (in_dataclass, lambda h: Body(h, 0, 0.0), lambda c: c.h),
    }[kind]
    x = framework.array(0.3)
    found = framework.gradient(lambda h: take(remat.scan(step, make(h), framework.array(xs), slots=slots)[0]), x)
    assert_same(found, framework.gradient(plain, x), 1e-13)


@where_python_runs_each_step
@pytest.mark.parametrize("kind", ["twice", "sometimes", "by turns", "reset"])
def test_outputs_that_are_leaves_of_the_carry_count_once_and_only_where_they_are(framework, kind):
    np, zero, xs = framework.np, framework.array(0.0), framework.array(numpy.arange(10))

    def twice(w, c, x):
        h = np.sin(w * c[0] + x)
        return (h, h), h

    def sometimes(w, c, x):
        h = np.sin(w * c[0] + x)
        return (h, c[1]), (h if x < 1 else 2 * h)

    def by_turns(w, c, x):
        a, b = np.sin(w * c[0] + x), np.cos(w * c[1] - x)
        return (a, b), (a if x % 2 == 0 else b)

    def reset(w, c, x):
        y = np.sin(w * c[0] + x)
        return (zero * w if x == 5 else y, c[1]), y

    step = {"twice": twice, "sometimes": sometimes, "by turns": by_turns, "reset": reset}[kind]

    def loss(loop, w, **how):
        return framework.weigh(loop(lambda c, x: step(w, c, x), (zero, zero), xs, **how))

    w = framework.array(0.9)
    expected = framework.gradient(lambda w: loss(framework.plain_scan, w), w, compiled=True)
    for slots in framework.some(2, 1, 20):
        assert_same(framework.gradient(lambda w, n=slots: loss(remat.scan, w, slots=n), w), expected)

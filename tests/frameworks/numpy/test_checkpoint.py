"""Checkpoints under autograd: gradients are those of the plain call, of any order and mode."""

import functools
import random
from collections import namedtuple
from dataclasses import dataclass

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, hessian, jacobian, make_jvp, value_and_grad
from autograd.test_util import check_grads

import remat
from tests.frameworks.conftest import assert_same
from tests.frameworks.numpy.checkpoint_programs import A, B, X, same


def test_a_segment_of_a_product_has_the_documented_gradients():
    value, found = value_and_grad(
        lambda a: np.sum(remat.checkpoint_segment(lambda inputs: inputs[0] @ inputs[1], [a, B]))
    )(A)
    assert value == 134
    assert found.tolist() == [[11, 15], [11, 15]]


def test_a_segment_of_squares_has_the_documented_gradients():
    value, found = value_and_grad(lambda a: np.sum(remat.checkpoint_segment(np.dot, (a, B)) ** 2))(A)
    assert value == 5194
    assert found.tolist() == [[454, 618], [1030, 1402]]


def test_a_group_has_several_outputs_and_gradients_for_all_inputs():
    def loss(a, b):
        c, transposed = remat.CheckpointGroup().checkpoint_fn((a, b), lambda a, b: (a @ b, (a @ b).T))
        return np.sum(c) + np.sum(transposed)

    assert loss(A, B) == 268
    assert grad(loss)(A, B).tolist() == [[22, 30], [22, 30]]
    assert grad(loss, 1)(A, B).tolist() == [[8, 8], [12, 12]]


def test_the_forum_question_runs_in_the_documented_order():
    log = []

    def named(name, fn):
        def run(x):
            log.append(f"F{name}")
            return fn(x)

        run.__name__ = run.__qualname__ = name
        return run

    two_b = remat.drop(named("2b", np.sin))
    two = remat.drop(named("2", lambda x: two_b(named("2a", np.cos)(x))))
    with remat.profile() as run:
        found = grad(lambda x: np.sum(named("3", np.exp)(two(named("1", np.tanh)(x)))))(X)
    assert log == ["F1", "F2", "F2a", "F2b", "F3", "F2", "F2a", "F2b", "F2b"]
    assert [(each.what, each.name, each.depth, each.again) for each in run.passes] == [
        ("forward", "2", 0, False),
        ("forward", "2b", 1, False),
        ("recompute", "2", 0, False),
        ("forward", "2b", 1, True),
        ("recompute", "2b", 1, False),
        ("pullback", "2b", 1, False),
        ("pullback", "2", 0, False),
    ]
    assert_same(found, grad(lambda x: np.sum(np.exp(np.sin(np.cos(np.tanh(x))))))(X), tolerance=0.0)
    assert [call.steps for call in run.calls] == [2, 1, 2]


def nested(drop, weights, log):
    """1, D(2, D(D(3,4),5,D(6))), D(7,8), 9."""

    def part(name):
        def run(x):
            log.append(name)
            return np.tanh(weights[int(name) - 1] @ x)

        return run

    def chain(*parts):
        return lambda x: functools.reduce(lambda x, part: part(x), parts, x)

    inner = drop(chain(drop(chain(part("3"), part("4"))), part("5"), drop(part("6"))))
    return chain(part("1"), drop(chain(part("2"), inner)), drop(chain(part("7"), part("8"))), part("9"))


def test_the_authors_nesting_gives_the_plain_gradients_in_every_iteration():
    rng = numpy.random.default_rng(0)
    weights = [rng.normal(size=(5, 5)) for _ in range(9)]
    for _ in range(2):
        log = []
        found = grad(lambda weights: np.sum(nested(remat.drop, weights, log)(X)))(weights)  # noqa: B023
        expected = grad(lambda weights: np.sum(nested(lambda fn: fn, weights, [])(X)))(weights)
        assert_same(found, expected, tolerance=0.0)
        assert log[:9] == list("123456789")
        weights = [w - 0.1 * g for w, g in zip(weights, found, strict=True)]


@pytest.mark.parametrize("depth", [1, 2, 6])
def test_segments_nest_to_any_depth(depth):
    def deep(run, x, depth):
        return np.sin(x) if depth == 0 else np.cos(run(functools.partial(deep, run), np.sin(x) * 1.5, depth - 1))

    same(
        lambda x: np.sum(deep(remat.checkpoint, x, depth)),
        lambda x: np.sum(deep(lambda fn, *args: fn(*args), x, depth)),
        X,
    )


@dataclass
class Pair:
    left: object
    right: object


Point = namedtuple("Point", "x y")


def test_containers_go_in_and_out_and_gradients_flow_through_all_of_them():
    def fn(pair, point, things, *, scale, flag):
        assert flag == "yes"
        return {"a": Pair(np.sin(pair.left) * scale, "text"), "b": (Point(np.exp(point.x), None), [things["w"] * 2, 3])}

    def total(run, left, x, w, scale):
        out = run(fn, Pair(left, 1), Point(x, 7), {"w": w, "n": [1, "2"]}, scale=scale, flag="yes")
        assert out["a"].right == "text"
        assert out["b"][1][1] == 3
        return np.sum(out["a"].left + out["b"][0].x + out["b"][1][0])

    plain = functools.partial(total, lambda fn, *args, **kwargs: fn(*args, **kwargs))
    same(functools.partial(total, remat.checkpoint), plain, X, X + 1, X + 2, 1.5)


def test_autograds_own_containers_and_whole_pytrees_are_taken():
    params = {"w": A, "b": [X[:2], (0.5,)]}

    def model(params, x):
        return np.tanh(params["w"] @ x + params["b"][0]) * params["b"][1][0]

    found = grad(lambda params: np.sum(remat.checkpoint(model, params, X[:2])))(params)
    assert_same(found, grad(lambda params: np.sum(model(params, X[:2])))(params), tolerance=0.0)


def test_gradients_flow_to_what_is_closed_over_and_to_objects():
    class Model:
        def __init__(self, w):
            self.w = w

        def __call__(self, x):
            return np.tanh(self.w * x)

    same(
        lambda w, v: np.sum(remat.checkpoint(lambda x: Model(w)(x) * v, X)),
        lambda w, v: np.sum(Model(w)(X) * v),
        X + 1,
        X - 1,
    )
    same(lambda w: np.sum(remat.checkpoint(Model(w), X)), lambda w: np.sum(Model(w)(X)), X + 1)
    same(lambda w: np.sum(remat.checkpoint(lambda m, x: m(x), Model(w), X)), lambda w: np.sum(Model(w)(X)), X + 1)
    same(lambda w: np.sum(remat.drop(Model(w).__call__)(X)), lambda w: np.sum(Model(w)(X)), X + 1)


def test_variables_that_are_assigned_again_are_what_they_were():
    def forward(run, h):
        for scale in (1.0, 2.0, 3.0):
            h = run(lambda: np.sin(h * scale))  # noqa: B023
        return np.sum(h)

    same(lambda h: forward(remat.checkpoint, h), lambda h: forward(lambda fn: fn(), h), X)


def test_outputs_without_gradient_go_beside():
    def fn(x):
        return np.sin(x), numpy.arange(3), "word", None, 4, x > 0.5

    def loss(x):
        y, numbers, word, none, four, large = remat.checkpoint(fn, x)
        assert (word, none, four) == ("word", None, 4)
        assert numbers.tolist() == [0, 1, 2]
        return np.sum(y * large) * four

    same(loss, lambda x: np.sum(np.sin(x) * (x > 0.5)) * 4, X)


def test_an_input_that_comes_out_again_is_no_alias():
    same(lambda x: np.sum(remat.checkpoint(lambda x: x, x) ** 2), lambda x: np.sum(x**2), X)


def test_without_gradients_it_is_a_plain_call():
    x = X.copy()
    assert remat.checkpoint(lambda x: x, x) is x
    assert remat.checkpoint(lambda: 3) == 3


def test_derivatives_of_any_order_are_those_of_the_plain_call():
    def fn(x):
        return np.tanh(np.sin(x) * np.exp(x))

    def loss(x):
        return np.sum(remat.checkpoint(fn, x) ** 2)

    check_grads(loss, order=3)(X)
    assert_same(hessian(loss)(X), hessian(lambda x: np.sum(fn(x) ** 2))(X), tolerance=1e-14)
    assert_same(jacobian(lambda x: remat.checkpoint(fn, x))(X), jacobian(fn)(X), tolerance=1e-14)
    assert_same(grad(grad(grad(lambda x: remat.checkpoint(fn, x))))(0.3), grad(grad(grad(fn)))(0.3), tolerance=1e-14)


def test_forward_mode_is_that_of_the_plain_call():
    def fn(x):
        return np.exp(np.sin(x))

    def loss(run, x):
        y, z = run(lambda x: (fn(x), np.sum(x)), x)
        return np.sum(y) * z

    pairs = [make_jvp(functools.partial(loss, run))(X)(X * 2) for run in (remat.checkpoint, lambda fn, x: fn(x))]
    assert_same(*pairs, tolerance=1e-15)


def test_a_cotangent_that_is_traced_itself_is_differentiated():
    def fn(w):
        inner = grad(lambda x: np.sum(remat.checkpoint(np.sin, x) * w))(X)
        return np.sum(inner**2)

    assert_same(grad(fn)(X), grad(lambda w: np.sum((np.cos(X) * w) ** 2))(X), tolerance=1e-14)


@pytest.mark.parametrize("kind", ["numpy", "gauss", "python", "closure", "argument", "python generator"])
@pytest.mark.parametrize("nesting", [False, True])
def test_random_numbers_are_drawn_again_as_they_were(kind, nesting):
    found, after = [], []
    for run in (lambda fn, *args: fn(*args), remat.drop(remat.checkpoint, check="always")):
        numpy.random.seed(1), random.seed(1)
        rng, own = numpy.random.default_rng(3), random.Random(4)

        def draw(rng, own=own):
            return {
                "numpy": lambda: numpy.random.rand(5),
                "gauss": lambda: numpy.array([numpy.random.standard_normal() for _ in range(5)]),
                "python": lambda: numpy.array([random.gauss(0, 1) for _ in range(5)]),
                "closure": lambda: rng.random(5),
                "argument": lambda: rng.random(5),
                "python generator": lambda: numpy.array([own.random() for _ in range(5)]),
            }[kind]()

        def fn(x, given, draw=draw, rng=rng):
            rng = given if kind == "argument" else rng
            return np.sin(x * draw(rng)) * draw(rng)

        def outer(x, given, fn=fn, run=run):
            return run(fn, np.cos(x), given) * x

        inside = outer if nesting else fn
        found.append(grad(lambda x: np.sum(run(inside, x, rng) + run(inside, x, rng)))(X))  # noqa: B023
        after.append(draw(rng))
    assert_same(*found, tolerance=1e-15)  # what flows to x is added up in another order
    assert_same(*after, tolerance=0.0)


def test_a_segment_knows_when_it_is_recomputed():
    seen = []

    def fn(x):
        seen.append(remat.is_recomputing())
        return np.sin(x)

    grad(lambda x: np.sum(remat.checkpoint(lambda x: remat.checkpoint(fn, x) * x, x)))(X)
    assert seen == [False, True, True]

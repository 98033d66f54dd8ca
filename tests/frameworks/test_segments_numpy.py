"""Segments under autograd: gradients are those of the plain call, and nothing is kept but the inputs."""

import collections
import functools
import gc
import random
import tracemalloc
import weakref
from collections import namedtuple
from dataclasses import dataclass

import autograd.numpy as np
import numpy
import pytest
from autograd import elementwise_grad, grad, hessian, jacobian, make_jvp, value_and_grad
from autograd.test_util import check_grads

import remat
from tests.frameworks.conftest import assert_same

A = numpy.array([[1.0, 2.0], [3.0, 4.0]])
B = numpy.array([[5.0, 6.0], [7.0, 8.0]])
X = numpy.linspace(0.1, 0.9, 5)


def same(fn, plain, *args):
    """Value and gradients of all arguments are bitwise those of the plain function."""
    for argnum in range(len(args)):
        found, expected = value_and_grad(fn, argnum)(*args), value_and_grad(plain, argnum)(*args)
        assert_same(found, expected, tolerance=0.0)


# The numbers of the documents


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


def test_the_profiler_counts_every_checkpoint_and_what_is_not_kept():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()
    weights = [numpy.eye(10, dtype=numpy.float32) for _ in range(5)]

    def net(weights):
        x = numpy.ones((10, 10), numpy.float32)
        for weight in weights:
            x = remat.checkpoint(lambda x, w: np.tanh(np.sin(x @ w)), x, weight)
        return np.sum(x)

    grad(net)(weights)
    profiler.stop_tracking()
    assert profiler.checkpoint_count() == 5
    assert 5 * 2 * 400 <= profiler.memory_saved() <= 5 * 2 * 400 + 5 * 5000  # two arrays, and Python's own objects
    profiler.reset_statistics()


def test_the_profiler_does_not_count_arrays_that_are_there_anyway():
    profiler, data = remat.CheckpointProfiler, numpy.ones((1000, 1000))
    profiler.reset_statistics()
    profiler.start_tracking()
    grad(lambda w: np.sum(remat.checkpoint(lambda w: np.tanh(data @ w), w)))(numpy.zeros(1000))
    profiler.stop_tracking()
    assert 8000 <= profiler.memory_saved() < 30_000
    profiler.reset_statistics()


def test_the_profiler_counts_inner_checkpoints_once_and_no_recomputation():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()
    grad(lambda x: np.sum(remat.checkpoint(lambda x: remat.checkpoint(np.tanh, np.sin(x)), x)))(X)
    profiler.stop_tracking()
    assert profiler.checkpoint_count() == 2
    profiler.reset_statistics()


@pytest.mark.parametrize(("count", "threshold", "recomputed"), [(4, 1000, 0), (10_000, 1000, 1), (125, 1000, 0)])
def test_adaptive_recomputes_only_what_is_strictly_larger(count, threshold, recomputed):
    runs = []

    def fn(x):
        runs.append(1)
        return np.exp(np.sin(x))

    x = numpy.ones(count)
    remat.CheckpointProfiler.reset_statistics()
    remat.CheckpointProfiler.start_tracking()
    found = grad(lambda x: np.sum(remat.adaptive_checkpoint(fn, x, threshold=threshold)))(x)
    remat.CheckpointProfiler.stop_tracking()
    assert len(runs) == 1 + recomputed
    assert remat.CheckpointProfiler.checkpoint_count() == recomputed
    assert_same(found, elementwise_grad(fn)(x), tolerance=0.0)
    remat.CheckpointProfiler.reset_statistics()


# Nesting


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


# What goes in and out


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


# Orders and modes


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


# Randomness, recomputation, errors


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


def test_a_segment_that_is_not_deterministic_is_an_error_that_names_what_changed():
    state = {"n": 0}

    def counts(x):
        state["n"] += 1
        return {"y": np.sin(x * state["n"])}

    with pytest.raises(remat.DeterminismError, match=r"counts.*its result\['y'\], float64\[5\], .*of its size"):
        grad(lambda x: np.sum(remat.checkpoint(counts, x)["y"]))(X)

    def never(x):
        state["n"] += 1
        return np.sin(x * state["n"])

    grad(lambda x: np.sum(remat.drop(never, check="never")(x)))(X)

    def shape(x):
        state["n"] += 1
        return np.sin(x[: state["n"] % 2 + 2])

    with pytest.raises(remat.DeterminismError, match=r"float64\[\d\] and became float64\[\d\]"):
        grad(lambda x: np.sum(remat.drop(shape, check="never")(x)))(X)

    def structure(x):
        state["n"] += 1
        return (np.sin(x),) * (state["n"] % 2 + 1)

    with pytest.raises(remat.DeterminismError, match="a tuple of"):
        grad(lambda x: np.sum(remat.checkpoint(structure, x)[0]))(X)


def test_a_segment_that_writes_into_its_input_is_an_error():
    def writes(x):
        x[0] = 3.0
        return np.sin(x)

    x = X.copy()
    with pytest.raises(remat.StepError, match=r"writes.*written into by it"):
        grad(lambda x: np.sum(remat.checkpoint(writes, x)))(x)
    assert x[0] == X[0]


def test_a_traced_variable_that_cannot_be_found_is_an_error():
    hidden = {}

    def fn(x):
        return x * vars(hidden["module"])["w"]

    import types

    def loss(w):
        hidden["module"] = types.ModuleType("hidden")
        hidden["module"].w = w
        return np.sum(remat.checkpoint(fn, X))

    # No box is found, so it is a plain call: the gradient is right, and all is kept.
    assert_same(grad(loss)(2.0), numpy.sum(X), tolerance=1e-15)
    with pytest.raises(remat.StepError, match="could not find"):
        grad(lambda w: loss(w) + np.sum(remat.checkpoint(lambda v: fn(X) * v, w)))(2.0)


def test_options_of_torchs_checkpoint_are_refused_in_words():
    with pytest.raises(remat.StepError, match="needs no use_reentrant="):
        remat.checkpoint(lambda x: x, X, use_reentrant=False)


# Memory


def test_nothing_is_kept_but_the_inputs():
    x = numpy.ones(100_000)

    def fn(x):
        for _ in range(20):
            x = np.sin(x)
        return x

    def peak(run):
        tracemalloc.start()
        loss = []

        def total(x):
            for _ in range(5):
                x = run(fn, x)
            loss.append(tracemalloc.get_traced_memory()[0])  # at the turn
            return np.sum(x)

        grad(total)(x)
        tracemalloc.stop()
        return loss[0]

    plain, ours = peak(lambda fn, x: fn(x)), peak(remat.checkpoint)
    assert plain > 95 * x.nbytes
    assert ours < 8 * x.nbytes


def test_nothing_is_alive_after_the_gradient_without_collecting():
    seen = []

    def fn(x):
        y = np.sin(x)
        raw = y
        while hasattr(raw, "_value"):
            raw = raw._value
        seen.append(weakref.ref(raw))
        return np.exp(y)

    gc.collect()
    gc.disable()
    try:
        grad(lambda x: np.sum(remat.checkpoint(lambda x: remat.checkpoint(fn, x) * 2, x)))(X)
        assert len(seen) == 3
        assert all(each() is None for each in seen)
    finally:
        gc.enable()


class Holds:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize("kind", ["object", "dict subclass", "function", "objects", "deque"])
def test_results_that_gradients_would_be_lost_in_are_errors(kind):
    class Kept(dict):
        pass

    make = {
        "object": lambda y: Holds(y),
        "dict subclass": lambda y: Kept(y=y),
        "function": lambda y: lambda: y,
        "objects": lambda y: numpy.array([y, None], dtype=object),
        "deque": lambda y: collections.deque([y]),
    }[kind]
    with pytest.raises(remat.StepError, match=r"gradients would be lost.*dataclasses"):
        grad(lambda x: np.sum(remat.checkpoint(lambda x: make(np.sin(x)), x)))(X)


def test_errors_about_segments_speak_of_segments():
    hidden = []

    def loss(w):
        hidden[:] = [iter([w])]
        return np.sum(remat.checkpoint(lambda v: next(hidden[0]) * v, w))

    with pytest.raises(remat.StepError, match="the segment") as info:
        grad(loss)(X)
    assert "init" not in str(info.value)


def test_two_closures_of_one_code_are_two_functions():
    def make(state):
        return lambda x: np.sin(x * state["n"])

    steady, state = make({"n": 1}), {"n": 1}
    grad(lambda x: np.sum(remat.checkpoint(steady, x)))(X)

    def loss(x):
        y = np.sum(remat.checkpoint(make(state), x))
        state["n"] = 2
        return y

    with pytest.raises(remat.DeterminismError):
        grad(loss)(X)

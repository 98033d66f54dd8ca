"""`vjp=`: the user's own adjoint of a step, for models that autograd cannot or need not differentiate."""

import weakref

import autograd.numpy as np
import numpy
import pytest
from autograd import grad

import remat
from tests.frameworks.numpy.comparison import assert_same

RNG = numpy.random.default_rng(1)
W, H, XS = RNG.normal(size=(3, 3)), RNG.normal(size=3), RNG.normal(size=(12, 3))


def plain(w, h, xs):
    total = 0.0
    for i in range(12):
        total = total + np.sum(h**2)
        h = np.tanh(np.dot(h, w) + xs[i])
    return total + np.sum(h)


def ours(w, h, xs, writes=False, **budget):
    def step(h, x):
        assert isinstance(h, numpy.ndarray)
        y = numpy.sum(h**2)
        if writes:
            h[...] = numpy.tanh(numpy.dot(h, w) + x)
            return h, y
        return numpy.tanh(numpy.dot(h, w) + x), y

    def step_vjp(h, x, h_bar, y_bar):
        slope = (1 - numpy.tanh(numpy.dot(h, w) + x) ** 2) * h_bar
        return numpy.dot(w, slope) + 2 * h * y_bar, slope, {"w": numpy.outer(h, slope)}

    h, ys = remat.scan(step, h, xs, vjp=step_vjp, **budget)
    return np.sum(ys) + np.sum(h)


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("budget", [{"slots": 1}, {"slots": 3}, {"memory": "200 KiB"}], ids=str)
def test_the_adjoint_gives_the_gradients(budget, writes):
    assert_same(grad(ours, (0, 1, 2))(W, H, XS, writes, **budget), grad(plain, (0, 1, 2))(W, H, XS))
    for argnum in range(3):
        assert_same(grad(ours, argnum)(W, H, XS, writes, **budget), grad(plain, argnum)(W, H, XS))


def test_the_step_is_run_as_often_as_the_plan_says():
    calls = 0

    def step(x, _):
        nonlocal calls
        calls += 1
        return x * 1.01, None

    grad(lambda x: remat.scan(step, x, length=100, slots=10, vjp=lambda x, _, g, y: (1.01 * g, None))[0])(1.0)
    assert calls == 322


def test_containers_and_integers():
    params = {"a": numpy.array([0.9, 0.8])}

    def loss(params, state):
        def step(state, x):
            count, (h,) = state
            return (count + 1, [h * params["a"] + x]), {"h": h}

        def vjp(state, x, bar, y_bar):
            assert bar[0] is None  # integers have no cotangent
            h_bar = bar[1][0] * params["a"] + y_bar["h"]
            return (None, [h_bar]), bar[1][0], {"params": {"a": bar[1][0] * state[1][0]}}

        (count, (h,)), ys = remat.scan(step, state, numpy.ones((6, 2)), slots=2, vjp=vjp)
        assert count == 6
        return np.sum(h**2) + np.sum(ys["h"] ** 2)

    def reference(params, state):
        h, total = state[1][0], 0.0
        for _ in range(6):
            total = total + np.sum(h**2)
            h = h * params["a"] + 1.0
        return total + np.sum(h**2)

    h = numpy.array([0.3, 0.4])
    assert_same(grad(loss)(params, (0, [h])), grad(reference)(params, (0, [h])))
    assert_same(grad(lambda h: loss(params, (0, [h])))(h), grad(lambda h: reference(params, (0, [h])))(h))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda g: g, "returned a float"),
        (lambda g: (g,), "returned a tuple of 1"),
        (lambda g: ((g, g), None), "another structure"),
        (lambda g: (numpy.ones(3), None), r"carry_bar of step 2 has shape \[3\] instead of \[\]"),
        (lambda g: (g, None), "closes over w, whose gradients are needed, and at step 2 vjp returned none for w"),
        (lambda g: (g, None, {"v": g}), "none for w"),
        (lambda g: (g, None, {"w": numpy.ones(2)}), r"gradient of w of step 2 has shape \[2\]"),
    ],
    ids=range(7),
)
def test_an_adjoint_that_returns_something_else(returned, message):
    def loss(w):
        return remat.scan(
            lambda x, _: (x * w, None), 1.0, length=3, slots=1, vjp=lambda x, _, g, y: returned(float(g))
        )[0]

    with pytest.raises(remat.StepError, match=message):
        grad(loss)(2.0)


def test_no_gradient_is_dropped_silently():
    def forgets_xs(xs):
        return np.sum(remat.scan(lambda h, x: (h + x, None), H, xs, slots=2, vjp=lambda h, x, g, y: (g, None))[0])

    with pytest.raises(remat.StepError, match="None for x_bar"):
        grad(forgets_xs)(XS)

    def layer(w):
        return lambda h: h * w

    def two_of_a_name(ab):
        first, second = layer(ab[0]), layer(ab[1])
        vjp = lambda h, x, g, y: (g * 6.0, None, {"w": g * h * 3.0})  # noqa: E731
        return remat.scan(lambda h, x: (second(first(h)), None), 1.0, length=3, slots=2, vjp=vjp)[0]

    with pytest.raises(remat.StepError, match="two variables that are called 'w'"):
        grad(two_of_a_name)((2.0, 3.0))


def test_a_buffer_that_the_adjoint_uses_again_is_copied():
    buffer = numpy.zeros(2)

    def loss(w):
        def vjp(h, x, g, y):
            buffer[...] = g * x
            return g, None, {"w": buffer}

        return np.sum(
            remat.scan(lambda h, x: (h + w * x, None), numpy.zeros(2), numpy.arange(1.0, 4.0), slots=2, vjp=vjp)[0]
        )

    assert grad(loss)(numpy.ones(2)).tolist() == [6.0, 6.0]


def test_the_adjoint_keeps_the_dtype():
    def loss(h, bar):
        return np.sum(
            remat.scan(lambda h, _: (h * 2, None), h, length=3, slots=2, vjp=lambda h, _, g, y: (bar(g), None))[0]
        )

    with pytest.raises(remat.StepError, match="dtype complex128 instead of float64"):
        grad(loss)(numpy.ones(2), lambda g: g * 2j)
    assert grad(loss)(numpy.ones(2), lambda g: numpy.array([8, 8])).dtype == numpy.float64


def test_step_and_adjoint_may_know_a_variable_by_different_names():
    def make_step(w):
        return lambda h, x: (h * w, None)

    def make_vjp(weight, names):
        return lambda h, x, g, y: (g * weight, None, dict.fromkeys(names, g * h))

    def loss(w, names):
        return remat.scan(make_step(w), 1.0, length=3, slots=2, vjp=make_vjp(w, names))[0]

    assert grad(loss)(2.0, ["w"]) == grad(loss)(2.0, ["weight"]) == 12.0
    with pytest.raises(remat.StepError, match="not among them"):
        grad(loss)(2.0, ["w", "weight"])


def test_layers_in_a_list_have_names_of_their_own():
    class Layer:
        def __init__(self, w):
            self.w = w

    class Model:
        def __init__(self, w):
            self.layers = [Layer(w), Layer(2 * w)]

        def step(self, h, x):
            return h * self.layers[0].w * self.layers[1].w, None

    def loss(w):
        model = Model(w)

        def vjp(h, x, g, y):
            a, b = (layer.w for layer in model.layers)
            return g * a * b, None, {"self.layers[0].w": g * h * b, "self.layers[1].w": g * h * a}

        return remat.scan(model.step, 1.0, length=3, slots=2, vjp=vjp)[0]

    assert grad(loss)(1.5) == pytest.approx(8 * 6 * 1.5**5)


def test_a_cotangent_is_free_after_the_step_that_it_goes_into():
    """Also where several steps are recorded as one range."""
    counts, references = [], []

    def counted_vjp(h, x, h_bar, y_bar):
        counts.append(sum(reference() is not None for reference in references))
        references.append(weakref.ref(h_bar))
        return numpy.cos(h) * h_bar, None

    plan = remat.plan(remat.Loop(12), slots=3, planner=remat.planners.Chunks(4))
    assert any(op == remat.ops.Pullback(8, 4) for op in plan.schedule)
    grad(lambda h: np.sum(remat.scan(lambda h, _: (numpy.sin(h), None), h, length=12, plan=plan, vjp=counted_vjp)[0]))(
        H
    )
    assert counts[:5] == [0, 1, 1, 1, 1]  # the caller's own
    assert max(counts) == 1

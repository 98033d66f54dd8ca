"""Checkpoints under autograd: gradients are those of the plain call, of any order and mode."""

import autograd.numpy as np
import numpy
import pytest
from autograd import grad, hessian, jacobian, value_and_grad
from autograd.test_util import check_grads

import remat
from tests.frameworks.conformance.adapter import Log
from tests.frameworks.numpy.comparison import assert_same

X = numpy.linspace(0.1, 0.9, 5)


def test_the_forum_question_runs_in_the_documented_order():
    log = Log()

    def named(name, fn):
        def run(x):
            log.add(f"F{name}")
            return fn(x)

        run.__name__ = run.__qualname__ = name
        return run

    two_b = remat.drop(named("2b", np.sin))
    two = remat.drop(named("2", lambda x: two_b(named("2a", np.cos)(x))))
    with remat.profile() as run:
        found = grad(lambda x: np.sum(named("3", np.exp)(two(named("1", np.tanh)(x)))))(X)
    assert log.entries == ("F1", "F2", "F2a", "F2b", "F3", "F2", "F2a", "F2b", "F2b")
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


def test_autograds_own_containers_and_whole_pytrees_are_taken():
    params = {"w": numpy.array([[1.0, 2.0], [3.0, 4.0]]), "b": [X[:2], (0.5,)]}

    def model(params, x):
        return np.tanh(params["w"] @ x + params["b"][0]) * params["b"][1][0]

    found = grad(lambda params: np.sum(remat.checkpoint(model, params, X[:2])))(params)
    assert_same(found, grad(lambda params: np.sum(model(params, X[:2])))(params), tolerance=0.0)


def test_derivatives_of_any_order_are_those_of_the_plain_call():
    def fn(x):
        return np.tanh(np.sin(x) * np.exp(x))

    def loss(x):
        return np.sum(remat.checkpoint(fn, x) ** 2)

    check_grads(loss, order=3)(X)
    assert_same(hessian(loss)(X), hessian(lambda x: np.sum(fn(x) ** 2))(X), tolerance=1e-14)
    assert_same(jacobian(lambda x: remat.checkpoint(fn, x))(X), jacobian(fn)(X), tolerance=1e-14)
    assert_same(grad(grad(grad(lambda x: remat.checkpoint(fn, x))))(0.3), grad(grad(grad(fn)))(0.3), tolerance=1e-14)


def test_a_cotangent_that_is_traced_itself_is_differentiated():
    def fn(w):
        inner = grad(lambda x: np.sum(remat.checkpoint(np.sin, x) * w))(X)
        return np.sum(inner**2)

    assert_same(grad(fn)(X), grad(lambda w: np.sum((np.cos(X) * w) ** 2))(X), tolerance=1e-14)


class Model:
    def __init__(self, w):
        self.w, self.calls, self.log, self.on = w, 0, [], False

    def counter(self, x):
        self.calls += 1
        return np.tanh(x * self.w) * (1 + 0.1 * self.calls)

    def logger(self, x):
        self.log.append(1)
        return np.tanh(x * self.w) * (1 + 0.1 * len(self.log))

    def flag(self, x):
        scale, self.on = 2.0 if self.on else 1.0, True
        y = np.tanh(x * self.w) * scale
        self.on = False
        return y


@pytest.mark.parametrize("name", ["counter", "logger", "flag"])
@pytest.mark.parametrize("check", ["first", "never"])
def test_a_recomputation_leaves_no_trace_in_python_objects(name, check):
    def train(wrap):
        model, w, losses = Model(None), 0.7, []

        def loss(w):
            model.w = w
            return np.sum(wrap(getattr(model, name))(X) ** 2)

        for _ in range(4):
            value, slope = value_and_grad(loss)(w)
            losses.append(value)
            w = w - 0.05 * slope
        return losses, model.calls, model.log

    assert train(lambda fn: remat.drop(fn, check=check)) == train(lambda fn: fn)


def test_contents_that_the_program_changes_before_the_backward_are_those_of_the_call():
    settings = {"scale": 2.0}

    def loss(x):
        y = remat.checkpoint(lambda x: np.sin(x) * settings["scale"], x)
        settings["scale"] = 3.0
        return np.sum(y)

    assert_same(grad(loss)(X), 2.0 * numpy.cos(X))
    assert settings == {"scale": 3.0}


def test_a_list_that_is_an_argument_is_the_callers_own():
    def fn(x, seen):
        seen.append(len(seen))
        return np.sin(x) * len(seen)

    seen = []
    found = grad(lambda x: np.sum(remat.checkpoint(fn, x, seen)))(X)
    assert_same(found, numpy.cos(X))
    assert seen == [0]


def test_arguments_are_written_into_as_under_autograd():
    def fn(x, count):
        count += 1
        before = x
        x += 1.0
        return np.sin(x) * before * count

    count, x = numpy.zeros(1), X.copy()
    found = grad(lambda x: np.sum(remat.checkpoint(fn, x, count)))(x)
    assert_same(found, grad(lambda x: np.sum(np.sin(x + 1.0) * x))(X))
    assert count.tolist() == [1.0]
    assert x.tolist() == X.tolist()

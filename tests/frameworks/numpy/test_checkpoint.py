"""Checkpoints under autograd: gradients are those of the plain call, of any order and mode."""

import autograd.numpy as np
import numpy
from autograd import grad, hessian, jacobian
from autograd.test_util import check_grads

import remat
from tests.frameworks.numpy.comparison import assert_same

X = numpy.linspace(0.1, 0.9, 5)


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

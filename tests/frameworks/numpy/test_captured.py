"""What a step closes over, keeps, caches, writes and shares with others."""

import collections
import functools

import autograd.numpy as np
import numpy
import pytest
from autograd import grad
from autograd.tracer import isbox

import remat
from tests.frameworks.numpy.comparison import assert_same

XS = numpy.linspace(0.1, 1, 7)


def last(step, init=0.3, **how):
    return remat.scan(step, init, XS, **({"slots": 3} | how))[0]


def test_what_a_step_leaves_behind_does_no_harm_to_the_next_call():
    seen = []

    def step(h, x):
        seen.append(h)
        return np.sin(h) + x, None

    first = grad(lambda w: last(step, w))(0.3)
    assert any(map(isbox, seen))
    assert isinstance(last(step, 0.3), float)
    assert grad(lambda w: last(step, w))(0.3) == first != 0.0


def dict_step(params, h, x):
    return np.tanh(h * params["a"][0] + x * params["b"]), None


PARAM_WAYS = {
    "closure": lambda p: lambda h, x: dict_step(p, h, x),
    "partial": lambda p: functools.partial(dict_step, p),
    "tuple": lambda p: (lambda t: lambda h, x: dict_step(t[1][0], h, x))((1.0, (p, None))),
    "list": lambda p: (lambda t: lambda h, x: dict_step(t[0], h, x))([p]),
    "ordered dict": lambda p: (lambda t: lambda h, x: dict_step(t["p"], h, x))(collections.OrderedDict(p=p)),
    "deque": lambda p: (lambda t: lambda h, x: dict_step(t[0], h, x))(collections.deque([p])),
    "default": lambda p: lambda h, x, p=p: dict_step(p, h, x),
}


@pytest.mark.parametrize("way", PARAM_WAYS)
def test_boxed_containers_are_found_wherever_they_are(way):
    params = {"a": (0.4, numpy.zeros(2)), "b": 0.7}

    def plain(p):
        h = 0.3
        for x in XS:
            h, _ = dict_step(p, h, x)
        return h

    assert_same(grad(lambda p: last(PARAM_WAYS[way](p)))(params), grad(plain)(params))


@pytest.mark.parametrize("container", [list, tuple, lambda values: dict(enumerate(values))])
def test_values_in_a_long_container_are_found(container):
    def loss(loop, w):
        forcing = container(w * k for k in range(1_100))
        return loop(lambda h, i: (0.5 * h + forcing[i], None), 1.0, numpy.array([0, 1_050, 1_099]))[0]

    def plain(step, h, xs):
        for x in xs:
            h, _ = step(h, x)
        return h, None

    found = grad(lambda w: loss(lambda *args: remat.scan(*args, slots=2), w))(0.7)
    assert found == grad(lambda w: loss(plain, w))(0.7)

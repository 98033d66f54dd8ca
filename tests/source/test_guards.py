"""Contexts, nests and lists that only look like known ones: their own meaning holds."""

import numpy as np
import pytest

import remat
from remat.errors import SourceError
from tests.source.corpus import agrees


class Timer:
    def __enter__(self):
        return self

    def __exit__(self, *what):
        return True


class Doubling(list):
    def append(self, value):
        super().append(2 * value)


def a_timer_that_swallows(start, weights, bias):
    with Timer():
        for i in range(8):
            start = np.tanh(start @ weights + bias)
            if i == 4:
                raise RuntimeError
    return np.sum(start) * i


def inner_range_that_would_raise(start, weights, bias):
    n = 0
    for _ in range(n):
        for _ in range(12 // n):
            start = np.tanh(start @ weights + bias)
    return np.sum(start)


def inner_range_of_an_unbound_name(start, weights, bias):
    n = 0
    if n:
        m = 3
    for _ in range(n):
        for _ in range(m):
            start = np.tanh(start @ weights + bias)
    return np.sum(start)


def a_range_of_the_user(start, weights, bias):
    range = lambda n: iter([1.0] * n)
    for _ in range(3):
        for j in range(2):
            start = np.tanh(start @ weights + bias * j)
    return np.sum(start)


def a_nest_before_its_bound_is_assigned(start, weights, bias):
    n = 2
    for _ in range(3):
        for _ in range(n):
            start = np.tanh(start @ weights + bias)
    for k in range(4):
        n = n + k
        start = np.tanh(start * 0.9)
    return np.sum(start) * n


@pytest.mark.parametrize(
    "program",
    [
        a_timer_that_swallows,
        inner_range_that_would_raise,
        inner_range_of_an_unbound_name,
        a_range_of_the_user,
        a_nest_before_its_bound_is_assigned,
    ],
)
def test_programs(program):
    assert agrees(program)


def test_a_swallowed_error_on_jax():
    jax = pytest.importorskip("jax")

    def program(x):
        with Timer():
            for i in range(8):
                x = jax.numpy.sin(x) * (i + 1)
                if i == 4:
                    raise RuntimeError
        return x * i

    marked = remat.checkpointed(slots=3)(program)
    np.testing.assert_allclose(jax.grad(marked)(0.3), jax.grad(program)(0.3), rtol=1e-5)


def test_the_last_item_of_another_list_is_refused():
    def program(x):
        ys = Doubling([x])
        for _ in range(5):
            ys.append(np.sin(ys[-1]))
        return ys[-1]

    with pytest.raises(SourceError, match="last item of a Doubling"):
        remat.checkpointed(slots=3)(program)(0.3)


@pytest.mark.parametrize("run", [lambda f: f(0.3), lambda f: remat.grad(f)(0.3)])
def test_the_last_item_of_an_empty_list(run):
    @remat.checkpointed(slots=3)
    def program(x):
        ys = []
        for _ in range(5):
            ys.append(np.sin(x + ys[-1]))
        return ys[-1]

    with pytest.raises(IndexError, match="list index out of range"):
        run(program)

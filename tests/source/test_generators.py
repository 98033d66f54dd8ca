"""Generators that a loop iterates over: what they print comes in its place, and they end where Python ends them."""

import contextlib
import io

import autograd.numpy as autograd_numpy
import numpy as np
import pytest
from autograd import grad

import remat
from remat.errors import InfeasibleError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
ENDED = []


def talkative(count):
    try:
        for k in range(count):
            print("item", k)
            yield k
        print("no more")
    finally:
        print("closed")
        ENDED.append(count)


def to_its_end(xp, x):
    for k in talkative(5):
        print("turn", k)
        x = xp.tanh(x) * (k + 1)
    print("after")
    return xp.sum(x) * len(ENDED)


def left_early(xp, x):
    for k in talkative(9):
        print("turn", k)
        x = xp.tanh(x) * (k + 1)
        if k == 3:
            break
    print("after")
    return xp.sum(x) * len(ENDED)


def returned_from(xp, x):
    for i, k in zip(range(20), talkative(9), strict=False):
        x = xp.tanh(x) * (k + 1)
        if i == 3:
            return xp.sum(x) + i


def held_by_the_program(xp, x):
    items = talkative(9)
    for k in items:
        x = xp.tanh(x) * (k + 1)
        if k == 3:
            break
    print("after")
    return xp.sum(x) * next(items) * (len(ENDED) + 1)


def in_an_outer_loop(xp, x):
    for i in range(4):
        for k in talkative(3):
            x = xp.tanh(x) * (k + i + 1)
        print("outer", i)
    return xp.sum(x)


PROGRAMS = [to_its_end, left_early, returned_from, held_by_the_program, in_an_outer_loop]


def of_numpy(function):
    return grad(function)(np.array([0.3, 0.2]))


def of_torch(function):
    x = torch.tensor([0.3, 0.2], dtype=torch.float64, requires_grad=True)
    function(x).backward()
    return x.grad.numpy()


def of_jax(function):
    with jax.enable_x64(True):
        return np.asarray(jax.grad(function)(jax.numpy.array([0.3, 0.2])))


FRAMEWORKS = {
    "numpy": (np, autograd_numpy, of_numpy),
    "torch": (torch, torch, of_torch),
    "jax": (jax.numpy, jax.numpy, of_jax),
}


def printed(gradient, function):
    ENDED.clear()
    with contextlib.redirect_stdout(io.StringIO()) as text:
        found = gradient(function)
    return found, text.getvalue(), list(ENDED)


@pytest.mark.parametrize("settings", [{"slots": 2}, {"slots": 50}, {"memory": "1 MiB"}], ids=str)
@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_generators_print_and_end_as_in_python(program, name, settings):
    ours, theirs, gradient = FRAMEWORKS[name]
    marked = remat.checkpointed(**settings)(program)
    found, *rest = printed(gradient, lambda x: marked(ours, x))
    expected, *other = printed(gradient, lambda x: program(theirs, x))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert rest == other


class Swallowing:
    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return True


def in_a_context(xp, x):
    with Swallowing():
        for k in range(30):
            x = xp.tanh(x) * (k + 1)
    return xp.sum(x)


def in_a_handler(xp, x):
    try:
        for k in range(30):
            x = xp.tanh(x) * (k + 1)
    except Exception:  # noqa: BLE001
        x = x * 2.0
    return xp.sum(x)


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("program", [in_a_context, in_a_handler])
def test_errors_of_remat_are_not_swallowed_by_the_program(program, name):
    ours, theirs, gradient = FRAMEWORKS[name]
    with pytest.raises(InfeasibleError):
        gradient(lambda x: remat.checkpointed(memory=10)(program)(ours, x))
    found = gradient(lambda x: remat.checkpointed(slots=3)(program)(ours, x))
    np.testing.assert_allclose(found, gradient(lambda x: program(theirs, x)), rtol=1e-10)

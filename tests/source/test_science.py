"""Programs such as scientists and students write: value and gradients are those of the plain function."""

import autograd.numpy as autograd_numpy
import numpy as np
import pytest
from autograd import grad

import remat

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
from tests.source.programs_science import PROGRAMS  # noqa: E402

INPUTS = (
    np.array([0.3, 0.2, -0.4]),
    np.array([[0.5, -0.2, 0.1], [0.3, 0.4, -0.6], [-0.1, 0.2, 0.7]]),
    np.array([0.1, -0.3, 0.2]),
)


def of_numpy(program):
    values = []

    def noted(*inputs):
        values.append(program(*inputs))
        return values[-1]

    gradients = grad(noted, (0, 1, 2))(*INPUTS)
    return [values[0]._value, *gradients]


def of_torch(program):
    inputs = [torch.tensor(each, requires_grad=True) for each in INPUTS]
    value = program(*inputs)
    found = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
    return [value.detach(), *found]


def of_jax(program):
    with jax.enable_x64(True):
        value, gradients = jax.value_and_grad(program, (0, 1, 2))(*map(jax.numpy.asarray, INPUTS))
    return [value, *gradients]


FRAMEWORKS = {
    "numpy": (np, autograd_numpy, of_numpy),
    "torch": (torch, torch, of_torch),
    "jax": (jax.numpy, jax.numpy, of_jax),
}


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_value_and_gradients_are_those_of_the_plain_function(program, name):
    ours, theirs, run = FRAMEWORKS[name]
    marked = remat.checkpointed(slots=3)(program)
    for found, expected in zip(run(lambda *a: marked(ours, *a)), run(lambda *a: program(theirs, *a)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)

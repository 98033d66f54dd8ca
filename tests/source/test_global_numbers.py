"""Numbers of the module that a loop reads, and that the program changes after the loop, or while it runs."""

import autograd.numpy as anp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from autograd import grad

import remat

SCALE = 2.0
STEPS = 12
X = np.linspace(0.2, 0.8, 4)


def run_to_the_end(np, x):
    for i in range(STEPS):
        x = np.sin(SCALE * x) + 0.1 * i
    return np.sum(x)


def run_to_a_break(np, x):
    i = 0
    while True:
        x = np.sin(SCALE * x)
        i += 1
        if i == STEPS:
            break
    return np.sum(x)


def run_with_a_list(np, x):
    ys = []
    for epoch in range(3):
        for i in range(4):
            x = np.sin(SCALE * x)
        ys.append(np.sum(x) * SCALE)
    return sum(ys)


def doubled():
    global SCALE
    SCALE = 1.0 if SCALE > 1.5 else SCALE * 1.1


def run_that_changes_it(np, x):
    for i in range(STEPS):
        x = np.sin(SCALE * x)
        doubled()
    return np.sum(x)


@pytest.fixture(autouse=True)
def scale():
    global SCALE
    yield
    SCALE = 2.0


def changed_after(program, np):
    """The program, with the number changed before the backward."""

    def loss(x):
        global SCALE
        SCALE = 2.0
        y = program(np, x)
        SCALE = 100.0
        return y

    return loss


def gradient(program, library, x=X):
    if library == "torch":
        x = torch.tensor(x, requires_grad=True)
        changed_after(program, torch)(x).backward()
        return x.grad.numpy()
    if library == "jax":
        with jax.enable_x64(True):
            return np.asarray(jax.grad(changed_after(program, jnp))(jnp.asarray(x)))
    return grad(changed_after(program, anp))(x)


@pytest.mark.parametrize(
    ("program", "library"),
    [
        *((run_to_the_end, library) for library in ("numpy", "torch", "jax")),
        *((program, library) for program in (run_to_a_break, run_with_a_list) for library in ("numpy", "torch")),
    ],
)
def test_a_number_that_is_changed_after_the_loop(program, library):
    found = gradient(remat.checkpointed(slots=2)(program), library)
    np.testing.assert_allclose(found, gradient(program, "numpy"), rtol=1e-12)
    assert SCALE == 100.0


def test_turns_that_jax_runs_one_by_one_tell_that_a_number_was_changed():
    with pytest.raises(remat.DeterminismError, match="iterations that ran again in the backward gave other values"):
        gradient(remat.checkpointed(slots=2)(run_to_a_break), "jax")


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_number_that_is_changed_while_the_loop_runs(library):
    found = gradient(remat.checkpointed(slots=2)(run_that_changes_it), library)
    np.testing.assert_allclose(found, gradient(run_that_changes_it, "numpy"), rtol=1e-12)
    assert SCALE == 100.0

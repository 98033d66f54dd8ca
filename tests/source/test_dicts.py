"""Dicts that a loop gives an item under a new key in every turn, on every framework, and what of them is carried."""

import autograd.numpy as anp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from autograd import grad

import remat
from tests.source import programs_dicts

OUTPUTS = {
    "states_by_text": "tape",
    "states_beside_what_was_there": "tape",
    "numbers_from_a_later_start": "seen",
    "from_the_last_to_the_first": "seen",
    "up_to_a_break": "seen",
    "keys_of_another_dict": "out",
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_dict_with_new_keys_is_an_output(name):
    [info] = remat.checkpointed(slots=4)(getattr(programs_dicts, name)).loops
    assert info.arrays == (OUTPUTS[name],)
    assert OUTPUTS[name] not in info.carry


@pytest.mark.parametrize("name", ["key_that_comes_again", "key_that_is_assigned"])
def test_a_dict_whose_keys_may_come_again_is_carried(name):
    """It holds fewer items than the loop has turns, and so does the memory of the loop."""
    [info] = remat.checkpointed(slots=4)(getattr(programs_dicts, name)).loops
    assert (info.arrays, "last" in info.carry) == ((), True)


def tape_of(np, x):
    tape = {"start": x}
    for i in range(12):
        x = np.sin(x) * 1.1
        tape[f"x{i}"] = x
    return np.sum(tape["x3"] * tape["x11"]) + np.sum(tape["start"]) * len("".join(tape))


def numbered_pairs(np, x):
    tape = {}
    for i, scale in enumerate([0.5, 0.7, 0.9, 1.1, 1.3, 1.2]):
        x = np.sin(scale * x)
        tape[i, "x"] = (x, i)
    return sum(np.sum(each) * k for each, k in tape.values()) + len(tape)


PROGRAMS = [tape_of, numbered_pairs]
X = np.linspace(0.2, 0.8, 4)


def expected(program):
    return grad(lambda x: program(anp, x))(X)


@pytest.mark.parametrize("program", PROGRAMS)
def test_numpy(program):
    found = grad(lambda x: remat.checkpointed(slots=2)(program)(anp, x))(X)
    np.testing.assert_allclose(found, expected(program), rtol=1e-12)


@pytest.mark.parametrize("program", PROGRAMS)
def test_torch(program):
    x = torch.tensor(X, requires_grad=True)
    remat.checkpointed(slots=2)(program)(torch, x).backward()
    np.testing.assert_allclose(x.grad, expected(program), rtol=1e-12)


@pytest.mark.parametrize("program", PROGRAMS)
def test_jax(program):
    with jax.enable_x64(True):
        found = jax.grad(lambda x: remat.checkpointed(slots=2)(program)(jnp, x))(jnp.asarray(X))
    np.testing.assert_allclose(found, expected(program), rtol=1e-12)

"""Modules of equinox and other callable pytrees in checkpoints."""

import copy
import functools

import equinox
import jax
import jax.numpy as jnp
import numpy
import pytest

import remat
from tests.frameworks.jax.checkpoint_programs import assert_equal, plainly, segments_of

pytestmark = pytest.mark.usefixtures("quick")


def test_modules_of_equinox_are_functions_with_parameters(x):
    module = equinox.nn.MLP(5, 3, 4, 2, key=jax.random.key(0))

    def loss(run, module, x):
        return jnp.sum(run(module, x) ** 2)

    found, expected = (
        equinox.filter_jit(equinox.filter_grad(functools.partial(loss, run)))(module, x)
        for run in (remat.checkpoint, plainly)
    )
    assert_equal(found, expected, 1e-14)


def test_a_dropped_module_is_a_pytree_of_its_parameters(x):
    module = equinox.nn.MLP(5, 5, 4, 2, key=jax.random.key(0))
    dropped = remat.drop(module)
    assert jax.tree.leaves(dropped) == jax.tree.leaves(module)
    assert dropped.layers[0].weight is module.layers[0].weight
    assert repr(dropped).startswith("drop(MLP(")
    assert segments_of(lambda x: dropped(x), x) == 1

    @equinox.filter_jit
    @equinox.filter_value_and_grad
    def loss(module, x):
        return jnp.sum(module(module(x)))

    (value, found), (other, expected) = loss(dropped, x), loss(module, x)
    assert float(value) == pytest.approx(float(other), rel=1e-14)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        numpy.testing.assert_allclose(a, b, rtol=1e-12)
    stepped = equinox.apply_updates(dropped, jax.tree.map(lambda g: -0.1 * g, found))
    assert isinstance(stepped, type(dropped))
    assert_equal(stepped.layers[0].bias, module.layers[0].bias - 0.1 * expected.layers[0].bias, 1e-12)
    changed = equinox.tree_at(lambda m: m.layers[0].bias, dropped, jnp.zeros(4))
    assert not changed.layers[0].bias.any()


def test_a_method_of_a_module_is_dropped(x):
    class Model(equinox.Module):
        linear: equinox.nn.Linear
        scale: float = equinox.field(static=True)

        @remat.drop(policy="nothing_saveable")
        def __call__(self, x, how):
            return jnp.tanh(self.linear(x)) * self.scale if how == "tanh" else x

    module = Model(equinox.nn.Linear(5, 5, key=jax.random.key(0)), 2.0)
    found = equinox.filter_grad(lambda module: jnp.sum(module(x, "tanh")))(module)
    expected = equinox.filter_grad(lambda linear: jnp.sum(jnp.tanh(linear(x)) * 2.0))(module.linear)
    assert_equal(found.linear, expected, 1e-15)
    assert segments_of(lambda x: module(x, "tanh"), x) == 1


def _times(a, b):
    return a * b


def test_a_dropped_pytree_can_be_copied_and_watched(x):
    dropped = remat.drop(jax.tree_util.Partial(_times, x))
    for made in (copy.copy(dropped), copy.deepcopy(dropped), jax.tree.map(lambda leaf: leaf, dropped)):
        assert type(made) is type(dropped)
        assert jax.tree.structure(made) == jax.tree.structure(dropped)
        assert_equal(made(x), x * x)
    with remat.profile() as run:
        found = jax.grad(lambda dropped: jnp.sum(dropped(x)))(dropped)
    assert_equal(found.args[0], x)
    assert [(call.what, call.framework) for call in run.calls] == [("drop", "jax")]
    assert [each.name for each in run.passes] == ["_times"]

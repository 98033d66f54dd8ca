"""The framework is found by the leaves, by what functions use, and by who traces."""

import subprocess
import sys
from functools import partial

import autograd
import autograd.numpy as anp
import equinox
import jax
import jax.numpy as jnp
import numpy
import pytest
import torch

import remat
from remat.frameworks import find_framework, find_framework_of_call
from remat.frameworks.jax.detection import is_tracing as jax_is_tracing


@jax.tree_util.register_pytree_node_class
class Node:
    """A container that only JAX knows."""

    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def name(room):
    return room.__name__.rpartition(".")[2]


def found_while(transform):
    """What is found for plain numbers inside a transformation of JAX."""
    found = []

    def run(x):
        assert jax_is_tracing()
        found.append(name(find_framework(1.0, numpy.ones(2))))
        found.append(name(find_framework_of_call(numpy.sin, (1.0,), {})))
        found.append(name(find_framework(torch.ones(2))))
        autograd.grad(lambda y: found.append(name(find_framework(y))) or y)(1.0)
        return x

    transform(run)
    return found


@pytest.mark.parametrize(
    "values",
    [
        lambda: (jnp.ones(2),),
        lambda: ({"a": [1.0, (jnp.ones(2), None)]}, numpy.ones(2), 3),
        lambda: (jax.random.key(0),),
        lambda: (Node(1.0, Node(jnp.ones(2))),),
        lambda: (1.0, [Node({"a": jnp.ones(2)})]),
        lambda: (equinox.nn.Linear(2, 2, key=jax.random.key(0)),),
    ],
)
def test_arrays_of_jax_are_jaxs_in_any_container(values):
    assert name(find_framework(*values())) == "jax"
    assert name(find_framework_of_call(lambda *args: None, values(), {})) == "jax"
    assert name(find_framework_of_call(lambda **kwargs: None, (), {"a": values()})) == "jax"
    arrays, seen = [leaf for leaf in jax.tree.leaves(values()) if isinstance(leaf, jax.Array)], []
    jax.jit(lambda arrays: seen.append(name(find_framework(*arrays))))(arrays)
    assert seen == ["jax"]


def test_what_is_no_array_of_jax_is_anyones():
    for value in (
        1.0,
        numpy.ones(2),
        numpy.float32(1),
        [],
        Node(1.0),
        jnp.float32,
        jax.ShapeDtypeStruct((2,), "float32"),
    ):
        assert name(find_framework(value)) == "numpy"
        assert name(find_framework_of_call(numpy.sin, (value,), {})) == "numpy"


def test_two_frameworks_are_an_error():
    array, tensor = jnp.ones(2), torch.ones(2)
    for find in (find_framework, lambda *values: find_framework_of_call(max, values, {})):
        for values in [(array, tensor), (tensor, [array]), (Node(array), {"t": tensor})]:
            with pytest.raises(remat.StepError, match=r"two frameworks, one of .*and no gradient flows"):
                find(*values)
    with pytest.raises(remat.StepError, match=r"one of PyTorch \(torch.Linear\) and one of JAX \(jaxlib"):
        find_framework_of_call(torch.nn.Linear(2, 2), (array,), {})
    with pytest.raises(remat.StepError, match=r"one of autograd"):
        autograd.grad(lambda x: remat.checkpoint(lambda x, a: x, x, array))(1.0)
    assert name(find_framework(tensor, 1.0, numpy.ones(2))) == "torch"


@pytest.mark.parametrize(
    "transform",
    [
        lambda run: jax.jit(run)(1.0),
        lambda run: jax.grad(run)(1.0),
        lambda run: jax.vmap(run)(jnp.ones(3)),
        lambda run: jax.make_jaxpr(run)(1.0),
    ],
    ids=["jit", "grad", "vmap", "make_jaxpr"],
)
def test_numbers_are_jaxs_while_it_traces(transform):
    assert not jax_is_tracing()
    assert found_while(transform) == ["jax", "jax", "torch", "numpy"]
    assert not jax_is_tracing()


class Model:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return x * self.w

    def method(self, x):
        return x * self.w


@pytest.mark.parametrize(
    "make",
    [
        lambda w: lambda x: x * w,
        lambda w: partial(max, w),
        lambda w: Model(w),
        lambda w: Model(w).method,
        lambda w: lambda x: Model({"w": [w]})(x),
        lambda w: jax.jit(lambda x: x * w),
        lambda w: lambda x, w=w: x * w,
    ],
)
def test_numbers_are_of_the_framework_that_the_function_uses(make):
    for value, expected in [(jnp.ones(2), "jax"), (numpy.ones(2), "numpy")]:
        function = make(value)
        assert name(find_framework_of_call(function, (1.0,), {})) == expected
        assert name(find_framework(1.0, numpy.ones(2), using=(function,))) == expected
    assert name(find_framework(1.0)) == "numpy"
    assert name(find_framework(torch.ones(2), using=(make(jnp.ones(2)),))) == "torch"
    assert name(find_framework_of_call(lambda x: x * torch.ones(1), (1.0,), {})) == "numpy"  # it makes its own
    tensor = torch.ones(1)
    assert name(find_framework_of_call(lambda x: x * tensor, (1.0,), {})) == "torch"


def test_modules_of_equinox_are_jaxs():
    module = equinox.nn.Linear(2, 2, key=jax.random.key(0))
    assert name(find_framework_of_call(module, (numpy.ones(2),), {})) == "jax"
    assert name(find_framework_of_call(remat.drop(module), (numpy.ones(2),), {})) == "jax"


def test_boxes_of_autograd_are_numpys_whatever_the_function_uses():
    w, found = jnp.ones(2), []
    autograd.grad(lambda x: found.append(name(find_framework_of_call(lambda x: x * w, (x,), {}))) or anp.sin(x))(1.0)
    assert found == ["numpy"]


def test_no_framework_is_loaded_for_its_own_sake():
    code = """
import sys, numpy, remat, autograd
import autograd.numpy as np
autograd.grad(lambda x: np.sum(remat.checkpoint(np.sin, x)))(numpy.ones(3))
autograd.grad(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=4, slots=2)[0])(0.5)
assert not {"jax", "torch"} & sys.modules.keys(), sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)

"""Sequences in time mean the same on every framework."""

import jax
import jax.numpy as jnp
import numpy
import pytest
import torch

import remat
from remat.frameworks import load_framework
from remat.loops.legacy_inputs import stack_inputs, with_initial

ARRAYS = {"autograd": numpy.asarray, "torch": torch.as_tensor, "jax": jnp.asarray}
each_framework = pytest.mark.parametrize("name", ARRAYS)


@each_framework
def test_a_list_of_inputs_has_a_row_for_each_step(name):
    framework, array = load_framework(name), ARRAYS[name]
    rows = array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert stack_inputs(framework, rows, 3) is rows
    assert [row.tolist() for row in stack_inputs(framework, list(rows), 3)] == rows.tolist()
    found = stack_inputs(framework, [{"a": row, "b": (float(i),)} for i, row in enumerate(rows)], 3)
    assert [row.tolist() for row in found["a"]] == rows.tolist()
    assert found["b"][0].tolist() == [0.0, 1.0, 2.0]
    assert stack_inputs(framework, [], 0) is None


def test_a_list_of_arrays_is_not_copied_on_numpy():
    framework, inputs = load_framework("autograd"), [numpy.ones(3), numpy.zeros(3)]
    rows = stack_inputs(framework, inputs, 2)
    assert all(row is given for row, given in zip(rows, inputs, strict=True))
    assert framework.stack([numpy.ones(2), numpy.ones(2, numpy.float32)]).dtype == numpy.float64


@each_framework
def test_inputs_that_do_not_fit_are_errors(name):
    framework, one = load_framework(name), ARRAYS[name]([1.0])
    with pytest.raises(remat.ProblemError, match="there are 2 inputs for 3 steps"):
        stack_inputs(framework, [one, one], 3)
    with pytest.raises(remat.ProblemError, match="the same structure"):
        stack_inputs(framework, [one, (one,)], 2)


@each_framework
def test_the_initial_value_comes_first(name):
    framework, array = load_framework(name), ARRAYS[name]
    first, after = array([1.0, 2.0]), array([[3.0, 4.0], [5.0, 6.0]])
    assert with_initial(framework, first, after, 2).tolist() == [[1, 2], [3, 4], [5, 6]]
    found = with_initial(framework, {"a": first, "b": 7.0}, {"a": after, "b": array([8.0, 9.0])}, 2)
    assert [(each["a"].tolist(), float(each["b"])) for each in found] == [([1, 2], 7), ([3, 4], 8), ([5, 6], 9)]


def test_keys_of_jax_are_stacked_too():
    framework, keys = load_framework("jax"), list(jax.random.split(jax.random.key(0), 3))
    assert stack_inputs(framework, keys, 3).shape == (3,)
    assert with_initial(framework, keys[0], stack_inputs(framework, keys[1:], 2), 2).shape == (3,)
    assert framework.unpack(keys) is keys

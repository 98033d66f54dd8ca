"""The instruments for tests find what they are for, on every framework."""

import subprocess
import sys

import autograd.numpy as np
import jax
import jax.numpy as jnp
import numpy
import pytest
import torch

import remat
from remat.testing import check_gradient


def scanned(tanh, total):
    """A loss of a weight and of inputs by remat.scan, and the same by a plain loop."""

    def ours(w, p):
        return total(remat.scan(lambda h, x: (tanh(h * w + x), None), 0 * w, p["xs"], slots=2)[0])

    def plain(w, p):
        h = 0 * w
        for x in p["xs"]:
            h = tanh(h * w + x)
        return total(h)

    return ours, plain


FRAMEWORKS = {
    "autograd": (np.tanh, np.sum, numpy.asarray),
    "torch": (torch.tanh, torch.sum, torch.tensor),
    "jax": (jnp.tanh, jnp.sum, jnp.asarray),
}


@pytest.mark.parametrize(
    ("framework", "dtype"),
    [("autograd", "float64"), ("autograd", "float32"), ("torch", "float64"), ("torch", "float32"), ("jax", "float32")],
)
def test_loops_have_the_gradients_of_plain_ones(framework, dtype):
    tanh, total, array = FRAMEWORKS[framework]
    rng = numpy.random.default_rng(0)
    w, xs = array(rng.normal(size=3).astype(dtype)), array(rng.normal(size=(5, 3)).astype(dtype))
    check_gradient(*scanned(tanh, total), w, {"xs": xs})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_wrong_value_is_found(framework):
    _, total, array = FRAMEWORKS[framework]

    def right(x, p):
        return total(x**2 * p["a"])

    def wrong(x, p):
        return total(x**2 * p["a"]) * (1 + 1e-3)

    x, p = array([1.0, 1.0, 1.0]), {"a": array(2.0)}
    check_gradient(right, right, x, p)
    check_gradient(wrong, right, x, p, tolerance=1e-2)
    with pytest.raises(AssertionError, match=r"\(value, gradients\)\[0\] differs by 0.006"):
        check_gradient(wrong, right, x, p)


def test_a_difference_of_a_billionth_is_found_in_double_precision():
    x, p = numpy.ones(3), {"a": 2.0}
    check_gradient(lambda x, p: np.sum(x * p["a"]) * (1 + 1e-9), lambda x, p: np.sum(x * p["a"]), x, p, tolerance=1e-8)
    with pytest.raises(AssertionError, match="differs by"):
        check_gradient(lambda x, p: np.sum(x * p["a"]) * (1 + 1e-9), lambda x, p: np.sum(x * p["a"]), x, p)


CUTS = {
    "torch": (torch.tensor, torch.Tensor.detach, torch.sum),
    "jax": (jnp.asarray, jax.lax.stop_gradient, jnp.sum),
}


@pytest.mark.parametrize("framework", CUTS)
def test_a_wrong_gradient_is_found_and_named(framework):
    array, cut, total = CUTS[framework]
    args = array([1.0, 2.0]), {"a": array([3.0, 4.0]), "n": 3}

    def right(x, p):
        return total(x * p["a"] ** p["n"])

    check_gradient(right, right, *args)
    with pytest.raises(AssertionError, match=r"\(value, gradients\)\[1\]\[1\]\['a'\] differs by"):
        check_gradient(lambda x, p: right(x, p | {"a": cut(p["a"])}), right, *args)


def test_parameters_of_torch_modules_are_compared():
    torch.manual_seed(0)
    model, x = torch.nn.Linear(3, 3), torch.randn(4, 3)

    def plain(model, x):
        return model(x).pow(2).sum()

    check_gradient(lambda model, x: remat.checkpoint(plain, model, x), plain, model, x)
    with pytest.raises(AssertionError, match=r"\[0\]\.bias differs by"):
        check_gradient(lambda m, x: (x @ m.weight.T + m.bias.detach()).pow(2).sum(), plain, model, x)
    assert model.weight.grad is None


def test_short_floats_are_compared_by_their_own_rounding():
    for array in (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), jnp.asarray([1.0, 2.0], jnp.bfloat16)):
        check_gradient(lambda x: (x * x).sum(), lambda x: (x * x).sum(), array)


def test_what_cannot_be_compared_is_said():
    with pytest.raises(remat.errors.ProblemError, match=r"one number, and .* gave \(2,\)"):
        check_gradient(lambda x: x, lambda x: x, torch.ones(2))
    with pytest.raises(remat.errors.ProblemError, match="gave float"):
        check_gradient(lambda x: x.sum().item(), lambda x: x, torch.ones(2))
    for whole in (torch.arange(2), jnp.arange(2)):
        with pytest.raises(remat.errors.ProblemError, match="nothing to differentiate"):
            check_gradient(sum, sum, whole)
    with pytest.raises(remat.errors.StepError, match="two frameworks"):
        check_gradient(sum, sum, torch.ones(2), jnp.ones(2))


def test_it_is_found_without_an_import_and_imports_no_framework_but_that_of_the_arguments():
    code = (
        "import sys, remat, autograd.numpy as np; f = lambda x: np.sin(x); remat.testing.check_gradient(f, f, 0.5); "
        "print('torch' in sys.modules, 'jax' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]

"""The frameworks that the suite runs on, and those of them that some tests are for."""

import pytest

from .jax_adapter import JAX
from .numpy_adapter import NumPy
from .torch_adapter import PyTorch

__all__ = ["FRAMEWORKS", "forward_over_reverse", "on_jax", "where_python_runs_each_step"]

FRAMEWORKS = {"numpy": NumPy, "torch": PyTorch, "jax": JAX}


def _only(*names):
    return pytest.mark.parametrize("framework", [FRAMEWORKS[name] for name in names], ids=names, indirect=True)


# JAX evaluates what it traced: a step cannot differ from evaluation to evaluation, nor look at the numbers in it.
where_python_runs_each_step = _only("numpy", "torch")

# PyTorch's tensors with tangents are no leaves whose gradients can be asked for.
forward_over_reverse = _only("numpy", "jax")

# Random numbers are made of keys, which are values like others.
on_jax = _only("jax")

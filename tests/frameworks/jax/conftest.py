"""What all tests on JAX run under."""

from importlib.util import find_spec

import pytest

if find_spec("jax") is None:
    collect_ignore_glob = ["*"]


@pytest.fixture(autouse=True)
def x64():
    """Double precision, in one test."""
    import jax

    with jax.enable_x64(True):
        yield


@pytest.fixture
def quick():
    """XLA compiles quickly, where only the numbers matter."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def x():
    import jax.numpy as jnp

    return jnp.linspace(0.1, 0.9, 5)

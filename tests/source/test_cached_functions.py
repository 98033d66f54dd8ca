"""Functions with a cache (functools) that a loop calls: results and calls are those of the plain loop."""

import functools

import autograd.numpy as autograd_numpy
import numpy as np
import pytest
from autograd import grad

import remat
from remat.errors import SourceError

from .corpus import plain

jax = pytest.importorskip("jax")
jnp = jax.numpy
x0, W0 = np.full(3, 0.3), np.arange(9.0).reshape(3, 3) / 9
CALLS = []


@functools.cache
def noise(k):
    CALLS.append(k)
    return np.random.standard_normal(3)


@functools.lru_cache
def noise_of_jax(k):
    CALLS.append(k)
    return jnp.asarray(np.random.standard_normal(3))


@functools.cache
def logged(k):
    CALLS.append(k)
    return 0.1 * k


def noisy(x, W):
    for i in range(12):
        x = np.tanh(W @ x) + 0.1 * noise(i % 3) + 0.01 * np.random.standard_normal(3)
    return np.sum(x)


def noisy_jax(x, W):
    for i in range(12):
        x = jnp.tanh(W @ x) + 0.1 * noise(i % 3) + 0.01 * np.random.standard_normal(3)
    return jnp.sum(x)


def noisy_rows(x, W):
    for i in range(12):
        x = jnp.tanh(W @ x) + noise_of_jax(i % 3)
    return jnp.sum(x)


def with_log(x, W):
    for i in range(12):
        x = jnp.tanh(W @ x) + logged(i % 4)
    return jnp.sum(x)


def made_before(x, W):
    @functools.lru_cache
    def scaled(k):
        return jnp.exp(W[0]) * k

    for i in range(12):
        x = jnp.tanh(W @ x) + scaled(i % 4)
    return jnp.sum(x)


def run(gradient):
    CALLS.clear()
    for each in (noise, noise_of_jax, logged):
        each.cache_clear()
    np.random.seed(0)
    found = gradient(x0, W0)
    return found, list(CALLS), np.random.standard_normal()


def compare(ours, expected):
    (found, *ours), (gradients, *expected) = run(ours), run(expected)
    assert ours == expected
    for mine, theirs in zip(found, gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("settings", [{"slots": 1}, {"slots": 3}, {"memory": "16 KiB"}], ids=str)
def test_a_cached_function_draws_once(settings):
    compare(grad(remat.checkpointed(**settings)(noisy), (0, 1)), grad(plain(noisy), (0, 1)))
    assert plain(noisy).__globals__["np"] is autograd_numpy


@pytest.mark.parametrize("settings", [{"slots": 1}, {"slots": 3}, {"memory": "16 KiB"}], ids=str)
@pytest.mark.parametrize("program", [noisy_jax, noisy_rows, with_log, made_before])
def test_a_cached_function_is_called_as_in_the_plain_loop_on_jax(program, settings):
    with jax.enable_x64(True):
        compare(jax.grad(remat.checkpointed(**settings)(program), (0, 1)), jax.grad(program, (0, 1)))


@pytest.mark.parametrize("program", [with_log, made_before])
def test_a_cached_function_is_called_as_in_the_plain_loop_inside_jit(program):
    with jax.enable_x64(True):
        compare(jax.jit(jax.grad(remat.checkpointed(slots=3)(program), (0, 1))), jax.jit(jax.grad(program, (0, 1))))


def test_a_cached_function_that_draws_and_returns_a_traced_array_is_refused():
    def program(x, W):
        @functools.cache
        def drawn(k):
            return np.random.standard_normal(3) * W[0]

        for i in range(12):
            x = jnp.tanh(W @ x) + drawn(i % 4)
        return jnp.sum(x)

    with (
        jax.enable_x64(True),
        pytest.raises(SourceError, match="drawn has a cache .* and returns an array that is traced"),
    ):
        jax.grad(remat.checkpointed(slots=3)(program), (0, 1))(x0, W0)

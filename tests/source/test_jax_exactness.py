"""Plain loops on JAX: integers that grow, caches of functions, and budgets in bytes of turns that run one by one."""

import functools

import numpy as np
import pytest

import remat
from remat.errors import InfeasibleError, SourceError
from remat.source.run_time.segment_sizes import SegmentSizes

jax = pytest.importorskip("jax")
jnp = jax.numpy
x0 = np.array([0.4, -0.3, 0.8])


def agrees(program, **settings):
    """The checkpointed program has the value and the gradient of the plain one, in single precision, as JAX has it."""
    marked = remat.checkpointed(**settings or {"slots": 3})(program)
    ours, plain = (jax.value_and_grad(fn)(jnp.asarray(x0, jnp.float32)) for fn in (marked, program))
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
    return marked.explain()


def hashed(x):
    for i in range(10):
        x = jnp.sin(x) + (i * 1103515245 + 12345) % 1000 * 1e-3
    return jnp.sum(x)


def hashed_by_a_constant(x):
    factor = 1103515245
    for i in range(10):
        x = jnp.sin(x) + i * factor % 1000 * 1e-3
    return jnp.sum(x)


def power_in_a_helper(x):
    def grown(k):
        return 3**k % 1000

    for i in range(45):
        x = jnp.sin(x) + grown(i) * 1e-3
    return jnp.sum(x)


def shift_in_a_helper(x):
    def shifted(k):
        return (1 << k) % 1009

    for i in range(40):
        x = jnp.sin(x) + shifted(i) * 1e-3
    return jnp.sum(x)


def carried_by_an_inner_loop(x):
    for i in range(6):
        k = i
        for _ in range(3):
            k = k * 48271 % 2147483647
        x = jnp.sin(x) + k % 1000 * 1e-3
    return jnp.sum(x)


def beyond_32_bits(x):
    for i in range(3_000_000_000, 3_000_000_004):
        x = jnp.sin(x) + i % 7 * 0.1
    return jnp.sum(x)


def division_by_zero(x):
    def share(k):
        try:
            return 1 / k
        except ZeroDivisionError:
            return 5.0

    for i in range(4):
        x = jnp.sin(x) + share(i)
    return jnp.sum(x)


@pytest.mark.parametrize(
    "program",
    [hashed, hashed_by_a_constant, power_in_a_helper, shift_in_a_helper, carried_by_an_inner_loop, beyond_32_bits]
    + [division_by_zero],
)
def test_integers_have_no_bounds(program):
    assert "one by one" in agrees(program)


def test_integers_that_stay_small_are_compiled():
    def linear(x):
        for i in range(1, 20):
            x = jnp.sin(x) * (2 * i + 1) / 40 + (i % 3) * x[i % 3] - 1 / i + i // 2 * 0.1
        return jnp.sum(x)

    assert "step evaluations" in agrees(linear)


def test_an_item_beyond_the_end_is_an_error():
    def beyond(x):
        out = jnp.zeros(3)
        for i in range(5):
            out[i] = x[0] * i
        return jnp.sum(out)

    with pytest.raises(IndexError, match="index 3 is out of bounds for axis 0 with size 3"):
        jax.grad(remat.checkpointed(slots=2)(beyond))(jnp.asarray(x0))


@pytest.mark.parametrize("jit", [False, True])
def test_functions_with_a_cache_keep_nothing_of_a_segment(jit):
    def cached(x):
        @functools.lru_cache
        def scaled(k):
            return start * k

        start = x
        for i in range(5):
            x = jnp.sin(x) + scaled(i % 2)
        return jnp.sum(x)

    transform = jax.jit if jit else lambda fn: fn
    ours, plain = (transform(jax.grad(fn))(jnp.asarray(x0)) for fn in (remat.checkpointed(slots=2)(cached), cached))
    np.testing.assert_allclose(ours, plain, rtol=1e-5)


@pytest.mark.parametrize("jit", [False, True])
def test_a_traced_array_as_the_key_of_a_cache_is_refused_in_its_line(jit):
    doubled = functools.lru_cache(lambda v: v * 2)

    def keyed(x):
        for _ in range(3):
            x = jnp.sin(doubled(x))
        return jnp.sum(x)

    gradient = jax.grad(remat.checkpointed(slots=2)(keyed))
    with pytest.raises(SourceError, match=r"`x = jnp\.sin\(doubled\(x\)\)`\) has a traced array as a key") as caught:
        (jax.jit(gradient) if jit else gradient)(jnp.asarray(x0))
    assert f"line {keyed.__code__.co_firstlineno + 2} of {__file__}" in str(caught.value)


def branches(x):
    for _ in range(100):
        x = jnp.sin(jnp.tanh(x)) if x[0] > -9.0 else jnp.cos(x)
    return jnp.sum(x)


def test_a_budget_in_bytes_is_kept_or_refused_with_the_numbers():
    assert "in segments of 6 iterations, each of which runs twice, in " in agrees(branches, memory="1 MiB")
    with pytest.raises(InfeasibleError, match="the budget of 100 B is too small .* for 100 turns of 12 B") as caught:
        jax.grad(remat.checkpointed(memory=100)(branches))(jnp.asarray(x0, jnp.float32))
    agrees(branches, memory=caught.value.minimum)
    with pytest.raises(InfeasibleError):
        agrees(branches, memory=caught.value.minimum - 1)


def test_a_loop_of_unknown_length_ends_when_its_states_outgrow_the_budget():
    def long(x):
        turns = 0
        while x[0] < 30.0:
            x, turns = x + 0.1 * jnp.tanh(x + 2.0), turns + 1
            if turns > 200:
                break
        return jnp.sum(x)

    agrees(long, memory="1 MiB")
    with pytest.raises(InfeasibleError, match=r"after \d+ turns of 12 B a state"):
        jax.grad(remat.checkpointed(memory=300)(long))(jnp.asarray(x0, jnp.float32))


@pytest.mark.parametrize("count", [1, 7, 100, 1000])
@pytest.mark.parametrize(("state", "tape"), [(1, 1), (8, 100), (100, 8), (1, 0)])
def test_no_other_size_of_segments_has_a_lower_peak(count, state, tape):
    sizes = SegmentSizes(None, 10**9, state, tape)
    peaks = [sizes.peak(count, size) for size in range(1, count + 1)]
    assert sizes.peak(count, sizes.size(count)) <= 1.05 * min(peaks) + state

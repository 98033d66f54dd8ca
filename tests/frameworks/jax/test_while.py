"""`while_loop` on JAX: exact gradients of loops that find their end on the device."""

import re
from functools import partial

import equinox
import jax
import jax.numpy as jnp
import pytest

import remat
from remat.planners.dp.online_placement import reversal_advances
from tests.frameworks.jax.programs import positions_after
from tests.frameworks.jax.while_programs import B, W, X, assert_same, compare, gradients, ours, plain, recurrence

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("slots", [1, 12, *(pytest.param(slots, marks=pytest.mark.full) for slots in (2, 400))])
def test_gradients_are_those_of_the_plain_loop_at_every_length(slots):
    found, expected = (jax.jit(gradients(loop)) for loop in (ours(slots), plain(310)))
    for end in [*range(24), 37, 64, 100, 155, 310]:
        assert_same(found((W, B), X, end), expected((W, B), X, end))
    assert found._cache_size() == 1


@pytest.mark.parametrize("memory", ["2 KiB", "32 KiB"])
def test_a_budget_in_bytes_gives_the_same_gradients(memory):
    loops = partial(remat.while_loop, memory=memory), plain(30)
    assert_same(*jax.jit(lambda: [gradients(loop)((W, B), X, 30) for loop in loops])())


def evaluations(loop, steps):
    """How often the body is run by a gradient."""
    seen = []

    def body(carry):
        jax.debug.callback(lambda: seen.append(None))
        return carry[0] + 1, jnp.sin(carry[1])

    jax.block_until_ready(jax.grad(lambda x: loop(lambda carry: carry[0] < steps, body, (0, x))[1])(0.3))
    jax.effects_barrier()
    return len(seen)


REST_OF_LENGTHS = [pytest.param(*pair, marks=pytest.mark.full) for pair in ((2, 3), (333, 7), (1000, 10))]


@pytest.mark.parametrize(("steps", "slots"), [(1, 1), (7, 1), (20, 3), (1000, 31), *REST_OF_LENGTHS])
def test_steps_are_run_as_often_as_the_states_held_allow(steps, slots):
    reverse = reversal_advances(positions_after(steps, slots), steps, slots)
    assert evaluations(ours(slots), steps) == steps + reverse + steps


@pytest.mark.parametrize("slots", [pytest.param(10, marks=pytest.mark.full), 31])
def test_there_are_no_more_evaluations_than_equinox_makes(slots):
    theirs = partial(equinox.internal.while_loop, kind="checkpointed", checkpoints=slots)
    ours = 2000 + reversal_advances(positions_after(1000, slots), 1000, slots)  # as was counted above
    assert ours <= evaluations(theirs, 1000)


def test_the_program_and_its_memory_do_not_know_the_number_of_steps():
    def compiled(most):
        loop = ours(8, max_steps=most)
        x = jax.ShapeDtypeStruct((2,), float)
        return jax.jit(jax.grad(lambda x, end: recurrence(loop, (W, B), x, end))).lower(x, 7)

    compiled(1)  # JAX names its own helpers anew the first time
    texts = {re.sub(r"dense<\d+>|@\w+", "", compiled(most).as_text()) for most in (10, 100_000, None)}
    assert len(texts) == 1

    def big(most):
        def run(h):
            return jnp.sum(remat.while_loop(lambda h: h[0, 0] < 1e3, lambda h: h + h**2, h, slots=8, max_steps=most))

        h = jax.ShapeDtypeStruct((128, 64), float)
        return jax.jit(jax.grad(run)).lower(h).compile().memory_analysis().temp_size_in_bytes

    sizes = [big(most) for most in (10, 100_000, None)]
    assert len(set(sizes)) == 1
    assert 8 <= sizes[0] / (128 * 64 * 8) <= 8 + 8


def test_a_condition_that_closes_over_what_is_differentiated():
    def of(loop, a, x):
        return jnp.sum(loop(lambda s: s[0] < 10.0 * a, lambda s: (s[0] * 1.3 + a, jnp.sin(s[1] * a)), (a, x))[1])

    def limit(loop, a, x):
        return loop(lambda s: s < a, lambda s: 1.3 * s + 0.1, x)

    def all_ways(loop):
        one, other = partial(of, loop), partial(limit, loop)
        pushed = jax.jvp(one, (0.9, 0.4), (1.0, 2.0))
        each = jax.vmap(jax.grad(other, (0, 1)), (0, None))(X, 0.4)
        summed = jax.grad(lambda a: jnp.sum(jax.vmap(one, (0, None))(a, 0.4)))(X)
        return jax.grad(one, (0, 1))(0.9, 0.4), pushed, each, summed

    compare(all_ways, most=40)


def test_bodies_that_differ_only_in_a_derivative_of_their_own_are_told_apart():
    def steps(factor):
        by_jvp = jax.custom_jvp(jnp.sin)
        by_jvp.defjvp(lambda primals, tangents: (by_jvp(*primals), factor * tangents[0]))
        by_vjp = jax.custom_vjp(jnp.sin)
        by_vjp.defvjp(lambda x: (by_vjp(x), None), lambda _, bar: (factor * bar,))
        return by_jvp, by_vjp

    for factor in (1.0, 2.0, 3.0):
        for step in steps(factor):
            of = lambda x, step=step: remat.while_loop(  # noqa: E731
                lambda s: s[0] < 3, lambda s: (s[0] + 1, step(s[1])), (0, x), slots=2
            )[1]
            assert jax.grad(of)(0.3) == factor**3

"""`while_loop` on JAX with a slot for each step that it can make, and buffers that are written once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat
from remat.frameworks.jax.loops.scan import while_loop
from remat.loops.request import LoopRequest
from tests.frameworks.jax.while_programs import assert_same

pytestmark = pytest.mark.usefixtures("quick")
STARTS = np.array([0.3, 0.9, 2.5, 0.5])  # members that make 4, 2, 0 and 3 steps


def unrolled(x):
    while x < 2.0:
        x = jnp.sin(x) + 0.7 * x
    return x**2


def bounded(x, most=6, slots=6):
    def step(x):
        return jnp.sin(x) + 0.7 * x

    return remat.while_loop(lambda x: x < 2.0, step, x, max_steps=most, slots=slots) ** 2


def test_gradients_are_those_of_the_plain_loop():
    want = np.array([jax.grad(unrolled)(x) for x in STARTS])
    found = jax.jit(lambda xs: (jax.vmap(jax.grad(bounded))(xs), jax.grad(lambda xs: jax.vmap(bounded)(xs).sum())(xs)))
    assert_same(found(STARTS), (want, want))


def test_a_hessian_product_and_no_steps_at_all():
    hessian = jax.jit(jax.hessian(bounded))
    assert_same(hessian(STARTS[0]), jax.hessian(unrolled)(STARTS[0]))
    assert_same(hessian(STARTS[2]), 2.0)
    assert_same(jax.jit(jax.grad(lambda x: bounded(x, most=0)))(STARTS[0]), 2 * STARTS[0])


def test_a_loop_that_may_be_longer_than_its_slots_is_swept_as_usual():
    assert_same(jax.jit(jax.grad(lambda x: bounded(x, most=7, slots=2)))(STARTS[0]), jax.grad(unrolled)(STARTS[0]))


def stages(w, slots, write_once):
    """Each step reads all that the steps before it have written, as the stages of a Runge-Kutta step do."""
    rows = jnp.tril(jnp.ones((5, 5)), -1)

    def body(carry):
        i, k = carry
        return i + 1, k.at[i].set(jnp.tanh(w @ (rows[i] @ k + 0.5)))

    init = jnp.int32(0), jnp.zeros((5, 3), w.dtype)
    request = LoopRequest.parse(None, slots, None, "first", None)
    flags = (False, True) if write_once else None
    return jnp.sum(while_loop(lambda carry: carry[0] < 5, body, init, 5, request, flags)[1] ** 2)


@pytest.mark.parametrize("slots", [2, 5])
def test_buffers_that_are_written_once_are_not_kept_in_every_slot(slots):
    w = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)))
    plain, once = (
        jax.jit(jax.grad(lambda w, once=once: stages(w, slots, once))).lower(w).compile() for once in (False, True)
    )
    assert_same(once(w), plain(w))
    sizes = [program.memory_analysis().temp_size_in_bytes for program in (once, plain)]
    assert sizes[0] < sizes[1] - (slots - 1) * 5 * 3 * w.dtype.itemsize


def test_second_derivatives_through_buffers_that_are_written_once():
    w = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)))
    found, want = (
        jax.jit(lambda w, once=once: jax.jvp(jax.grad(lambda w: stages(w, 2, once)), (w,), (w,))[1])(w)
        for once in (True, False)
    )
    assert_same(found, want)

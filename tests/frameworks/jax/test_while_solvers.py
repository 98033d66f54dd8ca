"""`while_loop` on JAX in solvers of ordinary differential equations."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy
import pytest
from jax import lax

import remat
from tests.frameworks.jax.while_programs import (
    X,
    assert_same,
    compare,
)

pytestmark = pytest.mark.usefixtures("quick")


def field(params, t, y):
    """A small network."""
    w1, w2 = params
    return w2 @ jnp.tanh(w1 @ y + t)


def heun(params, t, y, dt):
    """A step, and an estimate of its error."""
    k1 = field(params, t, y)
    k2 = field(params, t + dt, y + dt * k1)
    return y + dt * (k1 + k2) / 2.0, dt * (k2 - k1) / 2.0


def solve(loop, params, y, end=2.0):
    """Steps with a controlled error: one that is too large is tried again with less."""

    def body(state):
        t, y, dt = state
        dt = jnp.minimum(dt, end - t)
        new, wrong = heun(params, t, y, dt)
        size = jnp.sqrt(jnp.mean((wrong / 1e-2) ** 2))
        good = size <= 1.0
        factor = jnp.clip(0.9 * lax.rsqrt(jnp.maximum(size, 1e-10)), 0.2, 5.0)
        return jnp.where(good, t + dt, t), jnp.where(good, new, y), dt * factor

    return loop(lambda state: state[0] < end, body, (0.0, y, 0.5))[1]


FIELD = numpy.random.default_rng(0).normal(size=(2, 3, 3)) * 0.8


def test_an_adaptive_solver_of_a_neural_ode():
    ys = numpy.random.default_rng(1).normal(size=(3, 3))

    def fit(loop, params, ys):
        return jnp.sum(jax.vmap(lambda y: solve(loop, tuple(params), y))(ys) ** 2)

    compare(lambda loop: jax.jit(jax.value_and_grad(partial(fit, loop), (0, 1)))(FIELD, ys), slots=4, most=40)


def test_gradients_are_those_of_diffrax():
    diffrax = pytest.importorskip("diffrax")
    term = diffrax.ODETerm(lambda t, y, params: field(params, t, y))
    solver, y = diffrax.Heun(), jnp.asarray([*X.tolist(), 0.1])
    controller = diffrax.PIDController(rtol=1e-3, atol=1e-4)

    def theirs(params, y):
        adjoint = diffrax.RecursiveCheckpointAdjoint()
        found = diffrax.diffeqsolve(
            term, solver, 0.0, 2.0, 0.1, y, tuple(params), stepsize_controller=controller, adjoint=adjoint
        )
        return jnp.sum(found.ys**2)

    def mine(params, y):
        params = tuple(params)
        t0, t1, state = 0.0, 2.0, solver.init(term, 0.0, 0.1, y, params)
        first, control = controller.init(term, t0, t1, y, 0.1, params, solver.func, solver.error_order(term))

        def body(carry):
            t, after, y, state, control, jump = carry
            new, wrong, _, new_state, _ = solver.step(term, t, after, y, params, state, jump)
            keep, t_new, after_new, jump, control, _ = controller.adapt_step_size(
                t, after, y, new, params, wrong, solver.error_order(term), control
            )
            t_new, after_new = jnp.minimum(t_new, t1), jnp.minimum(after_new, t1)
            after_new = jnp.where(after_new > t1 - 1e-10, t1, after_new)
            y, state = jax.tree.map(partial(jnp.where, keep), (new, new_state), (y, state))
            return t_new, after_new, y, state, control, jump

        carry = jnp.float64(t0), jnp.asarray(first, float), y, state, control, jnp.bool_(False)
        return jnp.sum(remat.while_loop(lambda carry: carry[0] < t1, body, carry, slots=5)[2] ** 2)

    found, expected = (jax.jit(jax.value_and_grad(of, (0, 1)))(jnp.asarray(FIELD), y) for of in (mine, theirs))
    assert math.isclose(found[0], expected[0], rel_tol=1e-9)
    assert_same(found, expected, 1e-9)

"""A mechanical system fitted through a solver with adaptive steps: stiffness and friction of a pendulum.

How many steps a solution takes depends on the parameters and on the start, so it is not known beforehand, and it is
a different one for each of the pendulums that are solved at once. `remat.while_loop` keeps a few states of each and
recomputes the rest. Run it: python examples/jax_ode.py
"""

import time

import jax
import jax.numpy as jnp

import remat

END, ACCURACY, SLOTS, ROUNDS = 2.0, 1e-5, 12, 8


def pendulum(params, y):
    """How angle and speed change."""
    angle, speed = y
    return jnp.stack([speed, -params[0] * jnp.sin(angle) - params[1] * speed])


def attempt(field, y, dt):
    """A step of third order, and the error of its second-order part (Bogacki and Shampine)."""
    a = field(y)
    b = field(y + 0.5 * dt * a)
    c = field(y + 0.75 * dt * b)
    after = y + dt * (2 * a + 3 * b + 4 * c) / 9
    d = field(after)
    return after, jnp.max(jnp.abs(dt * (-5 * a / 72 + b / 12 + c / 9 - d / 8)))


def solve(params, start, loop=remat.while_loop, **budget):
    """Where it is at the end, and the number of steps that were tried."""

    def body(carry):
        t, dt, y, tried = carry
        after, error = attempt(lambda y: pendulum(params, y), y, dt)
        error = jax.lax.stop_gradient(error)
        good = error <= ACCURACY
        t, y = jnp.where(good, t + dt, t), jnp.where(good, after, y)
        dt = dt * jnp.clip(0.9 * (ACCURACY / (error + 1e-12)) ** (1 / 3), 0.2, 5.0)
        return t, jnp.minimum(dt, END - t), y, tried + 1

    _, _, y, tried = loop(lambda carry: carry[0] < END, body, (0.0, 0.01, start, 0), **budget)
    return y, tried


def on_grid(params, start, steps):
    """The same by equal steps and a plain scan, to compare with."""

    def step(y, _):
        return attempt(lambda y: pendulum(params, y), y, END / steps)[0], None

    return jax.lax.scan(step, start, length=steps)[0]


def main():
    with jax.enable_x64(True):
        starts = jnp.stack([jnp.linspace(0.2, 2.8, 8), jnp.zeros(8)], 1)
        true, guess = jnp.array([9.81, 0.4]), jnp.array([8.0, 0.1])
        observed = jax.vmap(lambda start: on_grid(true, start, 4000))(starts)

        @jax.jit
        def residuals(params):
            ends, tried = jax.vmap(lambda start: solve(params, start, slots=SLOTS))(starts)
            return (ends - observed).ravel(), tried

        def loss(params, solver):
            return jnp.mean((jax.vmap(lambda start: solver(params, start))(starts) - observed) ** 2)

        gradient = jax.jit(jax.grad(loss), static_argnums=1)
        ours = gradient(guess, lambda params, start: solve(params, start, slots=SLOTS)[0])
        fine = gradient(guess, lambda params, start: on_grid(params, start, 4000))
        worst = float(jnp.max(jnp.abs(ours - fine)) / jnp.max(jnp.abs(fine)))
        print(f"gradients by adaptive steps and by 4000 equal ones agree to {worst:.1e}")
        assert worst < 1e-3

        _, tried = residuals(guess)
        print(f"{len(starts)} pendulums of {min(tried)} to {max(tried)} steps, {SLOTS} states kept of each")
        slopes = jax.jit(jax.jacrev(lambda params: residuals(params)[0]))  # a reverse sweep for each residual
        began, params = time.perf_counter(), guess
        for _ in range(ROUNDS):
            jacobian, left = slopes(params), residuals(params)[0]
            params = params - jnp.linalg.solve(jacobian.T @ jacobian + 1e-6 * jnp.eye(2), jacobian.T @ left)
        seconds = (time.perf_counter() - began) / ROUNDS
        print(f"stiffness {params[0]:.4f}, friction {params[1]:.4f} (true are 9.81 and 0.4)")
        print(f"after {ROUNDS} Gauss-Newton steps of {seconds:.2f} s each, compiling included")
        assert float(jnp.max(jnp.abs(params - true))) < 1e-3


if __name__ == "__main__":
    main()

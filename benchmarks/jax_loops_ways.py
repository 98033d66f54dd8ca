"""The ways to differentiate a long loop in JAX that `jax_loops.py` compares, and what they run: an LSTM, a neural ODE.

A way is a function `(step, carry, xs, steps) -> carry`, where `step(carry, x) -> carry` closes over its weights.
Equinox and diffrax are used where they are installed; `None` stands for their ways where not.
"""

import functools
import importlib
import math

import jax
import jax.numpy as jnp
from jax import lax

import remat


def installed(name):
    """The module, or None where it is not installed, or is not made for this JAX."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
    except Exception as error:
        print(f"{name} is left out, since it cannot be imported: {type(error).__name__}: {error}")
        return None


equinox, eqxi, diffrax = installed("equinox"), installed("equinox.internal"), installed("diffrax")


def plain(step, carry, xs, steps):
    return lax.scan(lambda carry, x: (step(carry, x), None), carry, xs, length=steps)[0]


def nested(step, carry, xs, steps):
    """A scan of √n checkpointed scans. It cuts at a divisor, since slicing off a rest would copy the inputs."""
    inside = max(k for k in range(1, math.isqrt(steps) + 1) if steps % k == 0)
    xs = jax.tree.map(lambda x: x.reshape(steps // inside, inside, *x.shape[1:]), xs)
    segment = jax.checkpoint(lambda carry, xs: (plain(step, carry, xs, inside), None))
    return lax.scan(segment, carry, xs, length=steps // inside)[0]


def by_equinox(slots):
    return by_while_loop(functools.partial(while_equinox, slots=slots)) if equinox else None


def while_equinox(cond, body, init, *, max_steps=None, slots):
    return eqxi.while_loop(cond, body, init, max_steps=max_steps, kind="checkpointed", checkpoints=slots)


def by_while_loop(loop):
    def way(step, carry, xs, steps):
        def body(state):
            i, carry = state
            return i + 1, step(carry, jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, i, keepdims=False), xs))

        return loop(lambda state: state[0] < steps, body, (jnp.int32(0), carry), max_steps=steps)[1]

    return way


def by_remat(**budget):
    def way(step, carry, xs, steps):
        return remat.scan(lambda carry, x: (step(carry, x), None), carry, xs, length=steps, **budget)[0]

    return way


def while_remat(slots):
    return functools.partial(remat.while_loop, slots=slots)


class Lstm:
    """The sum of squares of an LSTM's last output, with gradients for weights and initial state; xs are constants."""

    def __init__(self, steps, hidden, batch):
        self.steps, self.hidden, self.batch = steps, hidden, batch

    def __str__(self):
        return f"LSTM, {self.steps} steps, hidden {self.hidden}, batch {self.batch}, float32"

    def arguments(self):
        keys = jax.random.split(jax.random.key(0), 3)
        scale = 1 / math.sqrt(2 * self.hidden)
        weights = scale * jax.random.normal(keys[0], (2 * self.hidden, 4 * self.hidden)), jnp.zeros(4 * self.hidden)
        state = jax.random.normal(keys[1], (2, self.batch, self.hidden))
        xs = jax.random.normal(keys[2], (min(self.steps, 1000), self.batch, self.hidden))
        return weights, (state[0], state[1]), jnp.resize(xs, (self.steps, self.batch, self.hidden))

    def function(self, way, tick):
        """Value and gradient by one of the ways; each evaluation of a step calls `tick`."""

        def loss(weights, carry, xs):
            def step(carry, x):
                tick(carry[0])
                h, c = carry
                i, f, g, o = jnp.split(jnp.concatenate([x, h], 1) @ weights[0] + weights[1], 4, 1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                return jax.nn.sigmoid(o) * jnp.tanh(c), c

            return jnp.sum(way(step, carry, xs, self.steps)[0] ** 2)

        return jax.value_and_grad(loss, argnums=(0, 1))


class Ode:
    """The sum of squares of a neural ODE's solution, by Tsit5 on a fixed grid; by Runge-Kutta 4 without diffrax.

    Ways here are `(field, y, weights, steps) -> y`, and `tick` is called for each evaluation of the field. Tsit5 has
    six in a step; being a checkpointed loop itself, it evaluates them once more when a step is reversed.
    """

    WIDTH, STATE = 64, 16
    STEP = 2.0**-10  # a power of two: adding it up is exact, and no way takes a step more

    def __init__(self, steps, batch=32):
        self.steps, self.batch = steps, batch

    def __str__(self):
        solver = "diffrax's Tsit5" if diffrax else "Runge-Kutta 4 (diffrax: not installed)"
        return f"neural ODE, {self.steps} constant steps of {solver}, width {self.WIDTH}, batch {self.batch}, float32"

    def arguments(self):
        keys = jax.random.split(jax.random.key(0), 4)
        sizes = [self.STATE, self.WIDTH, self.WIDTH, self.STATE]
        shapes = zip(keys, sizes, sizes[1:], strict=False)
        weights = [2 / math.sqrt(a) * jax.random.normal(key, (a, b)) for key, a, b in shapes]
        return weights, jax.random.normal(keys[3], (self.batch, self.STATE))

    def function(self, way, tick):
        def field(t, y, weights):
            tick(y)
            for matrix in weights[:-1]:
                y = jnp.tanh(y @ matrix)
            return y @ weights[-1]

        def loss(weights, y):
            return jnp.sum(way(field, y, weights, self.steps) ** 2)

        return jax.value_and_grad(loss, argnums=(0, 1))

    @classmethod
    def on_grid(cls, loop):
        """The solver's steps in any of the loops."""

        def way(field, y, weights, steps):
            if diffrax is None:
                carry, advance = (jnp.int32(0), y, None), runge_kutta(field, weights)
            else:
                terms, solver = diffrax.ODETerm(field), diffrax.Tsit5()
                carry = jnp.int32(0), y, solver.init(terms, 0.0, cls.STEP, y, weights)

                def advance(t, after, y, state):
                    y, _, _, state, _ = solver.step(terms, t, after, y, weights, state, made_jump=False)
                    return y, state

            def step(carry, _):
                i, y, state = carry
                return i + 1, *advance(i * cls.STEP, (i + 1) * cls.STEP, y, state)

            return loop(step, carry, None, steps)[1]

        return way

    @classmethod
    def by_adjoint(cls, adjoint):
        """diffrax's own solve, with an adjoint; None where diffrax is not installed."""

        def way(field, y, weights, steps):
            return solve(field, y, weights, steps * cls.STEP, dt0=cls.STEP, adjoint=adjoint, max_steps=steps)

        return way if diffrax else None


class AdaptiveOde(Ode):
    """The same with diffrax's PID controller: how many steps it takes is found out on the way."""

    END, ACCURACY, MOST = 64.0, 1e-6, 10_000

    def __init__(self):
        super().__init__(None)

    def __str__(self):
        return f"the same to time {self.END:g}, adaptive steps to {self.ACCURACY:g}"

    @classmethod
    def controller(cls):
        return diffrax.PIDController(rtol=cls.ACCURACY, atol=cls.ACCURACY)

    @classmethod
    def in_loop(cls, loop):
        """Solver and controller as diffrax calls them, in a while loop."""

        def way(field, y, weights, steps):
            terms, solver, controller = diffrax.ODETerm(field), diffrax.Tsit5(), cls.controller()
            order = solver.error_order(terms)
            after, memory = controller.init(terms, 0.0, cls.END, y, cls.STEP, weights, solver.func, order)
            state = solver.init(terms, 0.0, after, y, weights)

            def body(carry):
                t, after, y, state, memory = carry
                new, error, _, new_state, _ = solver.step(terms, t, after, y, weights, state, made_jump=False)
                keep, t, after, _, memory, _ = controller.adapt_step_size(
                    t, after, y, new, weights, error, order, memory
                )
                y, state = jax.tree.map(lambda a, b: jnp.where(keep, a, b), (new, new_state), (y, state))
                t = jnp.minimum(t, cls.END)
                end = jnp.where(keep, cls.END, t + 0.5 * (cls.END - t))
                return t, jnp.where(after > cls.END - 1e-6, end, after), y, state, memory

            init = jax.tree.map(jnp.asarray, (0.0, after, y, state, memory))
            return loop(lambda carry: carry[0] < cls.END, body, init, max_steps=cls.MOST)[2]

        return way

    @classmethod
    def by_adjoint(cls, adjoint):
        def way(field, y, weights, steps):
            control = {"stepsize_controller": cls.controller(), "max_steps": cls.MOST}
            return solve(field, y, weights, cls.END, dt0=cls.STEP, adjoint=adjoint, **control)

        return way


class SavedOde(AdaptiveOde):
    """The same with a hundred rows of its solution, of which the last one counts."""

    def __str__(self):
        return f"the same, saved at 100 times up to {self.END:g}"

    @classmethod
    def by_adjoint(cls, adjoint):
        def way(field, y, weights, steps):
            control = {"stepsize_controller": cls.controller(), "max_steps": cls.MOST}
            saveat = diffrax.SaveAt(ts=jnp.linspace(0.0, cls.END, 100))
            return solve(field, y, weights, cls.END, dt0=cls.STEP, adjoint=adjoint, saveat=saveat, row=-1, **control)

        return way


def solve(field, y, weights, end, row=0, **options):
    terms, solver = diffrax.ODETerm(field), diffrax.Tsit5()
    return diffrax.diffeqsolve(terms, solver, 0.0, end, y0=y, args=weights, throw=False, **options).ys[row]


def adjoints(slots):
    """diffrax's own adjoint and ours, at equal slots."""
    if diffrax is None:
        return {}
    theirs = diffrax.RecursiveCheckpointAdjoint(checkpoints=slots)
    return {f"diffrax, {slots} slots": theirs, f"RematAdjoint, {slots} slots": remat.diffrax.RematAdjoint(slots=slots)}


def runge_kutta(field, weights):
    def advance(t, after, y, state):
        dt = after - t
        a = field(t, y, weights)
        b = field(t + dt / 2, y + dt / 2 * a, weights)
        c = field(t + dt / 2, y + dt / 2 * b, weights)
        d = field(after, y + dt * c, weights)
        return y + dt / 6 * (a + 2 * b + 2 * c + d), state

    return advance

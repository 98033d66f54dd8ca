"""Gradients through three programs in JAX: Adam's own steps, bodies that attract each other, a policy's rollout.

    python benchmarks/jax_programs.py                   under 2 minutes on two cores
    python benchmarks/jax_programs.py --only bodies     or adam, rollout
    python benchmarks/jax_programs.py --slots 10        for equinox and remat alike

The ways, the columns and the measuring are those of `jax_loops.py`. At equal slots remat shall take no more memory and
time than equinox's checkpointed loop, and with a budget in bytes its temporaries shall be inside of it.
"""

import argparse
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax_loops import compare, inside, remat_row, rows
from jax_loops_table import Table, target


class Adam:
    """Meta-learning: the loss after Adam's steps, with gradients for its rate and moments and for the first weights."""

    BUDGET, SIZES = "1 MiB", (8, 32, 32, 1)

    def __init__(self, steps=400, batch=32):
        self.steps, self.batch = steps, batch

    def __str__(self):
        return f"meta-learning, {self.steps} steps of Adam on an MLP of {self.SIZES}, batch {self.batch}, float32"

    def arguments(self):
        keys = jax.random.split(jax.random.key(0), len(self.SIZES) + 1)
        pairs = zip(keys, self.SIZES, self.SIZES[1:], strict=False)
        weights = [jax.random.normal(key, (a, b)) / math.sqrt(a) for key, a, b in pairs]
        xs = jax.random.normal(keys[-1], (self.steps, self.batch, self.SIZES[0]))
        return {"rate": jnp.float32(-5.0), "moments": jnp.array([2.0, 5.0])}, weights, xs

    def function(self, way, tick):
        """Value and gradient by one of the ways; each evaluation of a step calls `tick`."""

        def fit(weights, x):
            h = x
            for matrix in weights[:-1]:
                h = jnp.tanh(h @ matrix)
            return jnp.mean((h @ weights[-1] - jnp.sin(x.sum(1, keepdims=True))) ** 2)

        def loss(rule, weights, xs):
            rate, (one, two) = jnp.exp(rule["rate"]), jax.nn.sigmoid(rule["moments"])

            def step(carry, x):
                tick(carry[0])
                i, weights, first, second = carry
                slope = jax.grad(fit)(weights, x)
                first = jax.tree.map(lambda m, g: one * m + (1 - one) * g, first, slope)
                second = jax.tree.map(lambda v, g: two * v + (1 - two) * g**2, second, slope)

                def update(w, m, v):
                    return w - rate * m / (1 - one**i) / (jnp.sqrt(v / (1 - two**i) + 1e-12) + 1e-8)

                return i + 1, jax.tree.map(update, weights, first, second), first, second

            zeros = jax.tree.map(jnp.zeros_like, weights)
            return fit(way(step, (jnp.float32(1.0), weights, zeros, zeros), xs, self.steps)[1], xs[0])

        return jax.value_and_grad(loss, argnums=(0, 1))


class Bodies:
    """The distance of bodies to a target after leapfrog steps, with gradients for positions, velocities and masses."""

    BUDGET, STEP = "512 KiB", 1e-3

    def __init__(self, steps=1000, bodies=64):
        self.steps, self.bodies = steps, bodies

    def __str__(self):
        return f"{self.bodies} bodies, {self.steps} leapfrog steps, float32"

    def arguments(self):
        keys = jax.random.split(jax.random.key(0), 3)
        masses = jax.random.uniform(keys[2], (self.bodies,), minval=0.5)
        place, speed = (jax.random.normal(key, (self.bodies, 3)) for key in keys[:2])
        return masses, (place, 0.1 * speed)

    def function(self, way, tick):
        def loss(masses, state):
            def step(carry, _):
                place, speed = carry
                tick(place)
                apart = place[None] - place[:, None]
                inverse = lax.rsqrt((apart**2).sum(-1) + 1e-2)
                pull = apart * (inverse**3)[..., None]
                speed = speed + self.STEP * jnp.einsum("ijk,j->ik", pull, masses)
                return place + self.STEP * speed, speed

            return jnp.sum((way(step, state, None, self.steps)[0] - 1.0) ** 2)

        return jax.value_and_grad(loss, argnums=(0, 1))


class Rollout:
    """The cost of a pendulum's rollout under a policy and noise, with gradients for the policy and the first states."""

    BUDGET, SIZES, STEP = "512 KiB", (3, 64, 64, 1), 0.05

    def __init__(self, steps=500, batch=32):
        self.steps, self.batch = steps, batch

    def __str__(self):
        return f"rollout, {self.steps} steps of a policy of {self.SIZES}, batch {self.batch}, float32"

    def arguments(self):
        keys = jax.random.split(jax.random.key(0), len(self.SIZES) + 1)
        pairs = zip(keys, self.SIZES, self.SIZES[1:], strict=False)
        weights = [jax.random.normal(key, (a, b)) / math.sqrt(a) for key, a, b in pairs]
        noise = 0.1 * jax.random.normal(keys[-1], (self.steps, self.batch))
        return weights, jax.random.normal(keys[-2], (2, self.batch)), noise

    def function(self, way, tick):
        def loss(weights, state, noise):
            def step(carry, push):
                angle, speed, cost = carry
                tick(angle)
                h = jnp.stack([jnp.sin(angle), jnp.cos(angle), speed], -1)
                for matrix in weights[:-1]:
                    h = jnp.tanh(h @ matrix)
                torque = 2 * jnp.tanh(h @ weights[-1])[:, 0]
                speed = 0.99 * speed + self.STEP * (10 * jnp.sin(angle) + 3 * torque + push)
                cost = cost + jnp.mean(angle**2 + 0.1 * speed**2 + 0.001 * torque**2)
                return angle + self.STEP * speed, speed, cost

            return way(step, (state[0], state[1], jnp.float32(0.0)), noise, self.steps)[2] / self.steps

        return jax.value_and_grad(loss, argnums=(0, 1))


MODELS = {"adam": Adam, "bodies": Bodies, "rollout": Rollout}


def measured(model, slots, rounds, counted):
    """All ways of one program, and what was aimed at; the table."""
    table = Table(model, rows(slots, [{"memory": model.BUDGET}])).measure(rounds, counted).show()
    ours, theirs = remat_row({"slots": slots}), f"equinox, {slots} slots"
    target(f"temporaries of {ours}, over those of {theirs}", table.share(ours, theirs), 1.0)
    compare(table, ours, theirs, 1.0)
    inside(table, model.BUDGET)
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(MODELS))
    parser.add_argument("--steps", type=int, help="instead of the program's own number")
    parser.add_argument("--slots", type=int, default=31)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=1000, help="count evaluations in loops up to so many steps; slow")
    args = parser.parse_args()
    print(f"on {jax.devices()[0].device_kind}, jax {jax.__version__}")
    for name in [args.only] if args.only else MODELS:
        measured(MODELS[name](*[args.steps] * bool(args.steps)), args.slots, args.rounds, args.count)


if __name__ == "__main__":
    main()

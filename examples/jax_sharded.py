"""A recurrent network trained on several devices: the batch is split, and each device keeps its part of the states.

Run as a program it makes four devices of the CPU, unless XLA_FLAGS says how many; where JAX finds others, it takes
those. Run it: python examples/jax_sharded.py
"""

import os

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import remat

STEPS, HIDDEN, BATCH, SLOTS, ROUNDS = 500, 32, 16, 20, 5
FLAG = "--xla_force_host_platform_device_count"


def loss(params, xs, targets, loop=remat.scan, **budget):
    def step(h, x):
        h = jnp.tanh(h @ params["w"] + x @ params["u"])
        return h, h @ params["out"]

    _, ys = loop(step, jnp.zeros((xs.shape[1], HIDDEN)), xs, **budget)
    return jnp.mean((ys - targets) ** 2)


def ours(params, xs, targets):
    return loss(params, xs, targets, slots=SLOTS)


def main():
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "w": jax.random.normal(keys[0], (HIDDEN, HIDDEN)) / HIDDEN**0.5,
        "u": jax.random.normal(keys[1], (1, HIDDEN)),
        "out": jax.random.normal(keys[2], (HIDDEN,)) / HIDDEN,
    }
    xs = jax.random.uniform(keys[3], (STEPS, BATCH, 1))
    targets = jnp.roll(xs[..., 0], 2, 0)  # what came two steps ago

    plain = jax.jit(jax.grad(lambda *args: loss(*args, loop=jax.lax.scan)))
    expected = plain(params, xs, targets)

    count = max(k for k in range(1, len(jax.devices()) + 1) if BATCH % k == 0)
    mesh = Mesh(jax.devices()[:count], ("batch",))
    split, everywhere = NamedSharding(mesh, P(None, "batch")), NamedSharding(mesh, P())
    data = jax.device_put((xs, targets), split)
    params = jax.device_put(params, everywhere)

    program = jax.jit(jax.grad(ours)).lower(params, *data).compile()
    slopes = program(params, *data)
    worst = max(float(jnp.max(abs(slopes[name] - expected[name])) / jnp.max(abs(expected[name]))) for name in slopes)
    print(f"gradients on one device and on {count} agree to {worst:.1e}")
    assert worst < 1e-4

    kib = program.memory_analysis().temp_size_in_bytes / 1024
    alone = plain.lower(params, *data).compile().memory_analysis().temp_size_in_bytes / 1024
    print(f"temporaries of each device: {kib:.0f} KiB with {SLOTS} kept states, {alone:.0f} KiB by a plain scan")
    assert kib < alone / 5

    @jax.jit
    def descend(params):
        value, slope = jax.value_and_grad(ours)(params, *data)
        return value, jax.tree.map(lambda part, by: part - 0.05 * by, params, slope)

    values = []
    for _ in range(ROUNDS):
        value, params = descend(params)
        values.append(float(value))
    print(f"loss {values[0]:.4f} at first, {values[-1]:.4f} after {ROUNDS} steps of descent")
    assert values[-1] < values[0]


if __name__ == "__main__":
    if FLAG not in os.environ.get("XLA_FLAGS", ""):  # read when JAX is first asked for its devices, in main
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}=4"
    main()

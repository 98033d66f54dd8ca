"""An LSTM trained through 10,000 steps of JAX inside a memory budget, compared with what a plain scan takes.

The memory is XLA's own account of a compiled gradient: its temporaries, without arguments and results. Nothing is run
for it, so that the plain scan's is known where it would not fit. Run it: python examples/jax_lstm.py
"""

import time

import jax
import jax.numpy as jnp

import remat

STEPS, HIDDEN, BATCH = 10_000, 16, 8


def cell(params, carry, x):
    """The next (output, cell)."""
    h, c = carry
    i, f, g, o = jnp.split(jnp.concatenate([x, h], 1) @ params["w"] + params["b"], 4, 1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def loss(params, xs, targets, loop=remat.scan, **budget):
    def step(carry, x):
        carry = cell(params, carry, x)
        return carry, carry[0][:, 0]  # one number of the output is the answer

    zeros = jnp.zeros((BATCH, HIDDEN))
    _, ys = loop(step, (zeros, zeros), xs, **budget)
    return jnp.mean((ys - targets) ** 2)


def compiled(loop, params, xs, targets, **budget):
    """The loss and its gradient as a program, and the MiB of its temporaries."""
    both = jax.jit(jax.value_and_grad(lambda params: loss(params, xs, targets, loop, **budget)))
    program = both.lower(params).compile()
    return program, program.memory_analysis().temp_size_in_bytes / 2**20


def main():
    keys = jax.random.split(jax.random.key(0))
    params = {"w": 0.3 * jax.random.normal(keys[0], (1 + HIDDEN, 4 * HIDDEN)), "b": jnp.zeros(4 * HIDDEN)}
    xs = jax.random.uniform(keys[1], (STEPS, BATCH, 1))
    targets = jnp.cumsum(xs[..., 0], 0) / jnp.arange(1, STEPS + 1)[:, None]  # the mean of what came so far

    plain, plain_mib = compiled(jax.lax.scan, params, xs, targets)
    few, few_mib = compiled(remat.scan, params, xs, targets, slots=31)
    with remat.profile() as run:
        inside, inside_mib = compiled(remat.scan, params, xs, targets, memory="2 MiB")
    plan = run.calls[0].plan

    before, expected = plain(params)
    for program in (few, inside):
        slopes = program(params)[1]
        worst = max(
            float(jnp.max(abs(slopes[name] - expected[name])) / jnp.max(abs(expected[name]))) for name in slopes
        )
        assert worst < 1e-4
    print(f"gradients of {STEPS:,} steps, by a plain scan and inside a budget, agree to {worst:.1e}")

    began = time.perf_counter()
    _, slopes = jax.block_until_ready(inside(params))
    seconds = time.perf_counter() - began
    after, _ = inside(jax.tree.map(lambda value, slope: value - slope, params, slopes))
    print(f"one took {seconds:.1f} s; a step of descent by it takes the loss from {before:.4f} to {after:.4f}")

    runs, least = plan.forward_steps / STEPS, remat.plan(remat.Loop(STEPS), slots=31).forward_steps / STEPS
    both = 2 * STEPS * BATCH * 4 / 2**20
    print(f"temporaries, {both:.1f} MiB of which are outputs and their gradient, in MiB:")
    print(f"  plain scan    {plain_mib:6.2f}")
    print(f"  memory=2 MiB  {inside_mib:6.2f}, every step run {runs:.2f} times")
    print(f"  slots=31      {few_mib:6.2f}, every step run {least:.2f} times")
    assert few_mib < inside_mib < plain_mib / 10
    assert after < before


if __name__ == "__main__":
    main()

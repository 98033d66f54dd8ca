"""The functions of the checkpointing guide under their own names: loops, positions, estimates, and gradients.

`checkpointed_loop` gives the last state and the checkpoints, and is differentiable. Estimates say what checkpoints
save, and what that costs in truth. Run it: python examples/checkpoint_demo.py
"""

import autograd.numpy as np
import numpy
from autograd import grad

import remat
from remat.legacy import (
    checkpointed_loop,
    compute_checkpoint_positions,
    estimate_checkpoint_savings,
    get_memory_savings,
    should_checkpoint,
)

STEPS, SIZE = 1000, 16


def sigmoid(x):
    return 0.5 * (np.tanh(0.5 * x) + 1.0)


def rnn_model(x, W, b):
    """An RNN whose loop keeps checkpoints."""

    def rnn_step(state):
        return np.tanh(np.dot(state, W) + b)

    final_state, _checkpoints = checkpointed_loop(rnn_step, x, STEPS, num_checkpoints=31)
    return np.sum(final_state)


def plain_model(x, W, b):
    """The same as an ordinary loop."""
    for _ in range(STEPS):
        x = np.tanh(np.dot(x, W) + b)
    return np.sum(x)


def lstm(rng):
    """An LSTM, whose state is a tuple."""
    weights = [rng.normal(size=(SIZE, SIZE)) / SIZE**0.5 for _ in range(4)]

    def lstm_step(state):
        h, c = state
        i, f, o = (sigmoid(np.dot(h, w)) for w in weights[:3])
        c_new = f * c + i * np.tanh(np.dot(h, weights[3]) + 0.1)
        return o * np.tanh(c_new), c_new

    return checkpointed_loop(lstm_step, (numpy.zeros(SIZE), numpy.zeros(SIZE)), STEPS)


def main():
    rng = numpy.random.default_rng(0)
    x, W, b = rng.normal(size=SIZE), rng.normal(size=(SIZE, SIZE)) / SIZE**0.5, 0.1 * rng.normal(size=SIZE)
    (h, _), checkpoints = lstm(rng)
    print(f"an LSTM: stored {len(checkpoints)} checkpoints instead of {STEPS} states, |h| = {np.sum(h**2) ** 0.5:.4f}")
    print(f"positions of 31 checkpoints in 1000 steps: {compute_checkpoint_positions(1000, 31)[:4]} ...")
    for steps in (100, 500, 1000, 5000):
        stats = estimate_checkpoint_savings(steps)
        print(
            f"sequence {steps:4d}: {stats['num_checkpoints']:3d} checkpoints, {stats['savings_percent']:5.1f} % less; "
            f"each step runs {stats['forward_steps'] / steps:.2f} times"
        )
    for count in (10, 31, 100):
        stats = get_memory_savings(1000, num_checkpoints=count)
        print(
            f"{count:4d} checkpoints: {stats['savings_percent']:.1f} % saved, {stats['forward_steps']} step evaluations"
        )
    assert should_checkpoint(seq_length=1000)

    expected = grad(plain_model, (0, 1, 2))(x, W, b)
    found = grad(rnn_model, (0, 1, 2))(x, W, b)
    by_source = remat.grad_with_checkpointing(plain_model, wrt=(0, 1, 2), num_checkpoints=31)(x, W, b)
    pairs = [*zip(found, expected, strict=True), *zip(by_source, expected, strict=True)]
    worst = max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)
    print(f"gradients by checkpointed_loop and grad_with_checkpointing agree to {worst:.1e} with a plain loop's")
    assert worst < 1e-12


if __name__ == "__main__":
    main()

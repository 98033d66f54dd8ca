"""The peak memory and time of an LSTM in Keras, cut by save points, against the same one without.

It is the document's example, 2048 steps and 7 save points, as the same function for every count. On JAX the peak is
XLA's own account of the compiled gradient; on PyTorch every storage, or CUDA's allocator; on TensorFlow the GPU's.

    python benchmarks/keras_lstm.py --backend jax
"""

import argparse
import os
import time

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="torch", choices=("torch", "jax", "tensorflow"))
parser.add_argument("--seq-len", type=int, default=2048)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--checkpoints", type=int, nargs="+", default=[0, 1, 3, 7, 15])
parser.add_argument("--rounds", type=int, default=3)
arguments = parser.parse_args()
os.environ["KERAS_BACKEND"] = arguments.backend
if arguments.backend == "jax":  # has no effect on GPUs
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_enable_concurrency_optimized_scheduler=false")

from remat.cli.lstm.keras_model import KerasLstm  # noqa: E402 (Keras reads its backend when it is imported)


def seconds(run):
    """The median of some runs."""
    times = []
    for _ in range(arguments.rounds):
        began = time.perf_counter()
        loss, _ = run()
        float(loss)
        times.append(time.perf_counter() - began)
    return float(np.median(times))


first = None
for count in arguments.checkpoints:
    bounds = [k * arguments.seq_len // (count + 1) for k in range(1, count + 1)]
    lstm = KerasLstm(arguments.seq_len, arguments.hidden, arguments.batch, bounds)
    loss, gradient = lstm.gradient()
    peak, took = lstm.peak() or 0, seconds(lstm.run)
    first = first or (peak, took, gradient)
    difference = max(np.abs(gradient[k] - g).max() / np.abs(g).max() for k, g in first[2].items())
    print(
        f"{arguments.backend}: {count:2d} checkpoints, {arguments.seq_len} steps: loss {loss:.7f}, gradient differs by "
        f"{difference:.0e}, peak {peak / 2**20:8.2f} MiB ({peak / max(1, first[0]):.1%} of plain), {took:.3f} s "
        f"({took / first[1]:.2f} times)",
        flush=True,
    )

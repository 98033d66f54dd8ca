"""The older loops against plain autograd, side by side in one run: peaks by tracemalloc, times by the CPU's clock.

    python benchmarks/older_loops.py

`binomial_checkpoint` runs an RNN that is all visible state (512 steps, batch 64, 64 units, 64 checkpoints), of whose
states log-probabilities are made; `checkpointed_loop` runs 1,000 steps on a state of 32×256, by default and with 31
checkpoints, and its peaks are counted beside the 31 states that it returns.
"""

import gc
import tracemalloc
from collections.abc import Callable
from time import process_time
from typing import Any

import autograd.numpy as np
import numpy
from autograd import grad
from autograd.scipy.special import logsumexp

from remat.legacy import ag_tuple, binomial_checkpoint, checkpointed_loop

RNG = numpy.random.default_rng(0)
RUNS = 3


def peak(function: Callable[[], Any]) -> int:
    """The most bytes that are allocated at a time; the function has run before."""
    gc.collect()
    tracemalloc.start()
    function()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def compare(title: str, functions: dict[str, Callable[[], Any]], returned: dict[str, int]) -> None:
    """Print the peak and the time of each function, and their ratios to the first, which is the plain one."""
    seconds = dict.fromkeys(functions, float("inf"))
    for _ in range(RUNS):  # in turns, so that all meet the same load
        for name, function in functions.items():
            start = process_time()
            function()
            seconds[name] = min(seconds[name], process_time() - start)
    peaks = {name: peak(function) - returned.get(name, 0) for name, function in functions.items()}
    print(title)
    first = next(iter(functions))
    for name in functions:
        saved, times = 1 - peaks[name] / peaks[first], seconds[name] / seconds[first]
        print(f"  {name:<34}{peaks[name] / 2**20:7.2f} MiB  saves {saved:6.1%}  {times:5.2f} times the time")


def notebook(steps: int = 512, batch: int = 64, size: int = 64, checkpoints: int = 64) -> None:
    """The RNN whose states are all outputs."""
    params = {"change": RNG.normal(size=(2 * size, size)) * 0.01, "predict": RNG.normal(size=(size, size)) * 0.01}
    inputs = [RNG.normal(size=(batch, size)) for _ in range(steps)]
    unit = ag_tuple(())

    def rnn(params: Any, state: Any, x: Any) -> Any:
        return ag_tuple((unit, np.tanh(np.dot(np.hstack([x, state[1]]), params["change"]))))

    def plain(params: Any, state: Any, inputs: Any) -> Any:
        visible = [state[1]]
        for x in inputs:
            state = rnn(params, state, x)
            visible.append(state[1])
        return visible

    def total(params: Any, loop: Any) -> Any:
        def log_probabilities(h: Any) -> Any:
            output = np.dot(np.hstack([h, np.ones((batch, 1))])[:, :-1], params["predict"])
            return output - logsumexp(output, axis=1, keepdims=True)

        states = loop(params, ag_tuple((unit, np.zeros((batch, size)))), inputs)
        return np.sum(sum([log_probabilities(h) for h in states]))

    loops = {"plain autograd": plain, f"{checkpoints} checkpoints": binomial_checkpoint(rnn, steps, checkpoints)}
    functions = {name: lambda loop=loop: grad(total)(params, loop) for name, loop in loops.items()}
    compare(f"binomial_checkpoint, {steps} steps, all states visible", functions, {})


def root_of_n(steps: int = 1000, shape: tuple[int, int] = (32, 256)) -> None:
    """A long loop whose last state is used."""
    start, w = RNG.normal(size=shape), RNG.normal(size=(shape[1], shape[1])) / 16

    def step(h: Any, w: Any) -> Any:
        return np.tanh(np.dot(h, w) + 0.1)

    def plain(h: Any, w: Any) -> Any:
        for _ in range(steps):
            h = step(h, w)
        return np.sum(h)

    def checkpointed(h: Any, w: Any, count: int | None) -> Any:
        return np.sum(checkpointed_loop(lambda h: step(h, w), h, steps, count)[0])

    functions = {
        "plain autograd": lambda: grad(plain, (0, 1))(start, w),
        "checkpointed_loop": lambda: grad(checkpointed, (0, 1))(start, w, None),
        "checkpointed_loop, 31 checkpoints": lambda: grad(checkpointed, (0, 1))(start, w, 31),
    }
    compare(f"checkpointed_loop, {steps} steps", functions, dict.fromkeys(list(functions)[1:], 31 * start.nbytes))


if __name__ == "__main__":
    notebook()
    root_of_n()

"""Blocks that are recomputed: plain, the framework's own checkpoint, remat.checkpoint and remat.drop.

    python benchmarks/segments.py [--quick] [--device cpu] [--rounds 7]        half a minute on a CPU

PyTorch (on CUDA where there is a GPU), NumPy under autograd and JAX, in one process: all ways of a table one after the
other and several times round. `time` is the median of ratios to the plain call of the same round. `saved` is what the
forward pass leaves for the backward pass, `peak` the most of both, gradients included, beyond what was there before: by
the CUDA allocator, by counting every storage on the CPU, by tracemalloc for NumPy. For JAX it is XLA's temporaries.
`error` is the largest relative difference of a gradient to the plain call's.
"""

import argparse
import platform
from functools import partial, reduce

import autograd.numpy as np
import jax
import jax.numpy as jnp
import numpy
import torch
from autograd import make_vjp
from segments_table import DROP, OURS, PEER, PLAIN, memory, table
from torch.nn import GELU, Linear, ModuleList, Sequential, TransformerEncoderLayer
from torch.utils.checkpoint import checkpoint

import remat


class Stack(torch.nn.Module):
    """Blocks one after the other, each a segment in one of the ways."""

    def __init__(self, way, blocks):
        super().__init__()
        calls = {PEER: partial(checkpoint, use_reentrant=False), OURS: remat.checkpoint}
        self.call = calls.get(way, lambda block, x: block(x))
        self.blocks = ModuleList(remat.drop(block) if way == DROP else block for block in blocks)

    def forward(self, x):
        for block in self.blocks:
            x = self.call(block, x)
        return x


def on_torch(device, rounds, title, shape, make, segments=0):
    """A stack in all ways, with the same weights and dropout: its gradient for the input and the weights."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()

    def begin(stack):
        torch.manual_seed(0)
        return partial(end, stack(x).pow(2).sum(), [x, *stack.parameters()])

    def end(loss, leaves):
        gradient = torch.autograd.grad(loss, leaves)
        torch.cuda.synchronize() if device == "cuda" else None
        return gradient

    ways = {}
    for name in (PLAIN, PEER, OURS, DROP):
        torch.manual_seed(0)
        ways[name] = partial(begin, make(partial(Stack, name)).to(device))
    title = f"PyTorch on {device}, {title}, input {shape}"
    table(title, ways, lambda name: memory(ways[name], device), rounds, segments)


def torch_cases(device, rounds, quick):
    blocks, tiny = (4, 100) if quick else (8, 200)
    width = 128 if device == "cpu" else 1024
    case = partial(on_torch, device, rounds)

    def mlp():
        return Sequential(Linear(width, 4 * width), GELU(), Linear(4 * width, width))

    def small():
        block = Linear(4, 4)
        torch.nn.init.orthogonal_(block.weight)  # gradients do not vanish in a deep stack
        return block

    def many(count, block, stack):
        return stack([block() for _ in range(count)])

    def nested(stack):
        return stack([many(blocks // 2, mlp, stack) for _ in range(2)])

    encoder = partial(TransformerEncoderLayer, width, 4, 4 * width, batch_first=True)
    case(f"{blocks} blocks of an MLP", (8 * width, width), partial(many, blocks, mlp))
    case(f"{blocks} transformer blocks with dropout", (4, 64, width), partial(many, blocks, encoder))
    case(f"2 segments of {blocks // 2} segments of an MLP", (8 * width, width), nested)
    case(f"{tiny} segments of next to nothing", (2, 4), partial(many, tiny, small), tiny)


def on_numpy(rounds, size, segments=4):
    """Segments of four layers under autograd: the gradient for the weights."""
    w, x = numpy.random.default_rng(0).normal(size=(2, size, size)) / size**0.5

    def block(x, w):
        for _ in range(4):
            x = np.tanh(np.dot(x, w) + x)
        return x

    def begin(run):
        pull_back, _ = make_vjp(lambda w: np.sum(reduce(lambda x, _: run(x, w), range(segments), x) ** 2))(w)
        return lambda: [pull_back(1.0)]

    runs = {PLAIN: block, OURS: partial(remat.checkpoint, block), DROP: remat.drop(block)}
    ways = {name: partial(begin, run) for name, run in runs.items()}
    title = f"NumPy under autograd, {segments} segments of 4 layers, {size} by {size}"
    table(title, ways, lambda name: memory(ways[name], "numpy"), rounds)


def on_jax(rounds, size, segments=8):
    """A scan over segments of four layers, compiled: the gradient for the weights and the input."""
    ws, x = jax.random.normal(jax.random.key(0), (segments, size, size)) / size**0.5, jnp.ones((size, size))

    def block(x, w):
        for _ in range(4):
            x = jnp.tanh(x @ w + x)
        return x

    def loss(run, ws, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (run(x, w), None), x, ws)[0] ** 2)

    runs = {PLAIN: block, PEER: jax.checkpoint(block), OURS: partial(remat.checkpoint, block), DROP: remat.drop(block)}
    compiled = {
        name: jax.jit(jax.grad(partial(loss, run), (0, 1))).lower(ws, x).compile() for name, run in runs.items()
    }
    ways = {name: lambda fn=fn: lambda: jax.block_until_ready(fn(ws, x)) for name, fn in compiled.items()}
    title = f"JAX on {jax.default_backend()}, a scan over {segments} segments of 4 layers, {size} by {size}"
    table(title, ways, lambda name: (None, compiled[name].memory_analysis().temp_size_in_bytes), rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer blocks, fewer rounds")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rounds = args.rounds or (3 if args.quick else 7)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"{platform.machine()}, one thread for PyTorch"
    print(f"on {where}; torch {torch.__version__}, jax {jax.__version__}, numpy {numpy.__version__}")
    torch_cases(args.device, rounds, args.quick)
    on_numpy(rounds, 100 if args.quick else 200)
    on_jax(rounds, 100 if args.quick else 200)


if __name__ == "__main__":
    main()

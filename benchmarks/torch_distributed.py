"""Blocks that are recomputed in training by several processes: DDP and FSDP2, torch.utils.checkpoint beside remat.drop.

    python benchmarks/torch_distributed.py [--processes 2] [--width 256] [--rounds 15]      a minute on two cores

Each process has its own batch, on the CPU by gloo. In one round each way makes one training step, one after the other,
so that a busy machine hits all of them; `time` is the median of ratios to torch.utils.checkpoint of the same round, on
the first process, and `cpu` that of its seconds on a core, which others on the machine change less. Throughput shall be
within 5 % of torch.utils.checkpoint's.
"""

import argparse
import os
import socket
import statistics
import sys
import time
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import GELU, LayerNorm, Linear, ModuleList, Sequential
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import remat

PLAIN, PEER, DROP, CALL = "plain", "torch.utils.checkpoint", "remat.drop", "remat.checkpoint"
WAYS = PEER, PLAIN, DROP, CALL


class Stack(torch.nn.Module):
    """Blocks one after the other, each a segment in one of the ways."""

    def __init__(self, way, width, blocks):
        super().__init__()
        torch.manual_seed(0)
        calls = {PEER: partial(checkpoint, use_reentrant=False), CALL: remat.checkpoint}
        self.call = calls.get(way, lambda block, x: block(x))
        made = [
            Sequential(LayerNorm(width), Linear(width, 4 * width), GELU(), Linear(4 * width, width))
            for _ in range(blocks)
        ]
        self.blocks = ModuleList(remat.drop(block) if way == DROP else block for block in made)

    def forward(self, x):
        for block in self.blocks:
            x = x + self.call(block, x)
        return x


def in_ddp(model):
    return DistributedDataParallel(model)


def in_fsdp2(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


class Training:
    """A model, its optimizer, and one step of both."""

    def __init__(self, wrap, way, args):
        self.model = wrap(Stack(way, args.width, args.blocks))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def seconds(self, x):
        """Seconds on the clock, and on a core, of one training step."""
        began = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        self.model(x).pow(2).mean().backward()
        self.optimizer.step()
        return time.perf_counter() - began[0], time.process_time() - began[1]


def measure(name, wrap, args, rank):
    trainings = {way: Training(wrap, way, args) for way in WAYS}
    x = torch.randn(args.batch, args.width, generator=torch.Generator().manual_seed(rank))
    times = {way: [] for way in WAYS}
    for k in range(args.rounds + 2):
        for way, training in trainings.items():
            dist.barrier()
            seconds = training.seconds(x)
            if k >= 2:  # the first ones build buckets, and look for what blocks close over
                times[way].append(seconds)
    if rank:
        return
    print(
        f"\n{name}: {args.blocks} blocks, width {args.width}, batch {args.batch} a process, {args.processes} processes"
    )
    for way in WAYS:
        clock, core = (
            statistics.median(a[k] / b[k] for a, b in zip(times[way], times[PEER], strict=True)) for k in (0, 1)
        )
        milliseconds = 1e3 * statistics.median(seconds for seconds, _ in times[way])
        print(f"  {way:26} {milliseconds:8.1f} ms   time {clock:.3f}   cpu {core:.3f}")


def work(rank, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.processes)
    measure("DDP", in_ddp, args, rank)
    measure("FSDP2", in_fsdp2, args, rank)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # PyTorch keeps threads of gloo, and one that is still at work aborts an interpreter that ends


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    torch.multiprocessing.spawn(work, (args,), args.processes)


if __name__ == "__main__":
    main()

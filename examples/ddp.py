"""A recurrent network trained by two processes (DistributedDataParallel), each of which plans its own loop.

Run it: python examples/ddp.py, which starts two processes on this machine; or one process for each GPU, on one machine
or several, by torchrun --nproc-per-node 2 examples/ddp.py
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import remat

STEPS, BATCH, SIZE, UPDATES, MEMORY = 200, 8, 16, 5, "64 KiB"


class Rnn(torch.nn.Module):
    """A loop over the rows of the input, inside a memory budget or plainly."""

    def __init__(self, memory=None):
        super().__init__()
        torch.manual_seed(0)  # the same parameters in all processes
        self.cell, self.out, self.memory = torch.nn.GRUCell(SIZE, SIZE), torch.nn.Linear(SIZE, SIZE), memory

    def forward(self, xs):
        """The answers of all steps."""

        def step(h, x):
            h = self.cell(x, h)
            return h, self.out(h)

        h, ys = torch.zeros_like(xs[0]), []
        if self.memory is not None:
            return remat.scan(step, h, xs, memory=self.memory)[1]
        for x in xs.unbind(0):
            h, y = step(h, x)
            ys.append(y)
        return torch.stack(ys)


def loss(model, xs):
    return (model(xs)[:-1] - xs[1:]).pow(2).mean()


def train(rank, world):
    xs = torch.randn(STEPS, world * BATCH, SIZE, generator=torch.Generator().manual_seed(1)).cumsum(0) / 10
    own = xs[:, rank * BATCH : (rank + 1) * BATCH]  # each process has its part of the batch
    model = DistributedDataParallel(Rnn(MEMORY))
    with remat.profile() as run:
        first = loss(model, own)
        first.backward()

    alone = Rnn()  # one process with the whole batch, by plain PyTorch
    loss(alone, xs).backward()
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    worst = max(float((p.grad - q.grad).abs().max() / q.grad.abs().max()) for p, q in pairs)
    assert worst < 1e-4

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        last = loss(model, own)
        last.backward()
        optimizer.step()
    assert last < first
    if rank == 0:
        print(f"gradients of {world} processes, {MEMORY} each, and of one agree to {worst:.1e}")
        print(f"loss {first.item():.4f}, after {UPDATES} updates {last.item():.4f}")
        print(f"each process ran {run.calls[0].trace.forward_steps} forward steps for {STEPS}")


def main(rank, world):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)  # "nccl" with one GPU for each process
    train(rank, world)
    dist.barrier()  # the others wait for the one that compares and prints
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # PyTorch keeps threads of gloo, and one that is still at work aborts an interpreter that ends


if __name__ == "__main__":
    if "RANK" in os.environ:  # started by torchrun
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        with socket.create_server(("127.0.0.1", 0)) as free:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        torch.multiprocessing.spawn(main, (2,), nprocs=2)

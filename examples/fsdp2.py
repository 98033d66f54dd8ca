"""A model whose blocks are sharded over two processes (FSDP2) and recomputed, with a loop that calls a sharded cell.

What is saved has the names of the plain model, so that this loads it, and the other way round.
Run it: python examples/fsdp2.py, which starts two processes on this machine; or one process for each GPU, on one
machine or several, by torchrun --nproc-per-node 2 examples/fsdp2.py
"""

import os
import socket
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

import remat

STEPS, BATCH, SIZE, BLOCKS, MEMORY = 60, 4, 16, 3, "128 KiB"


class Block(torch.nn.Module):
    """What a residual block of any model is."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(SIZE), torch.nn.Linear(SIZE, 64), torch.nn.Linear(64, SIZE)

    def forward(self, x):
        """The input, and a correction of it."""
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(torch.nn.Module):
    """Blocks, then a loop."""

    def __init__(self, memory=None):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
        self.cell, self.memory = torch.nn.GRUCell(SIZE, SIZE), memory

    def forward(self, xs):
        """The last state of the loop."""
        for block in self.blocks:
            xs = block(xs)
        h = torch.zeros_like(xs[0])
        if self.memory is not None:
            return remat.scan(lambda h, x: (self.cell(x, h), None), h, xs, memory=self.memory)[0]
        for x in xs.unbind(0):
            h = self.cell(x, h)
        return h


def sharded():
    model = Model(MEMORY)
    for k, block in enumerate(model.blocks):
        model.blocks[k] = fully_shard(remat.drop(block))  # it keeps its input alone, and its part of the parameters
    fully_shard(model.cell)
    return fully_shard(model)


def train(rank, world):
    xs = torch.randn(STEPS, world * BATCH, SIZE, generator=torch.Generator().manual_seed(1))
    model, alone = sharded(), Model()  # the second one is whole, and plain PyTorch
    model(xs[:, rank * BATCH : (rank + 1) * BATCH]).pow(2).mean().backward()
    alone(xs).pow(2).mean().backward()
    worst = 0.0
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        worst = max(worst, float((p.grad.full_tensor() - q.grad).abs().max() / q.grad.abs().max()))
    assert worst < 1e-4
    torch.optim.Adam(model.parameters(), lr=0.01).step()

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save(get_model_state_dict(model), checkpoint_id=folder[0])  # each process writes its part
    loaded = alone.state_dict()
    dcp.load(loaded, checkpoint_id=folder[0])
    alone.load_state_dict(loaded)
    same = [bool(torch.equal(p.full_tensor(), q)) for p, q in zip(model.parameters(), alone.parameters(), strict=True)]
    assert all(same)
    if rank == 0:
        print(f"gradients of {world} processes with sharded blocks and of one plain process agree to {worst:.1e}")
        print(f"what they saved was loaded into the plain model: {len(same)} parameters, {next(iter(loaded))}, …")


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

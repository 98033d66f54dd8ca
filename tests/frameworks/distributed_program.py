"""Run by two processes: gradients under DDP and FSDP2 are those of one process, and all processes run the same plan."""

import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import remat

BUDGETS = {"slots": {"slots": 3}, "memory": {"memory": 12_000}}


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, h, x):
        h = torch.tanh(self.inner(h) + self.outer(x))
        return h, h


class Model(torch.nn.Module):
    def __init__(self, budget, spare=False):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head, self.budget = Cell(), torch.nn.Linear(6, 1), budget
        if spare:
            self.spare = torch.nn.Linear(3, 3)

    def forward(self, xs):
        h, ys = torch.zeros(xs.shape[1], 6), []
        if self.budget:
            ys = remat.scan(self.cell, h, xs, **self.budget)[1]
        else:
            for x in xs.unbind(0):
                h, y = self.cell(h, x)
                ys.append(y)
            ys = torch.stack(ys)
        return self.head(ys).pow(2).mean()


def wrapped(kind, budget):
    model = Model(budget, spare=kind == "ddp unused")
    if kind.startswith("ddp"):
        return model, DistributedDataParallel(model, find_unused_parameters=kind == "ddp unused")
    if "cell" in kind:
        fully_shard(model.cell, reshard_after_forward="reshard" in kind)
    fully_shard(model)
    return model, model


def main(kind, budget):
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    xs = torch.randn(12, 4, 6, generator=torch.Generator().manual_seed(1))
    alone = Model(None)
    sum(alone(part) / 2 for part in xs.split(2, 1)).backward()
    model, called = wrapped(kind, BUDGETS[budget])
    for _ in range(2):  # the second iteration too
        model.zero_grad()
        with remat.profile() as run:
            called(xs[:, 2 * rank : 2 * rank + 2]).backward()
    expected = {name: p.grad for name, p in alone.named_parameters()}
    for name, p in model.named_parameters():
        if name.startswith("spare"):
            assert p.grad is None
            continue
        found = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        assert (found - expected[name]).abs().max() < 1e-15, (kind, name)
    plans = [None, None]
    dist.all_gather_object(plans, [str(op) for op in run.calls[0].plan.schedule])
    assert plans[0] == plans[1]
    assert run.calls[0].trace.forward_steps == run.calls[0].plan.forward_steps
    dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.write("all is equal")
    sys.stdout.flush()
    time.sleep(1.0)  # the other process may still talk to this one
    os._exit(0)  # threads of gloo may end the interpreter with an abort, or not end, after all is done

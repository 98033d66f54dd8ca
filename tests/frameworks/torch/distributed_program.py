"""Run by two processes: gradients under DDP and FSDP2 are those of one process, and all processes run the same plan.

Each writes a line for each case that went well, ends with its error at the first that did not, and ends by itself if it
waits too long for the other one.
"""

import faulthandler
import os
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import remat

sys.path.insert(0, str(Path(__file__).parents[3]))  # of the script; whoever only looks for doctests imports it by path
from tests.frameworks.torch.distributed_cases import CASES
from tests.frameworks.torch.distributed_loops import CASES as LOOPS
from tests.frameworks.torch.distributed_planned_models import CASES as PLANNED_MODELS

KINDS = ["ddp", "ddp unused", "fsdp", "fsdp and cell", "fsdp and cell reshard"]
BUDGETS = {"slots": {"slots": 3}, "memory": {"memory": 12_000}}


class Cell(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, h, x):
        h = torch.tanh(self.inner(h) + self.outer(x))
        return h, h


class Model(torch.nn.Module):
    def __init__(self, width, budget, spare=False):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head, self.budget = Cell(width), torch.nn.Linear(width, 1), budget
        if spare:
            self.spare = torch.nn.Linear(3, 3)

    def forward(self, xs):
        h, ys = torch.zeros(xs.shape[1:]), []
        if self.budget:
            ys = remat.scan(self.cell, h, xs, **self.budget)[1]
        else:
            for x in xs.unbind(0):
                h, y = self.cell(h, x)
                ys.append(y)
            ys = torch.stack(ys)
        return self.head(ys).pow(2).mean()


def wrapped(kind, width, budget):
    model = Model(width, budget, spare=kind == "ddp unused")
    if kind.startswith("ddp"):
        return model, DistributedDataParallel(model, find_unused_parameters=kind == "ddp unused")
    mesh = init_device_mesh("cpu", (2,))
    if "cell" in kind:
        fully_shard(model.cell, mesh=mesh, reshard_after_forward="reshard" in kind)
    fully_shard(model, mesh=mesh)
    return model, model


def check(kind, budget):
    rank = dist.get_rank()
    width = 6 + KINDS.index(kind)  # steps of another size are measured anew
    xs = torch.randn(12, 4, width, generator=torch.Generator().manual_seed(1))
    alone = Model(width, None)
    sum(alone(part) / 2 for part in xs.split(2, 1)).backward()
    model, called = wrapped(kind, width, BUDGETS[budget])
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


def check_fsdp1():
    """Around the head, which steps reach and do not call, FSDP1 does no harm; around the cell it is refused."""
    how = {"device_id": torch.device("cpu"), "use_orig_params": True}
    xs, alone = torch.ones(6, 2, 5), Model(5, None)
    alone(xs).backward()
    model = Model(5, BUDGETS["slots"])
    model.head = FullyShardedDataParallel(model.head, **how)
    model(xs).backward()
    for found, expected in zip(model.cell.parameters(), alone.cell.parameters(), strict=True):
        assert (found.grad - expected.grad).abs().max() < 1e-15
    model.cell = FullyShardedDataParallel(model.cell, **how)
    with pytest.raises(remat.StepError, match=r"Cell .*FSDP1 .*fully_shard"):
        model(xs)


def main(rank, store, limit):
    faulthandler.dump_traceback_later(float(limit), exit=True)
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=int(rank),
        world_size=2,
        timeout=timedelta(seconds=float(limit)),
    )
    for kind in KINDS:
        for budget in BUDGETS:
            check(kind, budget)
            sys.stdout.write(f"{kind} in {budget}: all is equal\n")
            sys.stdout.flush()
    check_fsdp1()
    sys.stdout.write("fsdp1: refused\n")
    sys.stdout.flush()
    for name, case in (CASES | LOOPS | PLANNED_MODELS).items():
        try:
            case()
        except Exception:  # the other cases may still go well
            traceback.print_exc()
            continue
        sys.stdout.write(f"{name}: right\n")
        sys.stdout.flush()
    dist.barrier()
    time.sleep(1.0)  # the other process may still talk to this one


if __name__ == "__main__":
    failed = 0
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        failed = 1
    sys.stderr.flush()
    os._exit(failed)  # threads of gloo may end the interpreter with an abort, or not end, after all is done

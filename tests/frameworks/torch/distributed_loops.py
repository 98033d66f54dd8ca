"""Sharded modules and DTensors in loops and segments of two processes (distributed_program.py): functions that raise.

Gradients are compared with those of a plain loop.
"""

import copy
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collective
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import remat
from remat.frameworks.torch.internals.fsdp import fsdp_modules_called
from tests.frameworks.torch.distributed_cases import STEPS, WIDTH, assert_close, random


def loop(step, h, xs, budget):
    """The last carry, by remat in a budget, or plainly if that is None."""
    if budget:
        return remat.scan(lambda h, x: (step(h, x), None), h, xs, **budget)[0]
    for i in range(len(xs)):  # a DTensor that is sharded over steps has no iterator
        h = step(h, xs[i])
    return h


def inputs():
    return torch.zeros(4, WIDTH), random(STEPS, 4, WIDTH)


def full_gradients(module):
    return [None if p.grad is None else p.grad.full_tensor() for p in module.parameters()]


class PartlyCompiled(torch.nn.Module):
    """A compiled block before a loop over a sharded cell; steps reach the block through `self`."""

    def __init__(self, budget):
        super().__init__()
        torch.manual_seed(0)
        self.block = torch.compile(torch.nn.Linear(WIDTH, WIDTH), backend="eager")
        self.cell, self.budget = fully_shard(torch.nn.GRUCell(WIDTH, WIDTH)), budget

    def forward(self, h, xs):
        return loop(lambda h, x: self.cell(x, h), h, self.block(xs), self.budget)


def sharded_cell_beside_compiled_code():
    """Compiled code hides what steps use; sharded parameters are still pulled back once."""
    found = []
    for budget in (None, {"slots": 3}, {"memory": 40_000}):
        model = fully_shard(PartlyCompiled(budget))
        model(*inputs()).pow(2).mean().backward()
        found.append(full_gradients(model))
    for ours in found[1:]:
        assert_close(ours, found[0])


class Cell(torch.nn.Linear):
    def next(self, h, x):
        return torch.tanh(torch.nn.functional.linear(h, self.weight, self.bias) + x)


def registered_forward_methods():
    """Methods that `register_fsdp_forward_method` made a forward count as calls, also from a later step on."""

    def from_third_step_on(cell):
        return lambda h, x: cell.next(h, x) if x[0, 0] > 2 else torch.tanh(h + x)

    for step_of in (lambda cell: cell.next, from_third_step_on):
        found = []
        for budget in (None, {"slots": 3}):
            torch.manual_seed(0)
            cell, (h, xs) = fully_shard(Cell(WIDTH, WIDTH)), inputs()
            xs[:, 0, 0] = torch.arange(STEPS)
            register_fsdp_forward_method(cell, "next")
            loop(step_of(cell), h, xs, budget).pow(2).mean().backward()
            found.append(full_gradients(cell))
            assert "_pre_forward" not in vars(cell._get_fsdp_state())  # no trace of the loop is left
        assert None not in found[0]
        assert_close(found[1], found[0])
    outer, inner = [], []
    with fsdp_modules_called([cell], outer):
        with fsdp_modules_called([cell], inner):
            cell.next(h, xs[0])
        assert inner == outer == [cell]
        outer.clear()
        cell.next(h, xs[0])  # the loop inside has ended, and the one around it goes on
    assert (inner, outer) == ([cell], [cell])


def frozen_cell_that_was_called_before():
    """A call without gradients leaves parameters gathered; when FSDP frees them, there is nothing to copy."""
    found = []
    for budget in (None, {"slots": 3}, {"memory": 40_000}):
        torch.manual_seed(0)
        cell, (h, xs) = fully_shard(torch.nn.GRUCell(WIDTH, WIDTH).requires_grad_(False)), inputs()
        with torch.no_grad():
            cell(h, h)
        loop(lambda h, x, cell=cell: cell(x, h), h, xs.requires_grad_(), budget).pow(2).mean().backward()
        found.append(xs.grad)
    assert_close(found[1:], found[:1] * 2)


def dtensors_as_inputs_with_gradients():
    """`xs` sharded over steps, over rows (one row for two processes, too) or replicated, with the gradients of each."""
    mesh = init_device_mesh("cpu", (2,))
    for rows in (6, 1):
        for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
            found = []
            for budget in (None, {"slots": 2}):
                w = distribute_tensor(random(8, 8) / 3, mesh, [Shard(1)]).requires_grad_()
                h = distribute_tensor(random(rows, 8), mesh, [Shard(0)]).requires_grad_()
                xs = distribute_tensor(random(12, rows, 8), mesh, [placement]).requires_grad_()
                loop(lambda h, x, w=w: torch.tanh(h + x @ w), h, xs, budget).pow(2).sum().full_tensor().backward()
                found.append([leaf.grad.full_tensor() for leaf in (w, h, xs)])
            assert found[0][2].abs().min() > 0
            assert_close(found[1], found[0])
            assert xs.grad.placements == xs.placements


def dtensors_as_outputs():
    """Of one row for two processes, too."""
    mesh = init_device_mesh("cpu", (2,))
    for rows in (6, 1):
        found = []
        for budget in (None, {"slots": 2}):
            h = distribute_tensor(random(rows, 8), mesh, [Shard(0)]).requires_grad_()
            xs = distribute_tensor(random(12, rows, 8), mesh, [Shard(1)])
            if budget:
                ys = remat.scan(lambda h, x: (torch.tanh(h + x),) * 2, h, xs, **budget)[1]
            else:
                ys, carry = [], h
                for x in xs:
                    carry = torch.tanh(carry + x)
                    ys.append(carry)
                ys = torch.stack(ys)
            ys.pow(2).sum().full_tensor().backward()
            found.append([ys.full_tensor(), h.grad.full_tensor()])
        assert_close(found[1], found[0])


def a_process_that_does_not_enter_the_loop():
    """Where the first step or the backward waits for it, the error names who waits, for whom, and in which loop."""
    for kind in ("sharded", "own", "backward"):
        group = dist.new_group(timeout=timedelta(seconds=3))
        cell, (h, xs) = torch.nn.Linear(WIDTH, WIDTH), inputs()
        if kind == "sharded":
            fully_shard(cell, mesh=DeviceMesh.from_group(group, "cpu"))

        def step(h, x, cell=cell, group=group, kind=kind):
            return torch.tanh(cell(h) + (x if kind == "sharded" else collective.all_reduce(x, group=group)))

        dist.barrier()
        out = loop(step, h, xs, {"slots": 3}) if kind == "backward" else None
        if dist.get_rank() == 0:
            here = r"distributed_loops\.py, line \d+: rank 0 did not get an answer from all of the ranks \[0, 1\]"
            with pytest.raises(remat.ProblemError, match=here):
                loop(step, h, xs, {"slots": 3}) if out is None else out.sum().backward()
        dist.barrier()


FSDP1 = {"device_id": torch.device("cpu"), "use_orig_params": True}


class Outer(torch.nn.Module):
    """A block, called as it is or through a segment."""

    def __init__(self, block, call):
        super().__init__()
        self.block, self.call = block, call

    def forward(self, x):
        return self.call(self.block, x.tanh()).tanh()


def segments_around_fsdp1():
    """They are refused by name, before anything is changed; inside of it they are right, whatever the options."""

    def plainly(block, x):
        return block(x)

    def gradients(dropped, **options):
        torch.manual_seed(0)
        block = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
        inner = FullyShardedDataParallel(remat.drop(block) if dropped else block, **options)
        model = FullyShardedDataParallel(Outer(inner, plainly), **options)
        model(random(4, WIDTH, seed=dist.get_rank())).sum().backward()
        return [p.grad for p in model.parameters()]

    for original in (True, False):
        options = FSDP1 | {"use_orig_params": original}
        assert_close(gradients(True, **options), gradients(False, **options))
        wrapped = FullyShardedDataParallel(torch.nn.Linear(WIDTH, WIDTH), **options)
        with pytest.raises(remat.ProblemError, match=r"remat.drop is given a Linear .*FSDP1.*\(remat.drop\(block\)\)"):
            remat.drop(wrapped)
        model = FullyShardedDataParallel(Outer(wrapped, remat.checkpoint), **options)
        with pytest.raises(remat.StepError, match=r"a segment .* a Linear .*FSDP1.*remat.drop\(block\)"):
            model(random(4, WIDTH))


def planned_models_in_fsdp1():
    """A model whose blocks are wrapped is refused, whichever comes first; wrapped as a whole, it is right."""

    def blocks():
        torch.manual_seed(0)
        parts = [torch.nn.Linear(WIDTH, 64), torch.nn.Tanh(), torch.nn.Linear(64, WIDTH)]
        return torch.nn.Sequential(*(copy.deepcopy(torch.nn.Sequential(*parts)) for _ in range(4)))

    def planned(model):
        return remat.auto_checkpoint(model, memory=16_000, sample=torch.zeros(4, WIDTH), inside_blocks=False)

    model = planned(blocks())
    model[1] = FullyShardedDataParallel(model[1], **FSDP1)
    with pytest.raises(remat.ProblemError, match=r"a planned model has a Sequential .*FSDP1"):
        model(torch.ones(4, WIDTH))
    model = blocks()
    model[1] = FullyShardedDataParallel(model[1], **FSDP1)
    with pytest.raises(remat.ProblemError, match=r"auto_checkpoint is given a Sequential .*FSDP1"):
        planned(model)
    found = []
    for model in (blocks(), planned(blocks())):
        whole = FullyShardedDataParallel(model, **FSDP1)
        whole(torch.ones(4, WIDTH)).sum().backward()
        found.append([p.grad for p in whole.parameters()])
    assert_close(found[1], found[0])


CASES = {
    case.__name__: case
    for case in (
        sharded_cell_beside_compiled_code,
        registered_forward_methods,
        frozen_cell_that_was_called_before,
        dtensors_as_inputs_with_gradients,
        dtensors_as_outputs,
        a_process_that_does_not_enter_the_loop,
        segments_around_fsdp1,
        planned_models_in_fsdp1,
    )
}

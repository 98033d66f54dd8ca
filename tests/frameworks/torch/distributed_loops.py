"""Loops over sharded modules and DTensors in two processes (distributed_program.py): functions that raise if they fail.

Each case runs a plain loop and one by remat, and compares their gradients.
"""

import torch
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

import remat
from tests.frameworks.torch.distributed_cases import STEPS, WIDTH, assert_close, random


def loop(step, h, xs, budget):
    """The last carry, by remat in a budget, or plainly if that is None."""
    if budget:
        return remat.scan(lambda h, x: (step(h, x), None), h, xs, **budget)[0]
    for x in xs:
        h = step(h, x)
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
        assert None not in found[0]
        assert_close(found[1], found[0])


CASES = {case.__name__: case for case in (sharded_cell_beside_compiled_code, registered_forward_methods)}

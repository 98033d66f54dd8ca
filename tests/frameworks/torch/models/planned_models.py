"""Models for the tests of auto_checkpoint, and their plain twins."""

import copy

import torch
from torch import nn

import remat
from remat.frameworks.torch.meter import StorageMeter

WIDTH = 8


class Block(nn.Module):
    """A residual block: dropout, statistics and an activation in place, where they are asked for."""

    def __init__(self, dropout=0.0, norm=False, in_place=False):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if norm else nn.Identity()
        self.act, self.dropout = nn.ReLU(inplace=True) if in_place else nn.GELU(), nn.Dropout(dropout)

    def forward(self, x, scale=1.0):
        return x + scale * self.dropout(self.down(self.act(self.up(self.norm(x)))))


class Net(nn.Module):
    """Blocks in a list, with something before and after them; several inputs and outputs where they are asked for."""

    def __init__(self, depth=6, **options):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.blocks = nn.ModuleList(Block(**options) for _ in range(depth))

    def forward(self, x, scale=None, all_states=False):
        h = self.first(x)
        states = [h]
        for block in self.blocks:
            h = block(h) if scale is None else block(h, scale=scale)
            states.append(h)
        out = self.last(h)
        return (out, states) if all_states else out


def batch(size=16, seed=0, dtype=torch.float64):
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def net(depth=6, dtype=torch.float64, **options):
    return Net(depth, **options).to(dtype)


def peak(model, call, loss=lambda out: out.pow(2).sum()):
    """The bytes above the level at the call, until the backward has ended, with gradients there."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    meter = StorageMeter()
    with meter.counting():
        out = call(model)
        loss(out).backward()
        return meter.peak()


def least_memory(model, sample, **options):
    """The least memory of a model by its blocks' sizes."""
    try:
        return remat.auto_checkpoint(copy.deepcopy(model), memory=1, sample=sample, **options).remat_plan.peak
    except remat.InfeasibleError as error:
        return int(error.minimum)


def planned(model, sample, share=0.0, **options):
    """A copy of a model under a budget between the least (share 0) and that of keeping everything (1)."""
    least = least_memory(model, sample, **options)
    found = remat.auto_checkpoint(copy.deepcopy(model), memory=10**12, sample=sample, **options)
    budget = int(least + share * (found.remat_plan.peak - least)) + 1
    for _ in range(6):  # sizes around blocks are not exact
        try:
            return remat.auto_checkpoint(copy.deepcopy(model), memory=budget, sample=sample, **options)
        except remat.InfeasibleError as error:
            budget = max(int(error.minimum), budget) + 1
    raise AssertionError("no budget is enough")


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_same(found, expected):
    """Equal to the last bit, None where None is."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (tensor is None) == (found[name] is None), name
        assert tensor is None or torch.equal(found[name], tensor), name


def assert_equal_runs(run, *models):
    """Several models, run alike from the same seed, return the same, and get the same gradients and buffers."""
    results = []
    for model in models:
        model.zero_grad()
        torch.manual_seed(1)
        out = run(model)
        results.append((out, gradients(model), dict(model.named_buffers()), torch.get_rng_state()))
    for out, grads, buffers, state in results[1:]:
        leaves, others = torch.utils._pytree.tree_leaves(out), torch.utils._pytree.tree_leaves(results[0][0])
        assert_same(dict(enumerate(leaves)), dict(enumerate(others)))
        assert_same(grads, results[0][1])
        assert_same(buffers, results[0][2])
        assert torch.equal(state, results[0][3])


SHARES = (0.0, 0.5)  # of the way from the least memory to all: ranges inside ranges; some blocks kept
x = batch()


def both(share=0.0, sample=(x,), make=net, **options):
    """A plain model, and one under a budget."""
    model = make(**options)
    return model, planned(model, sample, share)


def backward(model, *args):
    model(*args).pow(2).sum().backward()

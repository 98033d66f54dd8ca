"""Planned models whose forward leaves blocks out at random, checkpoints them itself, or is scripted."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import remat


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(x)))


class Net(nn.Module):
    def __init__(self, *, kept=1.0, checkpointed=False):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Block() for _ in range(6)])
        self.kept, self.checkpointed = kept, checkpointed

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            if float(torch.rand(())) < self.kept:
                x = checkpoint(block, x, use_reentrant=True) if self.checkpointed else block(x)
        return x


X = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))


def test_blocks_that_are_left_out_at_random():
    plain = Net(kept=0.5)
    model = remat.auto_checkpoint(copy.deepcopy(plain), memory=60_000, sample=X)
    for seed in range(6):
        for each in (plain, model):
            each.zero_grad()
            torch.manual_seed(seed)
            each(X).square().sum().backward()
        for a, b in zip(plain.parameters(), model.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None)
            assert a.grad is None or torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-5)


def test_a_reentrant_checkpoint_around_blocks_is_refused_by_name():
    with pytest.raises(remat.ProblemError, match=r"torch.utils.checkpoint around its block 'blocks.0'"):
        remat.auto_checkpoint(Net(checkpointed=True), memory=60_000, sample=X)


def test_a_planned_row_of_blocks_can_be_scripted():
    model = remat.auto_checkpoint(nn.Sequential(*[Block() for _ in range(4)]), memory=60_000, sample=X)
    assert torch.allclose(torch.jit.script(model)(X), model(X))


class Adding(nn.Module):
    """A block that adds to a tensor of the model's."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, total):
        x = torch.tanh(self.linear(x))
        total.add_(x.square().mean())
        return x


class Totals(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Adding() for _ in range(4)])

    def forward(self, x):
        total = torch.zeros(())
        for block in self.blocks:
            x = block(x, total)
        return x.sum() + total


def test_an_error_of_a_block_that_cannot_run_by_itself_names_it_and_says_what_to_do():
    with pytest.raises(RuntimeError, match="in-place operation") as caught:
        remat.auto_checkpoint(Totals(), memory="20 KiB", sample=X)
    [note] = caught.value.__notes__
    assert "block 'blocks.0 + blocks.1' by itself" in note
    assert "Return what it adds" in note

"""Blocks whose forward depends on whether a graph is recorded: they run as in training, whenever they run again."""

import pytest
import torch
from torch import nn

import remat
from tests.frameworks.torch.models.planned_models import SHARES, WIDTH, assert_equal_runs, backward, batch, both


class Block(nn.Module):
    """A residual block that does something with a hidden tensor."""

    def __init__(self, use):
        super().__init__()
        self.up, self.down, self.use = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), use

    def forward(self, x):
        return x + self.down(self.use(self.up(x)).tanh())


def scaled_in_training(h):
    return 2 * h if h.requires_grad else 3 * h


def hooked(h):
    h.register_hook(lambda gradient: 2 * gradient)
    return h


def retained(h):
    h.retain_grad()
    return h


def with_forces(h):
    return h + torch.autograd.grad(h.sin().sum(), h, create_graph=True)[0]


USES = [scaled_in_training, hooked, retained, with_forces]


def make(use):
    torch.manual_seed(0)
    return nn.Sequential(*(Block(use) for _ in range(6))).double()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("use", USES)
def test_blocks_that_need_a_graph(use, share):
    x = batch()
    assert_equal_runs(lambda model: backward(model, x), *both(share, (x,), lambda: make(use)))


@pytest.mark.parametrize("use", USES)
def test_stages_of_a_chain_that_need_a_graph(use):
    model, x = make(use), batch().requires_grad_()
    least = least_of_chain(model, x)
    found = remat.chain([*model], x, memory=least)
    expected = model(x)
    assert torch.equal(found, expected)
    gradients = [torch.autograd.grad(out.pow(2).sum(), [x, *model.parameters()]) for out in (found, expected)]
    assert all(map(torch.equal, *gradients))


def least_of_chain(model, x):
    with pytest.raises(remat.InfeasibleError) as error:
        remat.chain([*model], x, memory=1)
    return int(error.value.minimum)

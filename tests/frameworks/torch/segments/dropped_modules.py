"""What the tests of dropped modules share: small modules, gradients, and whether something was run again."""

import torch
from torch import nn

import remat

INPUT = torch.linspace(-1, 1, 48, dtype=torch.float64).view(8, 6)


def linear():
    torch.manual_seed(0)
    return nn.Linear(6, 6, dtype=torch.float64)


def perceptron():
    torch.manual_seed(0)
    layers = nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)
    return nn.Sequential(*layers).double()


class Block(nn.Module):
    """A class of a user: layers, a buffer and a number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 6).double(), nn.BatchNorm1d(6).double()
        self.factor = 2.0

    def forward(self, x, *, power=1):
        return torch.tanh(self.norm(self.first(x))) ** power * self.factor


def gradients(module, x=INPUT):
    """The gradients of all parameters, from a fresh backward."""
    module.zero_grad()
    module(x).square().sum().backward()
    return [parameter.grad.clone() for parameter in module.parameters()]


def assert_same_gradients(found, expected, x=INPUT):
    found, expected = gradients(found, x), gradients(expected, x)
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))


def is_recomputed(module, x=INPUT):
    """Whether a backward through the module runs a segment again."""
    with remat.profile() as run:
        module(x).square().sum().backward()
    return "recompute" in [each.what for each in run.passes]

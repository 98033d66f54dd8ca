"""Statistics that steps and segments keep in tensors and arrays which are no buffers: replayed, and put back."""

import functools

import numpy
import pytest
import torch

import remat
from tests.frameworks.torch.segments.checkpoint_programs import Base, rand


@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 4}, {"memory": "1 MiB"}], ids=str)
def test_a_running_mean_that_the_first_step_makes(how):
    class Normalized(Base):
        mean = None

        def forward(self, h, x):
            self.mean = torch.zeros(6).double() if self.mean is None else self.mean
            self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
            return self.activation(h - self.mean + x), None

    def run(scan):
        cell, start = Normalized(), rand(3, 6)
        last = scan(cell, start)
        gradients = torch.autograd.grad(last.pow(2).sum(), [*cell.parameters()])
        return last.detach(), cell.mean, *gradients

    xs = rand(9, 6)
    ours = run(lambda cell, h: remat.scan(cell, h, xs, **how)[0])
    plain = run(lambda cell, h: functools.reduce(lambda h, x: cell(h, x)[0], xs, h))
    assert all(map(torch.equal, ours, plain))


@pytest.mark.parametrize("made_before", [True, False])
@pytest.mark.parametrize("how", ["checkpoint", {"slots": 1}, {"slots": 4}, {"memory": "1 MiB"}], ids=str)
def test_statistics_in_an_array_of_numpy(how, made_before):
    class Counting(Base):
        numbers = None

        def forward(self, h):
            self.numbers = numpy.zeros(6) if self.numbers is None else self.numbers
            self.numbers += h.detach().mean(0).numpy()
            return self.activation(h - 0.1 * torch.tensor(self.numbers))

    def run(loop):
        cell = Counting()
        cell.numbers = numpy.zeros(6) if made_before else None
        last = loop(cell, rand(3, 6))
        gradients = torch.autograd.grad(last.pow(2).sum(), [*cell.parameters()])
        return last.detach(), torch.tensor(cell.numbers), *gradients

    def ours(cell, h):
        if how == "checkpoint":
            return functools.reduce(lambda h, _: remat.checkpoint(cell, h), range(9), h)
        return remat.scan(lambda h, _: (cell(h), None), h, length=9, **how)[0]

    plain = run(lambda cell, h: functools.reduce(lambda h, _: cell(h), range(9), h))
    assert all(map(torch.equal, run(ours), plain))

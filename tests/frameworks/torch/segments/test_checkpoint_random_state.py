"""Random numbers and statistics in checkpoints on PyTorch: drawn again as they were, gathered once."""

import random

import numpy
import pytest
import torch
from torch import nn

import remat
from tests.frameworks.torch.segments.checkpoint_programs import assert_bitwise, block, gradients, leaf


class Noisy(nn.Module):
    """Has a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x):
        return (x * torch.rand(x.shape, generator=self.generator, dtype=x.dtype)).sin()


def draws(kind, generator, noisy):
    return {
        "torch": lambda n: torch.rand(n, dtype=torch.float64),
        "numpy": lambda n: torch.from_numpy(numpy.random.rand(n)),
        "gauss": lambda n: torch.tensor([numpy.random.standard_normal() for _ in range(n)]),
        "python": lambda n: torch.tensor([random.random() for _ in range(n)], dtype=torch.float64),
        "python gauss": lambda n: torch.tensor([random.gauss(0, 1) for _ in range(n)], dtype=torch.float64),
        "closure": lambda n: torch.rand(n, generator=generator, dtype=torch.float64),
        "module": lambda n: noisy(torch.ones(n, dtype=torch.float64)),
    }[kind]


@pytest.mark.parametrize("kind", ["torch", "numpy", "gauss", "python", "python gauss", "closure", "module"])
@pytest.mark.parametrize("nested", [False, True])
def test_random_numbers_are_drawn_again_as_they_were(kind, nested):
    found, after = {}, {}
    for name in ("plain", "remat"):
        torch.manual_seed(1), numpy.random.seed(1), random.seed(1)
        generator, noisy = torch.Generator().manual_seed(3), Noisy()
        draw = draws(kind, generator, noisy)
        x = leaf(3)

        def fn(x, draw=draw):
            return (x * draw(3)).sin() * draw(3)

        def outer(x, fn=fn, draw=draw):
            return remat.checkpoint(fn, x * draw(3)) * draw(3)

        def plain_outer(x, fn=fn, draw=draw):
            return fn(x * draw(3)) * draw(3)

        run = (lambda fn, x: fn(x)) if name == "plain" else remat.drop(remat.checkpoint, check="always")
        inside = fn if not nested else plain_outer if name == "plain" else outer
        y = run(inside, x) + run(inside, x)
        draw(2)
        found[name] = torch.autograd.grad(y.sum(), x)[0]
        after[name] = draw(3)
    assert torch.equal(found["plain"], found["remat"])
    assert torch.equal(after["plain"], after["remat"])


def test_generators_that_are_passed_in_are_replayed():
    x, found = leaf(3), []
    for run in (lambda fn, *args: fn(*args), remat.checkpoint):
        ours, theirs = torch.Generator().manual_seed(3), numpy.random.default_rng(3)

        def fn(x, ours, given):
            numbers = torch.from_numpy(given["rng"].random(3))
            return (x * torch.rand(3, generator=ours, dtype=torch.float64) * numbers).sin().exp()

        found.append(torch.autograd.grad(run(fn, x, ours, {"rng": theirs}).sum(), x)[0])
    assert torch.equal(*found)


def test_dropout_is_the_same_when_it_is_recomputed():
    module = nn.Sequential(block(), nn.Dropout(0.5), block(seed=1), nn.Dropout(0.5))
    x = leaf(5, 4)
    found = []
    for run in (lambda m, x: m(x), remat.checkpoint):
        torch.manual_seed(3)
        found.append(gradients(lambda x: run(module, x).sum(), x, module=module))  # noqa: B023
        found.append((torch.rand(3), ()))
    assert_bitwise(found[2], found[0])
    assert torch.equal(found[3][0], found[1][0])


def test_statistics_are_gathered_once():
    x = leaf(6, 4)
    modules = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.BatchNorm1d(4)).double() for _ in "ab"]
    modules[1].load_state_dict(modules[0].state_dict())
    for _ in range(2):
        plain = gradients(lambda x: modules[0](x).sum(), x, module=modules[0])
        found = gradients(lambda x: remat.checkpoint(modules[1], x).sum(), x, module=modules[1])
        assert_bitwise(found, plain)
        outer = gradients(lambda x: remat.checkpoint(lambda x: remat.checkpoint(modules[1], x).sin(), x).sum(), x)
        assert_bitwise(outer, gradients(lambda x: modules[0](x).sin().sum(), x))
    for a, b in zip(modules[0].buffers(), modules[1].buffers(), strict=True):
        assert torch.equal(a, b)
    assert modules[1][1].num_batches_tracked == 4

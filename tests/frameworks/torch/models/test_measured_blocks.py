"""How blocks are measured whose calls differ: what they draw at random, and containers that they change."""

import copy
import random

import pytest
import torch

import remat
from tests.frameworks.torch.models.planned_models import (
    SHARES,
    WIDTH,
    Block,
    Net,
    assert_equal_runs,
    backward,
    batch,
    both,
    peak,
)

SAMPLE = batch(2000)


class SkipsItself(Block):
    """Stochastic depth: in half of its calls it returns its input."""

    draw = random.random

    def forward(self, x):
        return x if type(self).draw() < 0.5 else super().forward(x)


class SkipsItselfByTorch(SkipsItself):
    def draw():
        return torch.rand(()).item()


class Nested(Net):
    """Passes a dict from block to block, which each block changes."""

    def forward(self, x):
        values = {"h": self.first(x), "parts": []}
        for block in self.blocks:
            values = block(values)
        return self.last(values["h"]) + sum(values["parts"])


class Changes(Block):
    def forward(self, values):
        values["h"] = super().forward(values["h"])
        values["parts"].append(values["h"].mean())
        return values


def model_of(block, make=Net):
    model = make(0)
    model.blocks.extend(block() for _ in range(6))
    return model.double()


@pytest.mark.parametrize("block", [SkipsItself, SkipsItselfByTorch])
@pytest.mark.parametrize("seed", range(3))
def test_blocks_that_skip_themselves_at_random_are_planned_as_if_they_did_not(block, seed):
    random.seed(seed)
    torch.manual_seed(seed)
    always = peak(model_of(Block), lambda model: model(SAMPLE))
    plain = model_of(block)
    ours = copy.deepcopy(plain)
    remat.auto_checkpoint(ours, memory=int(0.6 * always), sample=SAMPLE)
    for other in range(6):

        def run(model, other=other):
            random.seed(other)
            backward(model, SAMPLE)

        assert_equal_runs(run, plain, ours)
        torch.manual_seed(other)
        assert peak(ours, lambda model: model(SAMPLE)) <= 0.6 * always


@pytest.mark.parametrize("share", SHARES)
def test_blocks_that_change_a_dict_that_they_are_given(share):
    x = torch.randn(32, WIDTH, dtype=torch.float64)
    plain, ours = both(share, sample=(x,), make=lambda: model_of(Changes, Nested))
    assert_equal_runs(lambda model: backward(model, x), plain, ours)


class Activation(torch.nn.Module):
    """Refuses an input of zeros, as an activation is that dropout has written into too often."""

    def forward(self, x):
        assert x.detach().abs().max() > 0
        return x.sin()


def test_dropout_in_place_is_measured_once():
    def make():
        torch.manual_seed(0)
        blocks = ((torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.5, inplace=True), Activation()) for _ in range(4))
        model = Net(0)
        model.blocks = torch.nn.ModuleList(block for three in blocks for block in three)
        return model.double()

    plain, ours = both(SHARES[0], sample=(SAMPLE,), make=make)
    assert_equal_runs(lambda model: backward(model, SAMPLE), plain, ours)

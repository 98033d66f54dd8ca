"""Blocks of a planned model are searched once: what changes between two steps is seen all the same."""

import copy

import pytest
import torch
from torch import nn

import remat
from remat.frameworks.torch.replay.known_reach import KnownReach, ReachCache

SCALE = [1.0]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.gain = nn.Linear(8, 8), nn.BatchNorm1d(8), 1.0

    def factor(self):
        return self.gain * SCALE[0]

    def forward(self, x):
        return x + torch.tanh(self.norm(self.linear(x))) * self.factor()


def net():
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(6)]).double()


X = torch.randn(64, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def planned(model):
    return remat.auto_checkpoint(model, memory=60_000, sample=X, inside_blocks=False)


def change_attribute(model):
    model[2].gain = 3.0


def change_a_global_list(model):
    SCALE[0] = 0.5


def change_a_method(model):
    Block.factor = lambda self: 2.0 * self.gain


def change_a_layer(model):
    torch.manual_seed(2)
    model[3].linear = nn.Linear(8, 8).double()


def change_mode(model):
    model[4].norm.eval()


def add_a_hook(model):
    model[2].norm.register_forward_hook(lambda module, args, out: 2 * out)


def freeze(model):
    model[1].linear.weight.requires_grad_(False)


def exchange_data(model):
    model[5].linear.weight.data = model[5].linear.weight.data * 2


CHANGES = [
    change_attribute,
    change_a_global_list,
    change_a_method,
    change_a_layer,
    change_mode,
    add_a_hook,
    freeze,
    exchange_data,
]


def step(model):
    """The output of a step, and all gradients and statistics after it."""
    model.zero_grad()
    out = model(X)
    out.square().sum().backward()
    return [out, *results(model)]


def results(model):
    return [*(each.grad for each in model.parameters() if each.grad is not None), *model.buffers()]


def assert_equal(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.fixture
def models(monkeypatch):
    """A plain one, and one by a plan that has run so often that what its blocks reach is known."""
    monkeypatch.setattr(Block, "factor", Block.factor)
    monkeypatch.setitem(globals(), "SCALE", [1.0])
    plain = net()
    model = planned(copy.deepcopy(plain))
    assert any(not isinstance(item, int) for item in model._remat_forward.last.items)
    for _ in range(2):
        assert_equal(step(plain), step(model))
    return plain, model


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes_between_steps(change, models):
    for model in models:
        change(model)
    for _ in range(2):
        assert_equal(*map(step, models))


# Classes are not put back; plain autograd, too, sees a `.data` that was exchanged; and a frozen weight has no gradient.
LATER = [each for each in CHANGES if each not in (change_a_method, exchange_data, freeze)]


@pytest.mark.parametrize("change", LATER, ids=lambda change: change.__name__)
def test_changes_between_forward_and_backward(change, models):
    plain, model = models
    expected = step(plain)
    model.zero_grad()
    out, parameters = model(X), [*model.parameters()]
    change(model)
    out.square().sum().backward()
    assert_equal(expected, [out, *(each.grad for each in parameters), *expected[len(parameters) + 1 :]])


def test_a_block_that_counts_its_calls_is_searched_each_time():
    block = Block()
    cache = ReachCache()
    assert isinstance(cache.reach_of(block.forward, ()), KnownReach)
    known = cache.reach_of(block.forward, (None, 3))
    assert known is cache.reach_of(block.forward, ())
    assert not isinstance(cache.reach_of(block.forward, ([],)), KnownReach)
    for gain in (2.0, 3.0):
        block.gain = gain
        assert cache.reach_of(block.forward, ()) is not known
    assert not isinstance(cache.reach_of(block.forward, ()), KnownReach)


class Averages(nn.Module):
    """A block that writes into a buffer, which it is also given."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8).double()
        self.register_buffer("total", torch.ones(8, dtype=torch.float64))

    def forward(self, x, total):
        y = torch.sigmoid(self.linear(x))
        with torch.no_grad():
            self.total.data += y.mean(0)  # without a new version
        return y * total


def test_a_buffer_that_is_also_an_argument_is_in_one_memory_when_the_segment_runs_again():
    block = Averages()
    other = copy.deepcopy(block)
    for _ in range(2):
        plain, found = other(X, other.total), remat.checkpoint(block, X, block.total)
        assert torch.equal(plain, found)
        plain.sum().backward()
        found.sum().backward()
    assert torch.equal(block.total, other.total)
    assert_equal([each.grad for each in other.parameters()], [each.grad for each in block.parameters()])


def test_saved_tensors_that_are_written_into_in_a_later_step_only():
    """The first step compares and watches, later ones do not: the gradient is right, or there is an error."""

    class Flag:
        on = False

    def fn(x):
        y = x.exp()
        z = y.sin()
        if Flag.on:
            y.mul_(2)
        return z * z.cos()

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    remat.checkpoint(fn, x).sum().backward()
    Flag.on = True
    with pytest.raises(remat.StepError, match="by it, after it was saved"):
        remat.checkpoint(fn, x).sum().backward()

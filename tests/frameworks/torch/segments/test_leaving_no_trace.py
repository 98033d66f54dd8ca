"""A recomputation leaves no trace: everything is as it was at the call for it, and as it is now afterwards."""

import copy
import functools
import itertools
from collections import deque

import pytest
import torch
from torch import nn
from torch.nn import functional

import remat
from tests.frameworks.torch.segments.checkpoint_programs import Base, leaf, rand

WAYS = {"checkpoint": remat.checkpoint, "drop": lambda module, *args: remat.drop(module)(*args)}


class Counts(Base):
    count = 0

    def forward(self, x):
        self.count += 1
        return self.activation(x) * (1 + 0.1 * self.count)


class Logs(Base):
    def __init__(self):
        super().__init__()
        self.log, self.seen, self.recent = [], {"calls": 0}, deque(maxlen=2)

    def forward(self, x):
        self.log.append(1)
        self.seen["calls"] += 1
        self.recent.append(len(self.log))
        return self.activation(x) * (1 + 0.1 * (len(self.log) + self.seen["calls"] + sum(self.recent)))


class ResetsAtTheEnd(Base):
    """A recomputation that stops early does not get to the reset."""

    mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = (torch.rand(6) > 0.3).double()
        y = self.activation(x * self.mask)
        self.mask = None
        return y


class SwapsData(Base):
    def forward(self, x):
        weight = self.linear.weight.data
        self.linear.weight.data = (weight * 8).round() / 8
        y = self.activation(x)
        self.linear.weight.data = weight
        return y


class NormalizesData(Base):
    def forward(self, x):
        self.linear.weight.data = nn.functional.normalize(self.linear.weight.data) * 1.1
        return self.activation(x)


class WritesByData(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()).double())

    def forward(self, x):
        self.seen.data += 1
        return self.activation(x).sin() * self.seen.clone()


class FrozenAverage(Base):
    def __init__(self):
        super().__init__()
        self.average = nn.Parameter(torch.zeros(6).double(), requires_grad=False)

    def forward(self, x):
        y = self.activation(x)
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y * self.average.clone()


class CountsInEval(WritesByData):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x):
        self.seen += 1
        return self.activation(x).sin() * self.seen.clone()


class InitializesFromData(Base):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(6).double())
        self.register_buffer("initialized", torch.tensor(False))

    def forward(self, x):
        if not self.initialized:
            with torch.no_grad():
                self.loc.copy_(-x.mean(0))
                self.initialized.fill_(True)
        return self.activation(x + self.loc)


class Resizes(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.empty(0).double())

    def forward(self, x):
        y = self.activation(x)
        if self.mean.numel() == 0:
            self.mean.resize_(6).zero_()
        self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return y.sin()


class AddsHook(Base):
    def forward(self, x):
        self.linear.register_forward_hook(lambda module, args, out: out * 1.5)
        return self.activation(x)


MODULES = [
    Counts,
    Logs,
    ResetsAtTheEnd,
    SwapsData,
    NormalizesData,
    WritesByData,
    FrozenAverage,
    CountsInEval,
    InitializesFromData,
    Resizes,
    AddsHook,
]


def plain_contents(module):
    return {key: copy.copy(value) for key, value in vars(module).items() if not key.startswith("_")}


def train(module, run):
    """Losses, gradients and state of a few steps."""
    found = []
    for turn in range(3):
        module.zero_grad()
        torch.manual_seed(turn)
        loss = run(module, rand(4, 6, seed=turn)).square().sum()
        loss.backward()
        found += [loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]
        found += [value.clone() for value in module.state_dict().values()]
    return found, plain_contents(module)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MODULES)
def test_modules_with_state_of_their_own_are_as_without_remat(kind, way):
    expected, contents = train(kind(), lambda module, x: module(x))
    found, ours = train(kind(), WAYS[way])
    assert all(map(torch.equal, found, expected))
    assert ours == contents


class Cache:
    keys = None


@pytest.mark.parametrize("trims", [False, True])
def test_a_cache_that_is_an_argument_is_filled_once(trims):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.query, self.key = nn.Linear(6, 6).double(), nn.Linear(6, 6).double()

        def forward(self, x, cache):
            keys = self.key(x)
            cache.keys = keys if cache.keys is None else torch.cat([cache.keys, keys])
            keys = cache.keys[: len(x)] if trims else cache.keys
            return (self.query(x) @ keys.T).softmax(-1) @ keys

    def work(run):
        layer, cache = Attention(), Cache()
        total = sum(run(layer, rand(5, 6, seed=i), cache).sum() for i in range(2))
        total.backward()
        return len(cache.keys), [p.grad for p in layer.parameters()]

    length, expected = work(lambda layer, *args: layer(*args))
    for run in WAYS.values():
        ours, found = work(run)
        assert ours == length == 10
        assert all(map(torch.equal, found, expected))


def test_what_a_function_closes_over_is_put_back_after_an_error_in_the_recomputation():
    log, module = [], Base()

    def fails_again(x):
        log.append(len(log))
        module.note = "inside"
        y = module.activation(x).sin()
        if remat.is_recomputing():
            raise KeyboardInterrupt
        del module.note
        return y.exp()

    y = remat.checkpoint(fails_again, rand(2, 6)).sum()
    log.append("after")
    with pytest.raises(KeyboardInterrupt):
        y.backward()
    assert log == [0, "after"]
    assert not hasattr(module, "note")


def test_a_large_buffer_beside_a_counter_is_not_held():
    class Block(Base):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.zeros(1 << 19))  # 2 MiB
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return self.activation(x) + self.table[0]

    block = Block()
    copies = []
    clone = torch.Tensor.clone

    def noted(tensor, *args, **kwargs):
        result = clone(tensor, *args, **kwargs)
        if result.numel() == 1 << 19:
            copies.append(torch.multiprocessing.reductions.StorageWeakRef(result.untyped_storage()))
        return result

    torch.Tensor.clone = noted
    try:
        y = remat.checkpoint(block, rand(2, 6)).sum()
    finally:
        torch.Tensor.clone = clone
    assert all(each.expired() for each in copies)
    y.backward()
    assert block.count == 1


def test_data_that_a_function_writes_into_is_given_to_its_recomputation_as_it_was():
    def writes(x, data):
        return x * data.add_(1)

    x, data = leaf(3), rand(3)
    expected = data + 1
    for check in ("never", "always"):
        mine = data.clone()
        x.grad = None
        remat.drop(writes, check=check)(x, mine).sum().backward()
        assert torch.equal(mine, expected)
        assert torch.equal(x.grad, expected)


def test_one_tensor_that_is_given_twice_stays_one_object():
    def fn(a, b, pair):
        assert a is b is pair[0] is pair[1]
        return (a @ w).tanh()

    w = leaf(3, 3)
    for wants in (False, True):
        x = rand(3).requires_grad_(wants)
        remat.checkpoint(fn, x, x, [x, x]).sum().backward()
        made = x * 1
        remat.checkpoint(fn, made, made, [made, made]).sum().backward()


@pytest.mark.parametrize("batch_first", [False, True])
def test_attention_of_a_tensor_to_itself_takes_the_same_branch_again(batch_first):
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(8, 2, batch_first=batch_first).double(), rand(2, 3, 8)
    gradients = []
    for run in (lambda module, *args: module(*args), remat.checkpoint):
        module.zero_grad()
        run(module, x, x, x)[0].square().sum().backward()
        gradients.append([p.grad.clone() for p in module.parameters()])
    assert all(map(torch.equal, *gradients))


def test_seeds_that_mean_nothing_are_no_difference_beside_parameters():
    """Attention kernels save seeds also where they do not draw, and others each time; parameters are saved, too."""
    seeds = itertools.count()

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w, torch.tensor([next(seeds), 7]))
            return x @ w

        @staticmethod
        def backward(ctx, bar):
            x, w, _ = ctx.saved_tensors
            return bar @ w.T, x.T @ bar

    layer, x = torch.nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    block = lambda x: Kernel.apply(layer(x), layer.weight)  # noqa: E731
    found = torch.autograd.grad(remat.checkpoint(block, x).sum(), [x, *layer.parameters()])
    expected = torch.autograd.grad(block(x).sum(), [x, *layer.parameters()])
    assert all(map(torch.equal, found, expected))


def test_an_lstm_is_not_refused_for_its_reserve():
    torch.manual_seed(0)
    module, parts = nn.LSTM(16, 32), torch.randn(8, 4, 2, 16)
    gradients = []
    for run in (lambda module, *args: module(*args), functools.partial(remat.checkpoint)):
        module.zero_grad()
        state, outs = (torch.zeros(1, 2, 32), torch.zeros(1, 2, 32)), []
        for part in parts:
            out, state = run(module, part, state)
            outs.append(out)
        torch.cat(outs).square().mean().backward()
        gradients.append([p.grad.clone() for p in module.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("way", ["checkpoint", "scan"])
def test_a_buffer_that_was_exchanged_in_inference_mode(way):
    average, w = torch.zeros(4), leaf(4)

    def step(h, x=None):
        average.data = 0.9 * average.data + 0.1 * h.detach()
        return torch.tanh(h * w), None

    def run(h):
        return remat.checkpoint(step, h)[0] if way == "checkpoint" else remat.scan(step, h, length=3, slots=1)[0]

    with torch.inference_mode():
        run(w.detach() + 1)
    assert average.is_inference()
    last = run(w.detach() + 1)
    before = average.clone()
    last.sum().backward()
    assert torch.equal(average, before)


@pytest.mark.parametrize("slots", [1, 4])
def test_a_state_that_is_at_the_end_of_a_loop_as_at_its_beginning(slots):
    class Flips(nn.Module):
        flag = False

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4, momentum=None)  # the average of all batches, of which two are as good as four

        def forward(self, h, x):
            self.flag = not self.flag
            return torch.sin(self.norm(h) * x) + self.flag, None

    cell, start, xs = Flips(), rand(3, 4).float(), torch.tensor([1.0, 2.0])
    for _ in range(3):
        last, _ = remat.scan(cell, start, xs, slots=slots)
        before = {name: value.clone() for name, value in cell.norm.state_dict().items()}
        last.sum().backward()
        assert not cell.flag
        assert all(torch.equal(value, before[name]) for name, value in cell.norm.state_dict().items())


def test_what_hooks_write_in_the_backward_stays():
    w, log = leaf(4), []

    def step(h, x):
        h = torch.tanh(h * w)
        if h.requires_grad:
            h.register_hook(lambda bar: log.append(float(bar.sum())))
        return h, None

    remat.scan(step, torch.ones_like(w), length=6, slots=2)[0].sum().backward()
    assert len(log) == 6


PACKAGE = """
import torch

norm = torch.nn.BatchNorm1d(3)
weight = torch.nn.Parameter(torch.ones(3))
losses = []


class Block(torch.nn.Module):
    def forward(self, x):
        return normalized(x)


def normalized(x):
    return torch.tanh(norm(x) * weight)


def step(h, x):
    losses.append(h.sum())
    return normalized(h + x), None
"""


def test_modules_in_globals_of_an_installed_package_are_replayed(installed):
    package = installed(PACKAGE)
    h = remat.scan(package.step, torch.randn(4, 3), torch.randn(20, 4, 3), slots=2)[0]
    h.sum().backward()
    assert package.norm.num_batches_tracked == 20
    with pytest.raises(remat.StepError, match="stored in a list"):
        sum(package.losses).backward()


def test_a_segment_in_a_module_of_an_installed_package_is_counted_once(installed):
    package = installed(PACKAGE)
    remat.checkpoint(torch.nn.Sequential(package.Block()), torch.randn(4, 3, requires_grad=True)).sum().backward()
    assert package.norm.num_batches_tracked == 1


LOOPS = {
    "slots": lambda module, x: remat.scan(lambda x, _: (module(x), None), x, length=5, slots=2)[0],
    "memory": lambda module, x: remat.scan(lambda x, _: (module(x), None), x, length=5, memory="1 MiB")[0],
}


@pytest.mark.parametrize("way", {**WAYS, **LOOPS}.values(), ids=[*WAYS, *LOOPS])
def test_an_expanded_buffer_is_put_back(way):
    """It has one number in several places, into which PyTorch does not write."""
    module = nn.Linear(3, 3).double()
    module.register_buffer("scale", rand(1, 3).expand(4, 3))
    before = module.scale.clone()
    module.forward = lambda x: torch.sin(functional.linear(x, module.weight) * module.scale)
    way(module, leaf(4, 3, seed=1)).sum().backward()
    found, module.weight.grad = module.weight.grad, None
    x, steps = leaf(4, 3, seed=1), 5 if way in LOOPS.values() else 1
    for _ in range(steps):
        x = module(x)
    x.sum().backward()
    assert torch.equal(found, module.weight.grad)
    assert torch.equal(module.scale, before)
    assert module.scale.stride() == (0, 1)


def test_methods_and_counters_of_classes_are_those_of_the_call():
    class Layer(nn.Module):
        calls = 0

        def scale(self, x):
            return x.exp()

        def forward(self, x):
            type(self).calls += 1
            return self.scale(x).tanh() * self.calls

    layer, x = Layer(), torch.randn(3, requires_grad=True)
    kept = Layer.scale
    Layer.scale = lambda self, x: x.sin()
    out = remat.checkpoint(layer, x)
    Layer.scale, Layer.added = kept, 1
    out.sum().backward()
    expected = torch.autograd.grad(x.sin().tanh().sum(), x)
    assert torch.equal(x.grad, *expected)
    assert (Layer.calls, Layer.scale, Layer.added) == (1, kept, 1)

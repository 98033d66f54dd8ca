"""What the tests of checkpoints on PyTorch share: inputs, modules, and counters."""

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import remat
from tests.frameworks.untracked import Log

A = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def rand(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def leaf(*shape, seed=0):
    return rand(*shape, seed=seed).requires_grad_()


def block(width=4, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)).double()


class Seen:
    """Storages that were seen: how many of them are still there."""

    def __init__(self):
        self.refs = Log()

    def __call__(self, tensor):
        self.refs.append(StorageWeakRef(tensor.untyped_storage()))
        return tensor

    @property
    def alive(self):
        return sum(not each.expired() for each in self.refs)


def gradients(fn, *inputs, module=None):
    """The result's sum, and the gradients of inputs and parameters."""
    wanted = [*inputs, *(module.parameters() if module is not None else ())]
    total = fn(*inputs)
    return total.detach(), torch.autograd.grad(total, wanted, allow_unused=True)


def assert_bitwise(found, expected):
    assert torch.equal(found[0], expected[0])
    for a, b in zip(found[1], expected[1], strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


class Counted(nn.Module):
    """Linear and tanh; writes its name into a log each time it is run, and when its backward is."""

    def __init__(self, name, log, width=4):
        super().__init__()
        self.name, self.log, self.linear = name, log, nn.Linear(width, width).double()

    def forward(self, x):
        self.log.append(f"F{self.name}")
        y = torch.tanh(self.linear(x))
        if y.requires_grad and not remat.is_recomputing():
            y.register_hook(lambda _: self.log.append(f"B{self.name}"))
        return y


def plainly(fn, *args):
    return fn(*args)


def same_as_plain(work):
    """What a function of a way to call gives, plainly and with segments, in two rounds: the first passes the check."""
    expected = [work(plainly) for _ in "ab"]
    found = [work(remat.checkpoint) for _ in "ab"]
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


class Base(nn.Module):
    """A layer in double precision, with the same weights each time."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6).double()

    def activation(self, x):
        return torch.tanh(self.linear(x))

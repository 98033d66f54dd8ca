"""Measuring a step for a budget in bytes leaves no trace, and is done again for a step that takes more."""

import gc
import io
import subprocess
import sys

import pytest
import torch
from torch import nn

import remat
from remat.frameworks.torch.meter import AllocatorMeter
from tests.frameworks.torch.programs import plain_scan


class Keeping(torch.nn.Module):
    """A cell that keeps a mean, a list of states and a count."""

    def __init__(self):
        super().__init__()
        self.w, self.mean, self.seen = torch.nn.Parameter(torch.eye(3)), torch.zeros(3), []
        self.register_buffer("count", torch.zeros(()))

    def forward(self, h, x):
        h = torch.tanh(h @ self.w + x)
        self.mean = 0.9 * self.mean + 0.1 * h.detach()
        self.seen.append(h.detach())
        self.count.data += 1  # without a new version
        return h, None


@pytest.mark.parametrize("memory", ["1 MiB", 1500])
def test_what_a_step_keeps_is_as_in_the_plain_loop(memory):
    def run(loop, **how):
        cell = Keeping()
        last, _ = loop(cell, torch.zeros(3), torch.ones(12, 3), **how)
        return [last.detach(), cell.mean, cell.count, *cell.seen]

    for one, other in zip(run(remat.scan, memory=memory), run(plain_scan), strict=True):
        assert type(one) is torch.Tensor
        assert torch.equal(one, other)


@pytest.mark.parametrize("memory", ["1 MiB", 4096])
def test_steps_may_differentiate_by_torch_func(memory):
    w, q = torch.randn(3, 3, dtype=torch.float64, requires_grad=True), torch.ones(3, dtype=torch.float64)

    def step(q, _):
        return q - 0.1 * torch.func.grad(lambda q: torch.tanh(q @ w).pow(2).sum())(q), None

    def gradient(loop, **how):
        return torch.autograd.grad(loop(step, q, None, length=6, **how)[0].sum(), w)[0]

    assert torch.equal(gradient(remat.scan, memory=memory), gradient(plain_scan))
    with remat.profile() as profile:
        gradient(remat.scan, slots=2)
    assert profile.calls


def test_the_cost_of_another_step_with_the_same_code_is_not_used():
    w, h = torch.ones(8, 8, requires_grad=True), torch.ones(4, 8)

    def run(rows):
        def step(h, _):
            with torch.no_grad():
                total = torch.ones(rows, 1024).sum()
            return torch.tanh(h @ w) + 0 * total, None

        return remat.scan(step, h, length=20, memory="512 KiB")

    run(1)
    with pytest.raises(remat.InfeasibleError):
        run(1024)


def test_a_step_whose_gradient_autograd_refuses_is_measured():
    """It is an error where that gradient is asked for, as without a budget, and not before."""
    w = torch.ones(3, 3, requires_grad=True)

    def step(h, _):
        h = torch.tanh(h @ w)
        return h.mul_(2.0), None  # tanh has saved its result

    last, _ = remat.scan(step, torch.ones(3), None, length=4, memory="1 MiB")
    (last.detach() * w).sum().backward()
    assert torch.equal(w.grad, last.detach().expand(3, 3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        last.sum().backward()


def test_the_work_space_of_kernels_is_inside_the_budget():
    """That of a convolution is no tensor: it is allocated and freed by the kernel."""
    torch.manual_seed(0)
    up, down = nn.Conv1d(1, 4, 5, padding=2), nn.Conv1d(4, 1, 5, padding=2)
    xs, w = torch.randn(60, 32, 128), nn.Parameter(torch.ones(()))

    def step(h, x):
        return torch.tanh(down(torch.relu(up(h.unsqueeze(1)))).squeeze(1) * w + x), None

    for budget in (1 << 20, 2 << 20):
        gradient_of_last = lambda: remat.scan(step, xs[0], xs, memory=budget)[0].sum().backward()  # noqa: B023, E731
        gradient_of_last()  # measures the step
        meter = AllocatorMeter()
        with meter.counting():
            gradient_of_last()
        assert 0.7 * budget < meter.peak() <= budget


@pytest.mark.parametrize("how", ["by a flag of its closure", "by the value of the carry"])
def test_a_step_that_changes_stays_inside_the_budget(how):
    """Counted by the allocator: resident memory also has holes of the heap, which differ from process to process."""
    torch.manual_seed(0)
    w, h, budget = (torch.randn(64, 64) / 8).requires_grad_(), torch.randn(256, 64), 2 << 20

    def gradient(*, more):
        def step(h, _):
            q = torch.tanh(h @ w)
            for _ in range(10 if more and float(h.detach().abs().max()) < 50 else 0):
                q = torch.sin(q) * q
            return q, None

        start = h if how.startswith("by a flag") else 1000 * h
        return torch.autograd.grad(remat.scan(step, start, length=30, memory=budget)[0].sum(), w)

    gradient(more=how == "by the value of the carry")
    gradient(more=True)  # measures the step, if its first run differs
    meter = AllocatorMeter()
    with meter.counting():
        gradient(more=True)
    assert 0.7 * budget < meter.peak() <= budget + 2 * w.nbytes + h.nbytes  # the gradient, and the first carry


def test_measuring_prints_nothing():
    """PyTorch prints a warning, once in a process, where memory is freed that it has not seen allocated."""
    program = """
import torch, remat
cell, zeros = torch.nn.LSTMCell(5, 5), torch.zeros(3, 5)

def inner(carry, x):
    carry = cell(x, carry)
    return carry, carry[0]

def outer(carry, x):
    carry, ys = remat.scan(inner, carry, x, memory="1 MiB")
    return carry, ys.sum()

remat.scan(outer, (zeros, zeros), torch.randn(12, 7, 3, 5), memory="1 MiB")[1].sum().backward()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")


def by_iterator():
    numbers = iter(range(1000))
    return lambda: next(numbers)


def by_file():
    lines = io.StringIO("\n".join(map(str, range(1000))))
    return lambda: int(lines.readline())


@pytest.mark.parametrize("source", [by_iterator, by_file])
def test_measured_runs_that_move_what_cannot_be_restored_are_an_error(source):
    number, w = source(), torch.tensor(0.9, dtype=torch.float64, requires_grad=True)

    def step(h, _):
        return torch.tanh(w * h + number() / 100), None

    with pytest.raises(remat.errors.DeterminismError, match=r"an iterator \(next\)"):
        remat.scan(step, torch.zeros((), dtype=torch.float64), length=50, memory="1 MiB")


def test_measuring_leaves_no_tensors_that_only_the_garbage_collector_would_free():
    def run(size):  # of another size, the step is measured again
        w = (torch.randn(size, size) / size).requires_grad_()
        h, _ = remat.scan(lambda h, _: (torch.tanh(h @ w), None), torch.ones(4, size), length=20, memory="1 MiB")
        torch.autograd.grad(h.sum(), w)

    def tensors():
        return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())

    run(64)  # what is cached once
    gc.collect()
    before = tensors()
    gc.disable()
    try:
        run(65)
        assert tensors() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("memory", [20_000, "4 MiB"])
def test_the_backward_of_a_custom_function_counts_real_gradients_alone(memory):
    calls = []

    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            calls.append(1)
            return -0.5 * gradient

    w = torch.eye(3, requires_grad=True)
    h, _ = remat.scan(lambda h, _: (Half.apply(torch.tanh(w @ h)), None), torch.ones(3), length=6, memory=memory)
    h.sum().backward()
    assert len(calls) == 6

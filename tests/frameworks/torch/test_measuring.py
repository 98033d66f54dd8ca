"""Measuring a step for a budget in bytes leaves no trace, and is done again for a step that takes more."""

import pytest
import torch

import remat
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

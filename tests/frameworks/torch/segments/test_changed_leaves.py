"""Leaves that are frozen before the backward of a loop, and hooks of leaves that get no gradient."""

import pytest
import torch

import remat

BUDGETS = [{"slots": 1}, {"slots": 4}, {"memory": "1 MiB"}]


@pytest.fixture
def leaves():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 4, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_parameter_may_be_frozen_between_a_loop_and_its_backward(budget, leaves):
    w, v, start = leaves
    h = start
    for _ in range(4):
        h = torch.tanh(h @ w + v)
    want = torch.autograd.grad(h.sum(), [v, start])
    h, _ = remat.scan(lambda h, x: (torch.tanh(h @ w + v), None), start, length=4, **budget)
    w.requires_grad_(False)
    h.sum().backward()
    assert w.grad is None
    assert not w.requires_grad
    assert torch.equal(v.grad, want[0])
    assert torch.equal(start.grad, want[1])


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_hook_never_sees_a_gradient_that_is_none(late, leaves):
    w, v, start = leaves
    seen = []

    def hook(bar):
        seen.append(bar.clone())
        return bar * 0.5

    if not late:
        w.register_hook(hook)
    h, _ = remat.scan(lambda h, x: (torch.tanh(h @ w), None), start, length=2, slots=1)
    h, _ = remat.scan(lambda h, x: (torch.tanh(h.detach() @ v), None), h, length=2, slots=1)
    if late:
        w.register_hook(hook)
    h.sum().backward()
    assert not any(bar.any() for bar in seen)
    assert v.grad.any()

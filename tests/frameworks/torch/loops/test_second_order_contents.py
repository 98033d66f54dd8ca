"""Second derivatives of loops whose steps have state in plain Python."""

from types import SimpleNamespace

import pytest
import torch

import remat

BUDGETS = [{"slots": 1}, {"slots": 4}, {"memory": "1 MiB"}]


def scaled(user, h, w):
    return torch.tanh(h @ w) * user.count


def detached(user, h, w):
    return torch.tanh((h.detach() if user.count % 2 == 0 else h) @ w)


def logged(user, h, w):
    user.log.append(user.count)
    return torch.tanh(h @ w)


def second_derivative(body, loop):
    user = SimpleNamespace(count=0, log=[])
    w = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4).requires_grad_()

    def step(h, x):
        user.count += 1
        return body(user, h, w), None

    h = loop(step, torch.ones(4, dtype=torch.float64))
    (first,) = torch.autograd.grad(h.sum(), w, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), w)
    return first.detach(), second, vars(user)


def plain(step, h):
    for _ in range(4):
        h, _ = step(h, None)
    return h


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("body", [scaled, detached, logged])
def test_steps_run_with_the_contents_of_their_place(body, budget):
    want = second_derivative(body, plain)
    got = second_derivative(body, lambda step, h: remat.scan(step, h, length=4, **budget)[0])
    torch.testing.assert_close(got[:2], want[:2], rtol=1e-12, atol=1e-14)
    assert got[2] == want[2]


def gradients_by_a_variable(loop):
    """Of a loop whose steps keep a tensor in a variable: the first derivative, that again, and the second one."""
    w = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4).requires_grad_()
    mean = torch.tanh(w.sum(0))

    def step(h, x):
        nonlocal mean
        h = torch.tanh(h @ w + mean)
        mean = h.detach().roll(1)
        return h, None

    h = loop(step, torch.ones(4, dtype=torch.float64))
    again = torch.autograd.grad(h.sum(), w, retain_graph=True)
    (first,) = torch.autograd.grad(h.sum(), w, create_graph=True)
    return *again, first.detach(), *torch.autograd.grad(first.pow(2).sum(), w), mean


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_steps_run_with_the_variables_of_their_place(budget):
    want = gradients_by_a_variable(plain)
    got = gradients_by_a_variable(lambda step, h: remat.scan(step, h, length=4, **budget)[0])
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)

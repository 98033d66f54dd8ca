"""Backwards for a batch of cotangents: `is_grads_batched=True`, and jacobians and hessians with `vectorize=True`."""

from functools import partial

import pytest
import torch
from torch.autograd.functional import hessian, jacobian
from torch.nn import functional

import remat
from tests.frameworks.torch.programs import DOUBLE, assert_same, plain_scan

WAYS = {
    "slots": (partial(remat.scan, slots=2), remat.checkpoint),
    "memory": (partial(remat.scan, memory="1 MiB"), remat.checkpoint),
}
PLAIN = plain_scan, lambda fn, *args: fn(*args)


def numbers(*shape, seed):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)).mul_(0.5).requires_grad_()


def inputs():
    return numbers(3, 3, seed=0), numbers(7, 3, seed=1), numbers(3, seed=2)


def draws(w, h, x):  # the older vmap draws no random numbers
    h = functional.dropout(torch.tanh(h @ w + x), 0.2)
    return h, h.sum()


def draws_nothing(w, h, x):
    h = torch.tanh(h @ w + x)
    return h, h.sum()


def of_all_results(scan, segment):
    w, xs, h = inputs()
    last, ys = scan(partial(draws, w), h, xs)
    return torch.autograd.grad((last, ys), (w, xs, h), (torch.eye(3), torch.ones(3, 7)), is_grads_batched=True)


def of_one_result_twice(scan, segment):
    w, xs, h = inputs()
    last, _ = scan(partial(draws, w), h, xs)
    gradient = partial(torch.autograd.grad, last, (w, xs), torch.eye(3), is_grads_batched=True)
    return [*gradient(retain_graph=True), *gradient()]


def of_a_segment(scan, segment):
    w, _, h = inputs()
    y = segment(lambda h: functional.dropout(torch.sin(h @ w), 0.3).cos(), h)
    return torch.autograd.grad(y, (w, h), torch.eye(3), is_grads_batched=True)


def of_a_gradient(scan, segment):
    w, xs, h = inputs()
    _, ys = scan(partial(draws_nothing, w), h, xs)
    first = torch.autograd.grad(ys, (w, xs), torch.eye(7), is_grads_batched=True, create_graph=True)
    return [*first, *torch.autograd.grad(first[0].pow(2).sum(), (w, xs))]


def of_a_jacobian(scan, segment):
    w, xs, h = inputs()
    return jacobian(lambda w, xs: scan(partial(draws_nothing, w), h, xs)[0], (w, xs), vectorize=True)


def of_a_hessian(scan, segment):
    w, xs, h = inputs()
    return [hessian(lambda w: scan(partial(draws_nothing, w), h, xs)[0].sum(), w, vectorize=True)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "program", [of_all_results, of_one_result_twice, of_a_segment, of_a_gradient, of_a_jacobian, of_a_hessian]
)
def test_gradients_are_the_plain_ones(program, way):
    torch.manual_seed(0)
    found = [*program(*WAYS[way]), torch.rand(1)]
    torch.manual_seed(0)
    expected = [*program(*PLAIN), torch.rand(1)]
    second_order = program in (of_a_gradient, of_a_hessian)
    assert_same(found, expected, bitwise=not second_order, tolerance=1e-12)

"""Loops and segments under transforms of torch.func: each does what plain PyTorch does there."""

import subprocess
import sys
from functools import partial

import torch
from torch.func import grad

import remat
from tests.frameworks.torch.programs import DOUBLE, assert_same, plain_scan

scan = partial(remat.scan, slots=2)


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)) * 0.5


def test_second_derivatives_with_a_constant_that_is_put_back():
    constant = numbers(3, 3)  # small and without a gradient, so that steps may write into it

    def loss(loop, w):
        step = lambda h, x: (torch.tanh(h @ w + x @ constant), None)  # noqa: E731
        return loop(step, numbers(3), numbers(5, 3, seed=1))[0].sum()

    def twice(loop):
        return grad(lambda w: grad(lambda w: loss(loop, w))(w).pow(2).sum())(numbers(3, 3, seed=2))

    before = constant.clone()
    assert_same([twice(scan)], [twice(plain_scan)], bitwise=False, tolerance=1e-12)
    assert torch.equal(constant, before)


def test_segments_in_steps_that_are_measured():
    def loss(loop, segment, w, **how):
        def step(h, x):
            return segment(lambda h: torch.tanh(h @ w), h) + x, None

        return loop(step, numbers(3), numbers(8, 3, seed=1), **how)[0].sum()

    w = numbers(3, 3, seed=2)
    found = grad(lambda w: loss(remat.scan, remat.checkpoint, w, memory="1 MiB"))(w)
    assert_same([found], [grad(lambda w: loss(plain_scan, lambda f, h: f(h), w))(w)], bitwise=False, tolerance=1e-12)


FIRST_USE_INSIDE_OF_A_TRANSFORM = """
import torch, remat
w = torch.eye(3, requires_grad=True)
segment = lambda h: torch.tanh(h @ w)
step = lambda h, x: (remat.checkpoint(segment, h) + x, None)
torch.func.grad(lambda h: remat.scan(step, h, torch.zeros(4, 3), slots=2)[0].sum())(torch.ones(3))
remat.adaptive_checkpoint(segment, torch.ones(3), threshold=10_000).sum().backward()
torch.testing.assert_close(w.grad, (1 - torch.tanh(torch.ones(3)) ** 2).expand(3, 3))
"""


def test_segments_after_the_package_was_first_used_inside_of_a_transform():
    run = subprocess.run([sys.executable, "-c", FIRST_USE_INSIDE_OF_A_TRANSFORM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr

"""Hooks behind a carry that a step detaches run as in the plain loop, where no gradient leads to them: not at all."""

import pytest
import torch

import remat
from tests.frameworks.torch.programs import DOUBLE, plain_scan
from tests.frameworks.untracked import Box


def start():
    torch.manual_seed(0)
    return torch.randn(3, 3, dtype=DOUBLE, requires_grad=True), torch.randn(3, dtype=DOUBLE, requires_grad=True)


@pytest.mark.parametrize("nested", [False, True])
def test_hooks_in_a_loop_behind_a_carry_that_a_step_detaches(nested):
    def run(loop, **how):
        w, start_at = start()
        seen = []

        def hooked_step(h, x):
            h = torch.tanh(h.detach() @ w if x == 0 else h @ w)
            if h.requires_grad:
                h.register_hook(lambda g: seen.append(g.abs().sum().item()))
            return h, None

        def two_loops(h, _):
            h, _ = loop(hooked_step, h, torch.tensor([1, 2]), **how)
            return loop(hooked_step, torch.sin(h), torch.tensor([3, 0, 4]), **how)[0], None

        h, _ = loop(two_loops, start_at, None, length=1, **how) if nested else two_loops(start_at, None)
        h.sum().backward()
        return w.grad, start_at.grad, seen

    found, expected = run(remat.scan, slots=1), run(plain_scan)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]
    assert len(expected[2]) == 2


def test_hooks_behind_a_cut_in_second_derivatives():
    def run(loop, **how):
        w, start_at = start()
        calls, scale = Box(0), torch.ones(3, dtype=DOUBLE, requires_grad=True)
        w.register_post_accumulate_grad_hook(lambda _: setattr(calls, "value", calls.value + 1))

        def step(h, x):
            h = torch.tanh(h @ w)
            return (h.detach() if x == 3 else h) * scale, None

        last, _ = loop(step, start_at, torch.arange(4), **how)
        loss = last.pow(2).sum()
        slope, by_w = torch.autograd.grad(loss, [scale, w], create_graph=True, allow_unused=True)
        (loss + slope.pow(2).sum()).backward()
        return by_w, w.grad, calls.value, scale.grad.tolist()

    found = run(remat.scan, slots=1)
    assert found == run(plain_scan)
    assert found[:3] == (None, None, 0)


@pytest.mark.parametrize("made", [False, True])
def test_hooks_of_a_leaf_behind_a_cut_that_was_frozen_since(made):
    w, leaf = start()
    calls = Box(0)
    leaf.register_hook(lambda gradient: setattr(calls, "value", calls.value + 1))
    cuts_last = lambda h, x: (torch.tanh((h.detach() if x == 3 else h) @ w), None)  # noqa: E731
    last, _ = remat.scan(cuts_last, torch.sin(leaf) if made else leaf, torch.arange(6), slots=1)
    leaf.requires_grad_(False)
    last.sum().backward()
    assert calls.value == 0
    assert leaf.grad is None
    leaf.requires_grad_()
    leaf.sum().backward()
    assert calls.value == 1


@pytest.mark.parametrize("also", [False, True])
def test_hooks_of_made_tensors_behind_an_input_that_the_loss_does_not_use(also):
    """They run for other uses of the tensor alone, and again in the next backward."""

    def run(loop, **how):
        w, start_at = start()
        seen, made = [], start_at * 2
        made.register_hook(lambda g: seen.append(("made", g.sum().item())))
        init = torch.sin(made)
        init.register_hook(lambda g: seen.append(("init", g.sum().item())))
        cuts_last = lambda h, x: (torch.tanh((h.detach() if x == 3 else h) @ w), h)  # noqa: E731
        last, ys = loop(cuts_last, init, torch.arange(6), **how)
        loss = last.sum() + (made.pow(2).sum() if also else 0)
        loss.backward(retain_graph=True)
        ys.sum().backward()
        return seen, start_at.grad.tolist()

    found = run(remat.scan, slots=1)
    assert found == run(plain_scan)
    assert len(found[0]) == 3 if also else 2

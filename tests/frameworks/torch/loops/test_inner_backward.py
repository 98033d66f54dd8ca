"""Steps that call backward(): `.grad` gets what it gets in a plain loop, or there is an error."""

import pytest
import torch

import remat
from tests.frameworks.torch.programs import DOUBLE, plain_scan

BUDGETS = [{"slots": 1}, {"slots": 5}, {"memory": "64 KiB"}, {"memory": "4 MiB"}]


def problem():
    torch.manual_seed(0)
    cell, out = torch.nn.GRUCell(3, 8, dtype=DOUBLE), torch.nn.Linear(8, 2, dtype=DOUBLE)
    return cell, out, torch.randn(60, 4, 3, dtype=DOUBLE), torch.zeros(4, 8, dtype=DOUBLE)


def gradients(cell, out):
    return [parameter.grad for parameter in (*cell.parameters(), *out.parameters())]


def run(loop, make_step, **how):
    cell, out, xs, start = problem()
    out.bias.grad = torch.ones(2, dtype=DOUBLE)  # from an earlier call
    last, _ = loop(make_step(cell, out), start, xs, **how)
    if last.requires_grad:
        (last.square().sum()).backward()
    return gradients(cell, out)


def each_step(cell, out):
    def step(h, x):
        h = cell(x, h)
        out(h).square().mean().backward()
        return h.detach(), None

    return step


def each_step_and_the_last_state(cell, out):
    w = torch.full((8,), 0.9, dtype=DOUBLE, requires_grad=True)

    def step(h, x):
        loss = out(cell(x, h.detach())).square().mean()
        loss.backward()
        return torch.tanh(h * w + x.mean()), None

    return step


@pytest.mark.parametrize("how", BUDGETS, ids=str)
@pytest.mark.parametrize("make_step", [each_step, each_step_and_the_last_state])
def test_gradients_within_a_step_are_added_once(make_step, how):
    for found, expected in zip(run(remat.scan, make_step, **how), run(plain_scan, make_step), strict=True):
        assert torch.equal(found, expected)


def windows(cell, out):
    count = [0]

    def step(h, x):
        h, count[0] = cell(x, h), count[0] + 1
        if count[0] % 10 == 0 and h.requires_grad:
            out(h).square().mean().backward()
            h = h.detach()
        return h, None

    return step


def windows_without_a_question(cell, out):
    count = [0]

    def step(h, x):
        h, count[0] = cell(x, h), count[0] + 1
        if count[0] % 10 == 0:
            out(h).square().mean().backward()
            h = h.detach()
        return h, None

    return step


@pytest.mark.parametrize("how", BUDGETS[:3], ids=str)
@pytest.mark.parametrize("make_step", [windows, windows_without_a_question])
def test_gradients_through_earlier_steps_are_an_error_that_says_what_to_do(make_step, how):
    with pytest.raises(remat.StepError, match="call the loop once for each window"):
        run(remat.scan, make_step, **how)


def test_gradients_through_earlier_steps_are_right_in_one_tape():
    for found, expected in zip(run(remat.scan, windows, memory="4 MiB"), run(plain_scan, windows), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)

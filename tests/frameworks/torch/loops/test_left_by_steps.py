"""Tensors that a step leaves in an attribute or a list for later ones: exact, or an error, never a lost gradient."""

from types import SimpleNamespace

import pytest
import torch

import remat
from tests.frameworks.torch.programs import DOUBLE

BUDGETS = [{"slots": 1}, {"slots": 3}, {"memory": "1 MiB"}, {"memory": 600}]


def first_carry(s, i, h):
    s.kept = h if s.kept is None else s.kept
    return h * 0.5 + s.kept * h


def last_carry(s, i, h):
    before, s.kept = h if s.kept is None else s.kept, h
    return h * 0.5 + before * h


def last_result(s, i, h):
    before, s.kept = h if s.kept is None else s.kept, torch.tanh(h)
    return h * 0.5 + before * h


def every_third(s, i, h):
    if i % 3 == 0:
        s.kept = torch.sin(h)
    return h * 0.5 + s.kept * h


def only_the_third(s, i, h):
    """No step that the first sweep records leaves anything."""
    if i == 3:
        s.kept = torch.sin(h)
    return h * 0.5 if s.kept is None else h * 0.5 + s.kept * h


def attention_over_a_list(s, i, h):
    s.log.append(h)
    weights = torch.softmax(torch.stack([(h * each).sum() for each in s.log]), 0)
    return torch.tanh((weights[:, None] * torch.stack(s.log)).sum(0))


def in_an_object_of_its_own(s, i, h):
    if s.kept is None:
        s.kept = SimpleNamespace(state=h)
    before, s.kept.state = s.kept.state, h
    return h * 0.5 + before * h


def gradient(program, steps, loop):
    start = torch.tensor([0.3, 0.5], dtype=DOUBLE, requires_grad=True)
    w = torch.tensor([0.9, 1.1], dtype=DOUBLE, requires_grad=True)
    s = SimpleNamespace(kept=None, log=[], count=0)
    last = loop(lambda h, i: (program(s, int(i), h * w), None), start, torch.arange(steps))
    return torch.autograd.grad(last.sum(), (start, w))


def plain(step, h, steps):
    for i in steps:
        h, _ = step(h, i)
    return h


LOSING = [first_carry, last_carry, last_result, every_third, only_the_third, attention_over_a_list]


@pytest.mark.parametrize("how", BUDGETS, ids=str)
@pytest.mark.parametrize("steps", [2, 6, 13])
@pytest.mark.parametrize("program", [*LOSING, in_an_object_of_its_own], ids=lambda program: program.__name__)
def test_a_gradient_that_flows_besides_the_carry_is_exact_or_an_error(program, steps, how):
    expected = gradient(program, steps, plain)
    try:
        found = gradient(program, steps, lambda *args: remat.scan(*args, **how)[0])
    except remat.StepError:
        pass  # which one: the next test
    else:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("program", LOSING, ids=lambda program: program.__name__)
def test_it_is_an_error_where_steps_run_without_a_tape(program):
    with pytest.raises(remat.StepError, match="Pass it through the carry"):
        gradient(program, 13, lambda *args: remat.scan(*args, slots=1)[0])


@pytest.mark.parametrize("program", LOSING, ids=lambda program: program.__name__)
def test_it_is_exact_where_one_tape_has_all_steps(program):
    expected = gradient(program, 13, plain)
    found = gradient(program, 13, lambda *args: remat.scan(*args, memory="4 MiB")[0])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def a_detached_one(s, i, h):
    change = 0.0 if s.kept is None else (h - s.kept.detach()).pow(2).mean()
    s.kept = h
    return torch.tanh(h) + 0 * change


def one_for_a_decision(s, i, h):
    """The norm has a graph, but no result depends on it."""
    settled = s.kept is not None and (h - s.kept).norm().item() < 1e-3
    s.kept = torch.sin(h)
    return torch.tanh(h) if settled else torch.sin(h)


def one_that_is_compared(s, i, h):
    better = s.kept is None or bool((h.sum() < s.kept).item())
    s.kept = h.sum()
    return torch.tanh(h) if better else torch.sin(h)


def a_running_mean(s, i, h):
    s.kept = h.detach().mean() if s.kept is None else 0.9 * s.kept + 0.1 * h.detach().mean()
    return h * 0.5 + s.kept


def a_running_mean_in_place(s, i, h):
    if s.kept is None:
        s.kept = torch.zeros(2, dtype=DOUBLE)
    with torch.no_grad():
        s.kept.mul_(0.9).add_(0.1 * h)
    s.log.append(h.sum())
    return h * 0.5 + s.kept.mean()


def a_sum_in_place(s, i, h):
    if s.kept is None:
        s.kept = h.sum()
    else:
        s.kept += h.sum()
    return torch.tanh(h)


def a_view_that_is_looked_at(s, i, h):
    largest = 0.0 if s.kept is None else s.kept.max().item()
    s.kept = (h * 2)[:1]
    return torch.tanh(h) / (1 + largest)


def a_table_from_the_third_step(s, i, h):
    if i == 3:
        s.kept = torch.linspace(0, 1, 2, dtype=DOUBLE)
    return h * 0.5 if s.kept is None else h * 0.5 + s.kept * h


def a_log_under_no_grad(s, i, h):
    s.log.append(h)
    with torch.no_grad():
        largest = torch.stack(s.log).abs().max()
    return torch.tanh(h) / (1 + largest)


HARMLESS = [
    *(a_detached_one, one_for_a_decision, one_that_is_compared, a_running_mean, a_running_mean_in_place),
    *(a_table_from_the_third_step, a_log_under_no_grad, a_sum_in_place, a_view_that_is_looked_at),
]


@pytest.mark.parametrize("how", BUDGETS, ids=str)
@pytest.mark.parametrize("steps", [2, 6, 13])
@pytest.mark.parametrize("program", HARMLESS, ids=lambda program: program.__name__)
def test_what_has_no_gradient_may_be_left_for_later_steps(program, steps, how):
    expected = gradient(program, steps, plain)
    found = gradient(program, steps, lambda *args: remat.scan(*args, **how)[0])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_the_start_may_be_left_where_it_wants_no_gradient():
    start, w = torch.zeros(2, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE, requires_grad=True)

    def run(loop):
        s = SimpleNamespace(kept=None)

        def step(h, x):
            s.kept = h if s.kept is None else s.kept
            return torch.tanh(w * h + x + s.kept), None

        return torch.autograd.grad(loop(step, start, torch.ones(9, 2, dtype=DOUBLE)).sum(), w)[0]

    assert torch.equal(run(lambda *args: remat.scan(*args, slots=2)[0]), run(plain))

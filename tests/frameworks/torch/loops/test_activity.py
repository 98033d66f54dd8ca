"""Which leaves gradients flow through is known from all steps, not from the first alone; a budget is never ignored."""

import copy

import pytest
import torch

import remat
from tests.frameworks.torch.programs import DOUBLE, Counted, assert_same, plain_scan, weigh

BUDGETS = [{"slots": 1}, {"slots": 3}, {"slots": 20}, {"memory": "1 MiB"}]


def problem():
    torch.manual_seed(0)
    cell, head = torch.nn.GRUCell(4, 4, dtype=DOUBLE), torch.nn.Linear(4, 1, dtype=DOUBLE)
    xs = torch.randn(12, 2, 4, dtype=DOUBLE), torch.arange(12)
    return cell, head, xs, (torch.zeros(2, 4, dtype=DOUBLE), torch.zeros((), dtype=DOUBLE))


def late_output(cell, head):
    def step(carry, given):
        h, t = cell(given[0], carry[0]), given[1]
        return (h, carry[1]), head(h).pow(2).mean() if int(t) == 6 else torch.zeros((), dtype=DOUBLE)

    return step


def late_sum(cell, head):
    def step(carry, given):
        h, t = cell(given[0], carry[0]), given[1]
        return (h, carry[1] + head(h).pow(2).mean() if int(t) == 6 else carry[1]), None

    return step


def burn_in(cell, head):
    def step(carry, given):
        with torch.set_grad_enabled(torch.is_grad_enabled() and int(given[1]) >= 5):
            h = cell(given[0], carry[0])
        return (h, carry[1]), head(h).pow(2).mean()

    return step


@pytest.mark.parametrize("how", BUDGETS, ids=str)
@pytest.mark.parametrize("program", [late_output, late_sum, burn_in])
def test_gradients_that_flow_from_some_later_step_on(program, how):
    cell, head, xs, init = problem()
    wanted = [*cell.parameters(), *head.parameters()]

    def run(loop, **budget):
        results = loop(program(cell, head), init, xs, **budget)
        return results[0][1].requires_grad, torch.autograd.grad(weigh(results), wanted, allow_unused=True)

    (flows, found), (plainly, expected) = run(remat.scan, **how), run(plain_scan)
    assert flows == plainly
    assert_same(found, expected)


def test_a_first_step_that_wants_no_gradient_does_not_switch_the_budget_off():
    cell, head, xs, init = problem()

    @Counted
    def step(h, given):
        if int(given[1]) < 5:
            with torch.no_grad():
                return cell(given[0], h), torch.zeros((), dtype=DOUBLE)
        h = cell(given[0], h)
        return h, head(h).pow(2).mean()

    losses = remat.scan(step, init[0], xs, slots=3)[1]
    assert type(losses.grad_fn).__name__ == "LoopFunctionBackward"
    losses.sum().backward()
    assert step.calls == remat.plan(remat.Loop(12), slots=3).forward_steps


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("how", BUDGETS, ids=str)
def test_a_constant_carry_beside_a_parameter(how, length):
    w, one = torch.full((3,), 0.7, dtype=DOUBLE, requires_grad=True), torch.ones(3, dtype=DOUBLE)

    def run(step, init, loop, **budget):
        carry, ys = loop(step, init, None, length=length, **budget)
        return torch.autograd.grad(weigh((carry, ys)), [w])

    for step, init in (
        (lambda h, _: (h + 1, h * w), one),
        (lambda c, _: ((c[0] * w + c[1], c[1] + 1), None), (one, one)),
        (lambda c, _: ((c[1] * w, c[1] + 1), None), (one, one)),
    ):
        assert_same(run(step, init, remat.scan, **how), run(step, init, plain_scan))


def test_what_is_constant_in_all_steps_requires_no_gradient():
    w = torch.ones(3, dtype=DOUBLE, requires_grad=True)
    (t, h), seen = remat.scan(
        lambda c, _: ((c[0] + 0.1, c[1] * w + c[0]), c[1].detach().sum()),
        (torch.zeros((), dtype=DOUBLE), torch.ones(3, dtype=DOUBLE)),
        length=9,
        slots=2,
    )
    assert (t.requires_grad, h.requires_grad, seen.requires_grad) == (False, True, False)


def test_a_constant_that_a_step_returns_stays_the_users_own():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.full((3, 3), 0.2, dtype=DOUBLE))
            self.register_buffer("zero", torch.zeros(3, dtype=DOUBLE))

        def forward(self, carry, x):
            h = torch.tanh(carry[0] @ self.w + x)
            return (self.zero if carry[1] % 4 == 3 else h, carry[1] + 1), h.sum()

    net, xs = Net(), torch.linspace(-2, 2, 24, dtype=DOUBLE).view(8, 3)
    for _ in range(2):
        found, expected = (
            torch.autograd.grad(weigh(loop(net, (net.zero * 1, 0), xs, **how)[1]), [net.w])
            for loop, how in ((remat.scan, {"slots": 3}), (plain_scan, {}))
        )
        assert_same(found, expected)
        assert not net.zero.requires_grad
    copy.deepcopy(net)


@pytest.mark.parametrize(
    "how", [{"slots": 2}, {"slots": 3, "check": "always"}, {"memory": "1 MiB"}, {"memory": 3000}], ids=str
)
def test_a_counter_that_decides_where_gradients_stop(how):
    class Cell(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.w, self.k = torch.nn.Parameter(torch.randn(3, 3, dtype=DOUBLE) * 0.6), 0

        def forward(self, h, x):
            self.k += 1
            h = torch.tanh((h.detach() if self.k % 4 == 0 else h) @ self.w + x)
            return h, h.sum()

    def run(loop, **budget):
        cell = Cell()
        weigh(loop(cell, torch.zeros(3, dtype=DOUBLE), xs, **budget)).backward()
        return cell.k, [cell.w.grad]

    xs = torch.randn(12, 3, dtype=DOUBLE)
    (count, found), (plainly, expected) = run(remat.scan, **how), run(plain_scan)
    assert count == plainly == 12
    assert_same(found, expected)


@pytest.mark.parametrize("how", [{"slots": 3}, {"memory": "1 MiB"}], ids=str)
def test_a_buffer_that_is_written_through_data(how):
    class Cell(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = torch.nn.GRUCell(4, 4)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, h, x):
            self.seen.data += 1
            return self.cell(x, h), None

    cell = Cell()
    remat.scan(cell, torch.zeros(2, 4), torch.ones(20, 2, 4), **how)[0].sum().backward()
    assert cell.seen == 20


@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 3}], ids=str)
@pytest.mark.parametrize("cut_at", [3, 5])
def test_inputs_of_steps_before_one_that_detaches_its_carry_are_not_connected(cut_at, how):
    """Nothing behind `xs` runs in a plain loop whose last steps depend on none of it: no hook is called with zeros."""

    def run(loop):
        w, calls = torch.full((3,), 0.5, dtype=DOUBLE, requires_grad=True), []
        behind = torch.sin(w)
        behind.register_hook(calls.append)
        count = [0]

        def step(h, x):
            count[0] += 1
            h = torch.tanh(h + x)
            return (torch.tanh(h.detach() @ weight) if count[0] >= cut_at else h), None

        weight = torch.full((3, 3), 0.3, dtype=DOUBLE, requires_grad=True)
        last, _ = loop(step, behind, torch.ones(5, 3, dtype=DOUBLE) * behind)
        last.sum().backward()
        return w.grad, weight.grad, len(calls)

    found, expected = run(lambda *args: remat.scan(*args, **how)), run(plain_scan)
    assert found[0] is expected[0] is None
    assert torch.equal(found[1], expected[1])
    assert found[2] == expected[2] == 0

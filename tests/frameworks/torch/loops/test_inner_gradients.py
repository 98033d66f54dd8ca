"""Steps that differentiate themselves: forces of energies, samplers, inner updates; by autograd and by torch.func."""

from types import SimpleNamespace

import pytest
import torch
from torch.func import grad, jacrev

import remat
from tests.frameworks.torch.programs import DOUBLE, plain_scan

BUDGETS = [{"slots": 1}, {"slots": 3}, {"memory": "1 MiB"}]


def energy(w, q):
    return torch.tanh(q @ w).pow(2).sum()


def force_at_the_carry(w, q):
    q = q if q.requires_grad else q.detach().requires_grad_()
    (slope,) = torch.autograd.grad(energy(w, q), q, create_graph=True)
    return q - 0.1 * slope


def force_at_a_function_of_the_carry(w, q):
    at = q * 2
    (slope,) = torch.autograd.grad(energy(w, at), at, create_graph=True)
    return q - 0.1 * slope


def with_noise(w, q):
    return force_at_the_carry(w, q + 0.1 * torch.randn(3, dtype=DOUBLE))


def force_at_a_leaf_of_its_own(w, q):
    """The result depends on the leaf by the graph of its gradient, and nobody asks for the leaf's own gradient."""
    at = torch.nn.Parameter(q.detach().clone())
    (slope,) = torch.autograd.grad(energy(w, at), at, create_graph=True)
    return q - 0.1 * slope


def by_torch_func(w, q):
    return q - 0.1 * grad(lambda q: energy(w, q))(q)


class Counting:
    """A step that counts itself, before it differentiates."""

    def __init__(self):
        self.count = 0

    def __call__(self, w, q):
        self.count += 1
        return force_at_the_carry(w, q) + 0.01 * self.count


def run(loop, inner, **how):
    torch.manual_seed(0)
    w, q = torch.randn(3, 3, dtype=DOUBLE, requires_grad=True), torch.ones(3, dtype=DOUBLE, requires_grad=True)
    last, ys = loop(lambda q, _: (inner(w, q), q.sum()), q, None, length=12, **how)
    return [last.detach(), ys.detach(), *torch.autograd.grad(last.sum() + ys.pow(2).sum(), (w, q)), torch.rand(2)]


@pytest.mark.parametrize("how", BUDGETS, ids=str)
@pytest.mark.parametrize(
    "inner",
    [
        force_at_the_carry,
        force_at_a_function_of_the_carry,
        force_at_a_leaf_of_its_own,
        with_noise,
        by_torch_func,
    ],
)
def test_a_step_may_differentiate(inner, how):
    for one, other in zip(run(remat.scan, inner, **how), run(plain_scan, inner), strict=True):
        assert torch.equal(one, other)


def test_a_step_that_is_tried_without_grad_leaves_no_trace():
    """The forward alone: what the reverse sweep leaves is tested with the state that steps change."""
    w, q = torch.eye(3, dtype=DOUBLE, requires_grad=True), torch.ones(3, dtype=DOUBLE)

    def result(loop, **how):
        inner = Counting()
        return loop(lambda q, _: (inner(w, q), None), q, None, length=12, **how)[0].detach(), inner.count

    found, expected = result(remat.scan, slots=3), result(plain_scan)
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1] == 12


@pytest.mark.parametrize("how", BUDGETS, ids=str)
def test_a_hook_that_needs_grad(how):
    def inner(w, q):
        q.register_hook(lambda g: g.clamp(-0.1, 0.1))
        return torch.tanh(q @ w)

    def gradient(loop, **how):
        w, q = torch.full((3, 3), 0.3, dtype=DOUBLE, requires_grad=True), torch.ones(3, dtype=DOUBLE).requires_grad_()
        return torch.autograd.grad(loop(lambda q, _: (inner(w, q), None), q, None, length=9, **how)[0].sum(), (w, q))

    torch.testing.assert_close(gradient(remat.scan, **how), gradient(plain_scan), rtol=1e-13, atol=0)


def test_an_error_of_the_step_stays_its_own():
    w = torch.full((3,), 2.0, requires_grad=True)

    def step(h, _):
        if float(h.detach()[0]) > 6:
            raise RuntimeError("the gradient of the stock market")
        return h * w, None

    with pytest.raises(RuntimeError, match="stock market"):
        remat.scan(step, torch.ones(3), length=9, slots=2)


# Under torch.func.


def checkpoint_in_a_step(w, loop, **how):
    segment = (lambda f, h: f(h)) if loop is plain_scan else remat.checkpoint
    return loop(lambda h, _: (segment(lambda h: torch.tanh(h @ w), h), None), ONE, None, length=5, **how)[0].sum()


def gradient_in_a_step(w, loop, **how):
    return loop(lambda h, _: (grad(lambda q: energy(w, q))(h), None), ONE, None, length=5, **how)[0].sum()


def integer_output(w, loop, **how):
    return loop(lambda h, _: (torch.tanh(h @ w), h.argmax()), ONE, None, length=5, **how)[0].sum()


def integer_carry(w, loop, **how):
    start = ONE, torch.tensor(0)
    return loop(lambda c, _: ((torch.tanh(c[0] @ w), c[1] + 1), None), start, None, length=5, **how)[0][0].sum()


ONE = torch.ones(3, dtype=DOUBLE)


@pytest.mark.parametrize("how", [{"slots": 2}, {"memory": "1 MiB"}, {"memory": 1400}], ids=str)
@pytest.mark.parametrize(
    ("loss", "derive"),
    [
        (checkpoint_in_a_step, grad),
        (gradient_in_a_step, grad),
        (integer_output, lambda f: jacrev(jacrev(f))),
        (integer_carry, lambda f: jacrev(jacrev(f))),
    ],
)
def test_loops_in_functions_that_torch_func_differentiates(loss, derive, how):
    w = torch.linspace(-1, 1, 9, dtype=DOUBLE).view(3, 3)
    found, expected = derive(lambda w: loss(w, remat.scan, **how))(w), derive(lambda w: loss(w, plain_scan))(w)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_steps_that_differentiate_themselves_in_a_loop_in_a_segment():
    def gradients(checkpoint, scan):
        torch.manual_seed(0)
        m, w = (torch.randn(4, 4, dtype=torch.float64).requires_grad_() for _ in range(2))
        cell = SimpleNamespace(m=m)

        def step(h, x):
            h = torch.tanh(h * cell.made)
            with torch.enable_grad():
                q = h if h.requires_grad else h.detach().requires_grad_()
                (slope,) = torch.autograd.grad(torch.tanh(q @ w).pow(2).sum(), q, create_graph=True)
            return torch.sin(h) - 0.1 * slope + cell.m.shape[0], None

        def segment(h):
            cell.made = torch.tanh(cell.m)  # each gradient in a step runs this again
            return torch.tanh(scan(step, h, length=5)[0])

        checkpoint(segment, torch.ones(4, 4, dtype=torch.float64)).sum().backward()
        return m.grad, w.grad

    ours = gradients(remat.checkpoint, lambda *args, **how: remat.scan(*args, **how, slots=1))
    plain = gradients(lambda fn, h: fn(h), lambda step, h, length: plain_scan(step, h, (), length=length))
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=0)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_segment_inside_that_exchanges_data_leaves_no_trace(budget):
    """Its recomputation stops before the data is put back, also where the loop waits for a first use of the weight."""
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 9, dtype=DOUBLE).view(3, 3))

    def rounded(q):
        kept = weight.data
        weight.data = (kept * 8).round() / 8
        q = torch.tanh(q @ weight)
        weight.data = kept
        return q

    def run(loop, call, **how):
        def step(q, x):
            at = q.detach().requires_grad_()
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(call(rounded, at).sum(), at)
            return q * x - 0.1 * slope, None

        x = torch.ones(6, dtype=DOUBLE, requires_grad=True)
        return torch.autograd.grad(loop(step, torch.ones(3, dtype=DOUBLE), x, **how)[0].sum(), x)[0]

    before = weight.data
    found = run(remat.scan, remat.checkpoint, **budget)
    assert weight.data_ptr() == before.data_ptr()
    assert torch.equal(found, run(plain_scan, lambda fn, q: fn(q)))

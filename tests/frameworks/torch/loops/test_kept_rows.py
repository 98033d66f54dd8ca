"""Kept states that are rows of the outputs: not held twice, and computed again if the caller writes into these."""

import pytest
import torch

import remat
from remat.frameworks.torch.meter import StorageMeter

STEPS, DOUBLE = 40, torch.float64


@pytest.fixture
def values():
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=DOUBLE).div(3).requires_grad_() for shape in ((8, 8), (3, 8))]


def noisy(h, w):
    return torch.tanh(h @ w + 0.1) + 0.1 * torch.rand(3, 8, dtype=DOUBLE)


def plain(w, h):
    torch.manual_seed(5)
    for _ in range(STEPS):
        h = noisy(h, w)
    return h


def write_without_grad(states):
    with torch.no_grad():
        for state in states[1:4]:
            state.zero_()


def write_with_grad(states):
    for state in states:
        state.add_(1.0)


def write_unseen_by_autograd(states):
    for state in states:
        state.data[0, 0] += 1e-14


@pytest.mark.parametrize("count", [None, 5])
@pytest.mark.parametrize("write", [write_without_grad, write_with_grad, write_unseen_by_autograd])
def test_returned_states_may_be_written_into_before_the_backward(values, write, count):
    w, h = values
    expected = torch.autograd.grad(plain(w, h).sum(), (w, h))
    torch.manual_seed(5)
    final, states = remat.checkpointed_loop(lambda h: noisy(h, w), h, STEPS, count)
    write([states[position] for position in sorted(states)])
    assert all(map(torch.equal, torch.autograd.grad(final.sum(), (w, h)), expected))


def test_so_may_the_outputs_of_a_scan(values):
    w, h = values
    expected = torch.autograd.grad(plain(w, h).sum(), (w, h))
    torch.manual_seed(5)
    final, states = remat.scan(lambda h, _: (noisy(h, w),) * 2, h, None, length=STEPS, slots=5)
    with torch.no_grad():
        states[3:30] *= 2
    assert all(map(torch.equal, torch.autograd.grad(final.sum(), (w, h)), expected))


def test_a_carry_that_is_handed_on_shares_no_memory_with_the_outputs(values):
    w, h = values

    def step(carry, _):
        return (noisy(carry[0], w), carry[1]), carry[1]

    (_, last), outputs = remat.scan(step, (h, h * 2.0), None, length=STEPS, slots=5)
    assert last.untyped_storage().data_ptr() != outputs.untyped_storage().data_ptr()


def test_kept_states_take_no_memory_beside_the_outputs(values):
    w, h = values

    def peak(returned):
        def step(h, _):
            h = torch.tanh(h @ w)
            return h, h if returned else h * 1.0

        meter = StorageMeter()
        with meter:
            remat.scan(step, h, None, length=STEPS, slots=STEPS // 2)
        return meter.peak()

    assert peak(returned=True) < peak(returned=False) - (STEPS // 2 - 4) * h.nbytes


@pytest.mark.parametrize("kind", ["complex", "transposed", "conjugate", "bfloat16", "none"])
def test_every_kind_of_carry_is_kept(kind):
    """Also those whose rows would be read otherwise, and are copied."""
    torch.manual_seed(0)
    dtype = {"complex": torch.complex128, "conjugate": torch.complex128, "bfloat16": torch.bfloat16}.get(kind, DOUBLE)
    h = torch.randn(0 if kind == "none" else 4, 4, dtype=dtype, requires_grad=True)

    def step(h, _):
        h = torch.tanh(h * 1.1 + 0.1)
        h = h.T if kind == "transposed" else h.conj() if kind == "conjugate" else h
        return h, h

    def run(loop):
        final, states = loop(h)
        value = final.abs().sum() + (states[3:7] * 0.5).abs().sum()
        return torch.autograd.grad(value, h)[0]

    def plainly(h):
        states = []
        for _ in range(12):
            h, y = step(h, None)
            states.append(y)
        return h, torch.stack(states)

    assert torch.equal(run(plainly), run(lambda h: remat.scan(step, h, None, length=12, slots=3)))


@pytest.mark.parametrize("budget", [{"slots": 3}, {"slots": 100}, {"memory": "1 MiB"}])
@pytest.mark.parametrize("write", [lambda ys: ys.mul_(2.0), lambda ys: ys[3:5].zero_()], ids=["all", "rows"])
def test_stacked_outputs_may_be_written_into_as_those_of_a_plain_loop(values, budget, write):
    w, h = values

    def step(h, _):
        h = torch.sin(h @ w + 0.1)
        return h, h

    def gradients(last, ys):
        write(ys)
        return torch.autograd.grad(last.sum() + ys.square().sum(), values)

    states = [h]
    for _ in range(STEPS):
        states.append(step(states[-1], None)[0])
    expected = gradients(states[-1], torch.stack(states[1:]))
    found = gradients(*remat.scan(step, h, length=STEPS, **budget))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)

"""Loops and segments on a CUDA device: the same gradients, budgets by its allocator, its random numbers replayed."""

import itertools

import pytest
import torch

import remat
from remat.frameworks.torch.meter import CudaMeter
from tests.frameworks.torch.programs import LSTM, assert_same, gradients, plain_scan, weigh

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def lstm(size=64, batch=8, steps=60, dtype=torch.float64):
    torch.manual_seed(0)
    cell = LSTM(size, dtype).cuda()
    carry = tuple(torch.randn(batch, size, dtype=dtype, device="cuda", requires_grad=True) for _ in range(2))
    xs = torch.randn(steps, batch, size, dtype=dtype, device="cuda", requires_grad=True)
    return cell, carry, xs, [*cell.parameters(), *carry, xs]


@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 7}, {"memory": "4 MiB"}])
def test_gradients_are_the_plain_loops(how):
    cell, carry, xs, wanted = lstm(steps=20)
    expected = gradients(plain_scan, cell, carry, xs, wanted)[1]
    assert_same(gradients(remat.scan, cell, carry, xs, wanted, **how)[1], expected, bitwise=False, tolerance=1e-11)


@pytest.mark.parametrize("how", [{"slots": 4}, {"memory": "4 MiB"}])
def test_dropout_is_replayed_and_the_stream_goes_on(how):
    def run(loop, **how):
        cell, carry, xs, wanted = lstm(steps=20)
        torch.manual_seed(1)

        def step(carry, x):
            (h, c), y = cell(carry, x)
            return (torch.nn.functional.dropout(h, 0.3), c), y

        return [*gradients(loop, step, carry, xs, wanted, **how)[1], torch.rand(3, device="cuda")]

    assert_same(run(remat.scan, **how), run(plain_scan), bitwise=False, tolerance=1e-11)


def test_leaves_on_several_devices():
    W = torch.full((4, 4), 0.2, dtype=torch.float64, device="cuda", requires_grad=True)
    b = torch.full((4,), 0.1, dtype=torch.float64, requires_grad=True)
    init = (torch.ones(3, 4, dtype=torch.float64, device="cuda"), torch.ones(4, dtype=torch.float64))

    def step(carry, _):
        h, c = carry
        return (torch.tanh(h @ W + c.cuda()), torch.sin(c + b)), h

    def run(loop, **how):
        return torch.autograd.grad(weigh(loop(step, init, None, length=9, **how)), [W, b])

    assert_same(run(remat.scan, slots=3), run(plain_scan), bitwise=False)


@pytest.mark.parametrize("budget", [24, 40, 80])
def test_peaks_stay_within_the_budget(budget):
    cell, carry, xs, _ = lstm(256, 64, 300, torch.float32)
    for _ in range(2):
        cell.zero_grad()
        xs.grad = None
        meter = CudaMeter(xs.device)
        meter.reset_peak()
        before = meter.now()
        remat.scan(lambda c, x: (cell(c, x)[0], None), carry, xs, memory=budget << 20)[0][0].sum().backward()
    always = sum(t.numel() * 4 for t in (xs, *cell.parameters(), *carry))
    assert 0.5 * (budget << 20) < meter.peak() - before - always <= budget << 20


def test_a_fraction_is_of_what_is_free_on_the_device():
    cell, carry, xs, _ = lstm(steps=10)
    with remat.profile() as run:
        remat.scan(cell, carry, xs, memory=0.5)[0][0].sum().backward()
    free = torch.cuda.mem_get_info()[0]
    assert 0.3 * free < run.calls[0].budget < 0.7 * (free + 2**30)


def test_a_step_that_does_not_fit_the_device_is_refused_with_numbers():
    W = torch.ones(4, device="cuda", requires_grad=True)

    def step(carry, _):
        i, h = carry
        wide = (h * W)[:, None] * torch.ones(1, 2**40 if i else 1, device="cuda")
        return (i + 1, torch.tanh(wide).sum(1)), None

    with pytest.raises((remat.InfeasibleError, torch.cuda.OutOfMemoryError)):
        remat.scan(step, (0, torch.ones(4, device="cuda")), length=5, memory="1 GiB")


def test_a_step_that_gives_something_else_again_is_named_with_its_leaf():
    cell, carry, xs, _ = lstm(steps=20)
    calls = itertools.count(1)  # not replayed, as lists and attributes are

    def step(carry, x):
        (h, c), _ = cell(carry, x)
        return (h, c + (0.01 if next(calls) > 20 else 0.0)), None

    loss = weigh(remat.scan(step, carry, xs, slots=3))
    with pytest.raises(remat.DeterminismError, match=r"carry\[[01]\] .* after step \d+"):
        loss.backward()


def test_autocast_is_as_it_was():
    cell, carry, xs, wanted = lstm(dtype=torch.float32)
    seen = set()

    def step(carry, x):
        h, c = carry
        gates = cell.gates(torch.cat([x, h], -1))
        seen.add(gates.dtype)
        return (torch.tanh(gates[:, :64]).float(), c), None

    def run(loop, **how):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loop(step, carry, xs, **how)[0][0].sum()
        return torch.autograd.grad(loss, wanted[:2])

    assert_same(run(remat.scan, slots=5), run(plain_scan), bitwise=False, tolerance=0.05)
    assert seen == {torch.bfloat16}


def test_segments_drop_what_they_hold_and_replay_dropout():
    torch.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Dropout(0.1)).cuda()
    x = torch.randn(512, 256, device="cuda", requires_grad=True)

    def run(call):
        torch.manual_seed(1)
        before = torch.cuda.memory_allocated()
        y = call(block, x).sum(1)
        held = torch.cuda.memory_allocated() - before
        found = torch.autograd.grad(y.square().sum(), [x, *block.parameters()])
        return found, held, torch.rand(3, device="cuda")

    plain, dropped = run(lambda block, x: block(x)), run(remat.checkpoint)
    assert_same(dropped[0], plain[0])
    assert torch.equal(dropped[2], plain[2])
    assert dropped[1] < plain[1] - 2 * 2**20


@pytest.mark.parametrize("budget", [{"slots": 1}, {"slots": 3}, {"memory": "1 MiB"}], ids=str)
def test_statistics_that_kernels_write_without_a_new_version(budget):
    def run(loop, **budget):
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm1d(4).cuda()
        h = torch.randn(6, 4, device="cuda", requires_grad=True)
        loop(lambda h, _: (norm(h) * 1.1 + 0.1, None), h, torch.zeros(5, device="cuda"), **budget)[
            0
        ].sin().sum().backward()
        return norm.running_mean, norm.running_var, norm.weight.grad

    for mine, theirs in zip(run(remat.scan, **budget), run(plain_scan), strict=True):
        torch.testing.assert_close(mine, theirs)

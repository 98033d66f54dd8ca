"""Memory on PyTorch: no more states than slots, peaks within budgets, nothing left behind, nothing that grows."""

import tracemalloc
import weakref

import pytest
import torch

import remat
from remat.frameworks.torch.meter import StorageMeter
from tests.frameworks.torch.programs import DOUBLE, LSTM, Counted, lstm, plain_scan


def sized(size, batch, steps):
    torch.manual_seed(0)
    cell = LSTM(size, torch.float32)
    return cell, (torch.zeros(batch, size),) * 2, torch.randn(steps, batch, size)


@pytest.mark.parametrize("budget", ["2 MiB", "3 MiB", "6 MiB", "12 MiB"])
def test_peaks_stay_within_the_budget_and_use_it(budget):
    from remat.units import to_bytes

    cell, carry, xs = sized(64, 16, 300)
    remat.scan(cell, carry, xs, memory=budget)[0][0].sum().backward()
    cell.zero_grad()
    always = sum(p.numel() * 4 for p in cell.parameters()) + xs.numel() * 4  # gradients of parameters; outputs
    meter = StorageMeter()
    with meter.counting():
        loss = remat.scan(cell, carry, xs, memory=budget)[0][0].sum()
        loss.backward()
    assert 0.6 * to_bytes(budget, "budget") < meter.peak() - always <= to_bytes(budget, "budget")


def test_predicted_and_measured_peaks_agree():
    cell, carry, xs = sized(64, 16, 200)
    with remat.profile() as run:
        remat.scan(cell, carry, xs, memory="4 MiB")[0][0].sum().backward()
    (call,) = run.calls
    assert call.trace.peak == pytest.approx(call.plan.peak, rel=0.02)
    assert call.trace.forward_steps == call.plan.forward_steps


def test_measuring_changes_nothing():
    cell, carry, xs, _ = lstm()
    norm = torch.nn.BatchNorm1d(5, dtype=DOUBLE)

    def step(carry, x):
        return (norm(cell(carry, x)[0][0]), carry[1] + torch.rand(1, dtype=DOUBLE)), None

    torch.manual_seed(3)
    found = remat.scan(step, carry, xs, memory="1 MiB")[0], [b.clone() for b in norm.buffers()], torch.rand(2)
    norm.reset_running_stats()
    torch.manual_seed(3)
    expected = plain_scan(step, carry, xs)[0], [b.clone() for b in norm.buffers()], torch.rand(2)
    assert all(torch.equal(a, b) for a, b in zip(found[0], expected[0], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))
    assert torch.equal(found[2], expected[2])
    assert cell.gates.weight.grad is None


def test_steps_that_look_at_numbers_are_measured_as_they_are():
    W = torch.full((8, 8), 0.1, dtype=DOUBLE, requires_grad=True)

    def step(h, _):
        return (torch.tanh(h @ W) if float(h.detach().sum()) > 0 else h @ W), None

    remat.scan(step, torch.ones(4, 8, dtype=DOUBLE), length=40, memory="64 KiB")[0].sum().backward()
    assert W.grad is not None


def test_a_step_that_does_not_fit_the_machine_is_refused_before_it_is_run_again(monkeypatch):
    # 16 MiB are free: a step needs more than that.
    monkeypatch.setattr("remat.frameworks.torch.loops.measure.free_host_bytes", lambda: 16 * 2**20)
    W = torch.ones(4, requires_grad=True)

    def step(h, _):
        return torch.tanh((h * W)[:, None] * torch.ones(1, 2**20)).sum(1), None

    with pytest.raises(remat.InfeasibleError, match=r"a single step takes [\d.]+ MiB and 16 MiB are free"):
        remat.scan(counted := Counted(step), torch.ones(4), length=5, memory="1 MiB")
    assert counted.calls == 1  # the first step, whose results the loop needs: what it takes is not known before


def test_states_are_freed_as_the_sweep_passes_them_even_if_the_graph_is_retained(no_collector):
    W = torch.full((3, 3), 0.3, dtype=DOUBLE, requires_grad=True)
    alive = []

    def step(h, _):
        after = torch.tanh(h @ W)
        alive.append(weakref.ref(after.untyped_storage()))
        return after, None

    loss = remat.scan(step, torch.ones(3, dtype=DOUBLE), length=30, slots=8)[0].sum()
    loss.backward(retain_graph=True)
    assert sum(ref() is not None for ref in alive) <= 1  # the result


def test_host_memory_does_not_grow_with_the_number_of_steps(no_collector):
    W = torch.full((3, 3), 0.3, dtype=DOUBLE, requires_grad=True)

    def held(steps):
        tracemalloc.start()
        loss = remat.scan(lambda h, _: (torch.tanh(h @ W), None), torch.ones(3, dtype=DOUBLE), length=steps, slots=5)[0]
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        loss.sum().backward()
        return size

    held(50)
    assert held(1000) < held(200) + 10_000


def test_a_view_does_not_keep_what_it_is_a_view_of():
    W = torch.full((64, 64), 0.01, dtype=DOUBLE, requires_grad=True)

    def step(h, _):
        wide = torch.tanh(h @ W).expand(50, 64, 64).contiguous()
        return wide[0], None

    meter = StorageMeter()
    with meter.counting():
        loss = remat.scan(step, torch.ones(64, 64, dtype=DOUBLE), length=30, slots=10)[0].sum()
        held = meter.now()
        loss.backward()
    assert held < 16 * 64 * 64 * 8 + 50 * 64 * 64 * 8


@pytest.mark.parametrize("how", [{"slots": 3}, {"memory": "60 KB"}, {"memory": "120 KB"}, {"memory": "10 MiB"}])
@pytest.mark.parametrize("backward", [True, False])
def test_nothing_grows_from_call_to_call(how, backward, no_collector):
    W = torch.randn(1000, requires_grad=True)
    meter = StorageMeter()
    sizes = []
    with meter.counting():
        for _ in range(5):
            h, _ = remat.scan(
                lambda h, x: (torch.tanh(W * h + x), None), torch.zeros(1000), torch.zeros(9, 1000), **how
            )
            if backward:
                h.sum().backward()
            del h
            sizes.append(meter.now())
    assert sizes[-1] == sizes[1]


def test_a_profile_holds_no_tensors(no_collector):
    W = torch.randn(1000, requires_grad=True)
    meter = StorageMeter()
    with meter.counting():
        before = meter.now()
        with remat.profile():
            h, _ = remat.scan(lambda h, x: (torch.tanh(W * h), None), torch.zeros(1000), length=9, slots=2)
        del h
        assert meter.now() == before

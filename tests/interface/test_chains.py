"""`remat.chain`: gradients of plain calls, as many evaluations as the plan says, and the memory that it predicts."""

import gc

import autograd.numpy as anp
import jax
import numpy as np
import pytest
import torch
from autograd import grad, jacobian
from torch import nn

import remat
from remat import Chain, InfeasibleError, Loop, ProblemError, Schedule, Stage, plan
from remat.errors import PlannerError
from remat.execute.nested_ranges import Range, nested_ranges
from remat.frameworks import find_framework
from remat.frameworks.numpy.meter import NumpyMeter
from remat.frameworks.torch.meter import StorageMeter
from remat.interface import chain_plans

UNITS = Chain([Stage(output=1, tape=2)] * 9)
PLANS = [plan(UNITS, memory) for memory in (8, 10, 14, 40)]


def count_evaluations(function, counts):
    def counted(x):
        next(counts)  # an iterator is not put back when a segment is recomputed
        return function(x)

    return counted


class Counter:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0

    def __next__(self):
        self.n += 1


@pytest.mark.parametrize("chosen", PLANS, ids=lambda found: f"{found.peak} bytes")
def test_gradients_on_numpy_are_those_of_plain_calls(chosen):
    weights, x = np.random.default_rng(0).normal(size=(9, 4, 4)), np.random.default_rng(1).normal(size=4)
    counts = Counter()

    def total(weights, run):
        return anp.sum(run([count_evaluations(lambda h, w=weights[i]: anp.tanh(w @ h), counts) for i in range(9)]))

    expected = grad(lambda weights: total(weights, lambda stages: plain(stages, x)))(weights)
    counts.n = 0
    found = grad(lambda weights: total(weights, lambda stages: remat.chain(stages, x, plan=chosen)))(weights)
    np.testing.assert_array_equal(found, expected)
    assert counts.n == chosen.forward_steps


@pytest.mark.parametrize("chosen", PLANS, ids=lambda found: f"{found.peak} bytes")
def test_gradients_on_torch_are_those_of_plain_calls(chosen):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Tanh()).double() for _ in range(9)]
    counts = Counter()
    stages = [count_evaluations(layer, counts) for layer in layers]
    x = torch.randn(5, 4, dtype=torch.float64)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]

    def gradients(run):
        torch.manual_seed(3)
        return torch.autograd.grad(run().square().sum(), parameters)

    expected = gradients(lambda: plain(stages, x))
    counts.n = 0
    found = gradients(lambda: remat.chain(stages, x, plan=chosen))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert counts.n == chosen.forward_steps


@pytest.mark.parametrize("chosen", PLANS[::3], ids=lambda found: f"{found.peak} bytes")
def test_gradients_on_jax_are_those_of_plain_calls(chosen):
    weights, x = jax.random.normal(jax.random.key(0), (9, 4, 4)), jax.numpy.ones(4)

    def total(weights, run):
        return run([lambda h, w=weights[i]: jax.numpy.tanh(w @ h) for i in range(9)]).sum()

    expected = jax.grad(lambda weights: total(weights, lambda stages: plain(stages, x)))(weights)
    found = jax.grad(lambda weights: total(weights, lambda stages: remat.chain(stages, x, plan=chosen)))(weights)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def plain(stages, x):
    for stage in stages:
        x = stage(x)
    return x


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def peak_of(run, blocks):
    """The most bytes of storages while the result of `run` is computed and pulled back, with gradients there."""
    for parameter in blocks.parameters():
        parameter.grad = torch.zeros_like(parameter)
    meter = StorageMeter()
    with meter.counting():
        run().sum().backward()
    return meter.peak(), [parameter.grad for parameter in blocks.parameters()]


def test_measured_budgets_are_kept_and_the_peak_is_the_predicted_one():
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block(32).double() for _ in range(10)))
    x = torch.randn(64, 32, dtype=torch.float64)
    measured = remat.measure(blocks, x)
    everything = plan(measured, 10**12, planner="chain-keep-all")
    plain_peak, expected = peak_of(lambda: blocks(x), blocks)
    assert everything.peak == pytest.approx(plain_peak, rel=0.01)
    for share in (0.9, 0.6, 0.4, 0.3, 0.25):
        chosen = plan(measured, int(share * everything.peak))
        statistics = [buffer.clone() for buffer in blocks.buffers()]
        peak, gradients = peak_of(lambda chosen=chosen: remat.chain(blocks, x, plan=chosen), blocks)
        assert 0.95 * chosen.peak <= peak <= 1.01 * chosen.peak
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(statistics, blocks.buffers(), strict=True))
    peak, _ = peak_of(lambda: remat.chain(blocks, x, memory=everything.peak // 3), blocks)
    assert peak <= 1.02 * everything.peak / 3


def test_measuring_leaves_no_trace_and_measures_equal_stages_once():
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block(8) for _ in range(6)))
    blocks[0].up.weight.grad = torch.ones(32, 8)
    before = {name: value.clone() for name, value in blocks.state_dict().items()}
    x = torch.randn(5, 8)
    state = torch.get_rng_state()
    measured = remat.measure(blocks, x)
    assert all(torch.equal(value, before[name]) for name, value in blocks.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(blocks[0].up.weight.grad, torch.ones(32, 8))
    assert all(parameter.grad is None for parameter in list(blocks.parameters())[5:])
    assert [stage.name for stage in measured.stages][:2] == ["0 Block", "1 Block"]
    assert {stage.options for stage in measured.stages[1:]} == {measured.stages[1].options}
    assert measured.stages[0].options != measured.stages[1].options  # the first input requires no gradient


class AddsInPlace(nn.Module):
    def forward(self, x):
        return x.add_(1)


def conv_stages(seed, first=()):
    """Stages as in networks for images: some write into their input, some through a view of it."""
    torch.manual_seed(seed)
    blocks = []
    for _ in range(5):
        blocks += [nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(inplace=True)]
    blocks += [nn.Conv1d(4, 4, 3, padding=1), nn.Flatten(0, 1), AddsInPlace(), nn.ReLU(inplace=True)]
    blocks += [nn.Linear(50, 7), nn.Identity(), AddsInPlace()]
    return nn.Sequential(*first, *blocks).double()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_stages_that_write_into_their_input_are_measured_and_run_with_the_one_before(requires_grad):
    stages = conv_stages(0)
    x = torch.randn(6, 4, 50, dtype=torch.float64, requires_grad=requires_grad)
    numbers = x.detach().clone()
    measured = remat.measure(stages, x)
    assert torch.equal(x, numbers)
    assert [stage.functions for stage in measured.stages] == [1, 2] * 5 + [4, 3]
    assert measured.stages[1].name == "1-2 BatchNorm1d, ReLU"
    assert all(stage.repeatable for stage in measured.stages)
    everything = plan(measured, 10**12, planner="chain-keep-all")
    _, expected = peak_of(lambda: stages(x), stages)
    for share in (1.0, 0.7, 0.5):
        budget = int(share * everything.peak)
        peak, gradients = peak_of(lambda budget=budget: remat.chain(stages, x, memory=budget), stages)
        assert peak <= 1.01 * budget
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
    chosen = plan(Chain.from_json(measured.to_json()), int(0.5 * everything.peak))
    _, gradients = peak_of(lambda: remat.chain(stages, x, plan=chosen), stages)
    assert chosen.recomputed
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


def test_a_stage_that_returns_a_view_is_counted_with_the_one_that_made_the_memory():
    torch.manual_seed(0)
    stages = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Tanh(), nn.Unflatten(1, (4, 8)), nn.Flatten())))
    stages.append(nn.Linear(32, 3))
    x = torch.randn(2000, 32, requires_grad=True)
    measured = remat.measure(stages, x)
    assert [stage.functions for stage in measured.stages] == [3] * 8 + [1]
    for share in (0.7, 0.5, 0.4):
        chosen = plan(measured, int(share * plan(measured, 10**12, planner="chain-keep-all").peak))
        x.grad = torch.zeros_like(x)
        peak, _ = peak_of(lambda chosen=chosen: remat.chain(stages, x, plan=chosen), stages)
        assert chosen.recomputed
        assert peak <= 1.02 * chosen.peak


def test_a_first_stage_that_writes_into_the_input_behaves_as_without_remat():
    stages = conv_stages(0, first=[AddsInPlace()])
    x = torch.randn(6, 4, 50, dtype=torch.float64)
    numbers = x.clone()
    measured = remat.measure(stages, x)
    assert torch.equal(x, numbers)
    assert not measured.stages[0].repeatable
    chosen = plan(measured, int(0.6 * plan(measured, 10**12, planner="chain-keep-all").peak))
    assert chosen.recomputed
    _, expected = peak_of(lambda: stages(numbers.clone()), stages)
    _, gradients = peak_of(lambda: remat.chain(stages, x, plan=chosen), stages)
    assert torch.equal(x, numbers + 1)
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
    with pytest.raises(RuntimeError, match="leaf Variable"):
        remat.chain(stages, numbers.clone().requires_grad_(), plan=chosen)


def arrays_peak(function, x):
    """The gradient, and the most bytes that were allocated for it."""
    meter = NumpyMeter()
    with meter.counting():
        before = meter.now()
        meter.reset_peak()
        gradient = grad(lambda x: anp.sum(function(x)))(x)
        return gradient, meter.peak() - before


def test_measured_budgets_are_kept_on_numpy():
    rng = np.random.default_rng(0)
    weights, x = rng.normal(size=(12, 120, 120)) / 11, rng.normal(size=(120, 180))
    stages = [lambda h, w=w: h + anp.tanh(anp.sin(w @ h) * rng.uniform(1, 2)) for w in weights]
    state = rng.bit_generator.state
    measured = remat.measure(stages, x)
    assert rng.bit_generator.state == state
    expected, most = arrays_peak(lambda x: plain(stages, x), x)
    assert plan(measured, 10**9, planner="chain-keep-all").peak == pytest.approx(most, rel=0.02)
    for share in (1.0, 0.8, 0.65, 0.55):
        budget = int(share * most)
        for _ in range(2):  # in the first call it is measured
            rng.bit_generator.state = state
            found, peak = arrays_peak(lambda x, budget=budget: remat.chain(stages, x, memory=budget), x)
        np.testing.assert_array_equal(found, expected)
        assert peak <= 1.01 * budget
    with pytest.raises(InfeasibleError, match="frees no graph"):
        grad(lambda x: anp.sum(remat.chain(stages, x, memory=most // 4)))(x)
    assert remat.chain(stages, x, memory=1).shape == x.shape  # nothing is differentiated


def test_stages_on_jax_are_measured_and_planned_while_they_are_traced():
    weights, x = jax.random.normal(jax.random.key(0), (6, 16, 16)) / 4, jax.numpy.ones((16, 32))
    stages = [lambda h, w=w: h + jax.numpy.tanh(w @ h) for w in weights]
    measured = remat.measure(stages, x)
    assert len({stage.options for stage in measured.stages}) == 1  # equal programs are compiled once
    state, option = x.nbytes, measured.stages[0].options[0]
    assert (measured.stages[0].output, option.tape % state, option.holds_output) == (state, 0, False)
    assert min(option.record, option.backward) > 0

    def total(weights, x, run):
        return run([lambda h, w=w: h + jax.numpy.tanh(w @ h) for w in weights], x).sum()

    expected = jax.jit(jax.grad(lambda weights: total(weights, x, plain)))(weights)
    keep_all = plan(measured, 10**9, planner="chain-keep-all").peak

    def planned(stages, x):
        return remat.chain(stages, x, memory=keep_all // 2)

    traced = jax.jit(jax.grad(lambda weights: total(weights, x, planned))).trace(weights)
    assert "remat" in str(traced.jaxpr)
    np.testing.assert_allclose(traced.lower().compile()(weights), expected, rtol=1e-4, atol=1e-4)


def test_a_chain_on_numpy_can_be_pulled_back_twice_and_differentiated_again():
    weights, x = np.random.default_rng(0).normal(size=(9, 4, 4)), np.random.default_rng(1).normal(size=4)
    stages = [lambda h, w=w: anp.tanh(w @ h) for w in weights]
    for chosen in PLANS:
        run = lambda x, chosen=chosen: remat.chain(stages, x, plan=chosen)  # noqa: E731
        np.testing.assert_allclose(jacobian(run)(x), jacobian(lambda x: plain(stages, x))(x), rtol=1e-13)
        second = jacobian(grad(lambda x, run=run: anp.sum(run(x))))(x)
        np.testing.assert_allclose(second, jacobian(grad(lambda x: anp.sum(plain(stages, x))))(x), rtol=1e-12)


def test_the_plan_of_a_budget_is_made_once_for_equal_calls(monkeypatch):
    measurements = Counter()
    framework = find_framework(torch.ones(1))
    original = framework.measure_chain
    monkeypatch.setattr(framework, "measure_chain", lambda *args: (next(measurements), original(*args))[1])
    blocks = nn.Sequential(*(Block(8) for _ in range(4)))

    def made(width=5, memory=20_000, stages=blocks, dtype=torch.float32):
        before = measurements.n
        remat.chain(stages, torch.ones(width, 8, dtype=dtype), memory=memory)
        return measurements.n - before

    assert made() == 1
    assert made() == 0
    assert made(memory=30_000) == made(memory="30 kB") == 0  # planned anew
    assert made(memory=0.5) == made(memory=0.25) == 0
    assert made(width=6) == 1
    blocks[2].eval()
    assert made() == 1
    blocks[1].up.weight.requires_grad_(False)
    assert made() == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert made(memory=60_000) == 1
    with torch.no_grad():
        assert made(width=9, memory=1) == 0
    gc.collect()
    held = len(chain_plans._measured)
    lists = [Block(8), Block(8)]
    assert made(stages=lists) == 1
    assert len(chain_plans._measured) == held + 1
    lists.clear()
    gc.collect()
    assert len(chain_plans._measured) == held
    for width in range(20, 24 + chain_plans.MOST_CHAINS):
        made(width, memory=10**9, stages=blocks[:1])
    assert len(chain_plans._measured) == chain_plans.MOST_CHAINS


def test_a_schedule_is_read_as_ranges_inside_ranges():
    text = """keep 0 ram; advance 0 4; record 4 5; turn; pullback 5 4; fetch 0 ram; advance 0 2; record 2 3; record 3 4;
    pullback 4 3; pullback 3 2; fetch 0 ram; drop 0 ram; record 0 2; pullback 2 0"""
    assert nested_ranges(Schedule.parse(text.replace("\n", " ")), 5) == (Range(0, 4, (Range(0, 2, (0, 1)), 2, 3)), 4)
    with pytest.raises(PlannerError, match="segments inside segments"):
        nested_ranges(Schedule.parse("record 0 1; turn; keep 1 ram"), 1)


def test_wrong_arguments_say_what_to_give():
    with pytest.raises(ProblemError, match="either a budget, memory=, or a plan, plan="):
        remat.chain([np.sin], 1.0)
    with pytest.raises(ProblemError, match="a Chain of 9 stages; this is a chain of 1 stages"):
        remat.chain([np.sin], 1.0, plan=PLANS[0])
    with pytest.raises(ProblemError, match="a Loop of 10 steps"):
        remat.chain([np.sin], 1.0, plan=plan(Loop(10), slots=3))
    with pytest.raises(ProblemError, match="a function or a module"):
        remat.chain([3], 1.0, memory=100)
    with pytest.raises(ProblemError, match="between 0 and 1"):
        remat.chain([anp.sin], 1.0, memory=1.5)
    with pytest.raises(InfeasibleError, match="stage"):
        remat.chain([nn.Linear(4, 4), nn.Tanh()], torch.ones(3, 4), memory=10)


def test_the_rest_of_a_range_is_nested_as_before():
    whole = Range(0, 6, (Range(0, 4, (Range(0, 2, (0, 1)), 2, 3)), 4, 5))
    assert whole.rest_from(1) == Range(1, 6, (Range(1, 4, (Range(1, 2, (1,)), 2, 3)), 4, 5))
    assert whole.rest_from(3) == Range(3, 6, (Range(3, 4, (3,)), 4, 5))
    assert whole.rest_from(5) == Range(5, 6, (5,))

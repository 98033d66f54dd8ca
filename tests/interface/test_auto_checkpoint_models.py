"""`remat.auto_checkpoint` on whole models in float64: training is the plain model's to the last bit, inside the budget.

Kernels of the CPU repeat themselves with one thread, so gradients are compared bitwise. Peaks are by the events of
PyTorch's own allocator, which sees what kernels allocate and does not meet our dispatch modes.
"""

import copy
import re
from functools import cache

import pytest
import torch
from benchmarks.models import MODELS

import remat

TRANSFORMERS = ("gpt", "vit")
CONVOLUTIONS = (pytest.param("resnet50", marks=pytest.mark.full), "deep-resnet", "unet")
NAMES = (*TRANSFORMERS, *CONVOLUTIONS)
SHARES = (1.0, 0.5, 0.1)  # of the way from the least feasible budget to plain's peak


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def case_of(name):
    """A tiny model; tests train copies of it."""
    return MODELS[name]("tiny", dtype=torch.float64)


def with_gradients(model):
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model


def allocated_by(case, model):
    """The most bytes that a step allocates above the level before, with gradients there."""
    case.step(with_gradients(model))  # what is made once
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        case.step(model)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@cache
def budgets_of(name):
    """The least budget that works, and plain's peak."""
    case, least = case_of(name), 1
    for _ in range(6):
        try:
            remat.auto_checkpoint(copy.deepcopy(case.model), memory=least, sample=case.sample, loss=case.loss)
            break
        except remat.InfeasibleError as error:
            least = error.minimum
    return least, allocated_by(case, copy.deepcopy(case.model))


def under_budget(name, share):
    """A copy of the model under a budget, and the budget."""
    case, (least, most) = case_of(name), budgets_of(name)
    budget = least + int(share * (most - least))
    model = copy.deepcopy(case.model)
    assert remat.auto_checkpoint(model, memory=budget, sample=case.sample, loss=case.loss) is model
    return case, model, budget


def train(case, model, steps):
    """The gradients of the first step, all losses, and what the model and its optimiser have at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, gradients = [], None
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(case.step(model).item())
        gradients = gradients or {name: value.grad.clone() for name, value in model.named_parameters()}
        optimizer.step()
    return gradients, losses, model.state_dict()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", NAMES)
def test_ten_steps_of_training_are_those_of_the_plain_model_to_the_last_bit(name, share):
    case, model, _ = under_budget(name, share)
    gradients, losses, state = train(case, model, 10)
    expected_gradients, expected_losses, expected_state = train(case, copy.deepcopy(case.model), 10)
    assert losses == expected_losses
    for found, expected in ((gradients, expected_gradients), (state, expected_state)):
        assert found.keys() == expected.keys()
        assert [key for key in found if not torch.equal(found[key], expected[key])] == []


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_least_budget_is_the_one_that_the_error_names(name):
    case = case_of(name)
    with pytest.raises(remat.InfeasibleError) as caught:
        remat.auto_checkpoint(copy.deepcopy(case.model), memory=1, sample=case.sample, loss=case.loss)
    assert caught.value.minimum == budgets_of(name)[0]
    message = str(caught.value)
    assert message.count(" at least") == 2, message  # that it needs, and to give it: one number
    assert "the smallest that works" not in message
    assert re.search(r"for this model with \w+ \[\d+", message), message


@pytest.mark.parametrize("name", NAMES)
def test_peaks_are_the_predicted_ones_inside_the_budget_and_fall_with_it(name):
    peaks = []
    for share in (1.0, 0.5, 0.25, 0.0 if name in TRANSFORMERS else 0.1):
        case, model, budget = under_budget(name, share)
        peaks.append(allocated_by(case, model))
        assert peaks[-1] <= budget
        assert model.remat_plan.peak == pytest.approx(peaks[-1], rel=0.01 if name in TRANSFORMERS else 0.1)
    assert peaks == sorted(peaks, reverse=True)


def layers(count):
    return torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(count)])


def test_a_plan_for_a_model_with_fewer_blocks_is_refused_where_it_ends():
    planned = remat.auto_checkpoint(layers(4), memory="1 MiB", sample=torch.randn(4, 8))
    longer = remat.auto_checkpoint(layers(6), plan=planned.remat_plan)
    with pytest.raises(remat.ProblemError, match=r"number 4.*that its plan= does not know"):
        longer(torch.randn(4, 8))


def test_a_compiled_model_is_to_be_planned_before():
    with pytest.raises(remat.ProblemError, match=r"before torch\.compile"):
        remat.auto_checkpoint(torch.compile(layers(4)), memory="1 MiB", sample=torch.randn(4, 8))


def test_the_largest_batch_may_have_a_least_size():
    model = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)) for _ in range(4)]
    )
    found = remat.largest_batch(model, lambda size: torch.randn(size, 8), memory="8 KiB", least=2)
    assert found.size > 2
    assert found.plan.peak <= 8 * 1024
    with pytest.raises(remat.InfeasibleError, match="a batch of 2 needs"):
        remat.largest_batch(model, lambda size: torch.randn(size, 8), memory=100, least=2)


def test_a_first_block_that_writes_into_the_batch_is_recorded_and_leaves_the_sample():
    torch.manual_seed(0)
    blocks = [torch.nn.ReLU(inplace=True), *(torch.nn.Linear(8, 8) for _ in range(6))]
    plain = torch.nn.Sequential(*blocks).double()
    model, batch = copy.deepcopy(plain), torch.randn(64, 8, dtype=torch.float64)
    sample = batch.clone()
    remat.auto_checkpoint(model, memory="64 KiB", sample=sample)
    assert torch.equal(sample, batch)
    [first] = [stage for stage in model.remat_plan.problem.stages if stage.name == "0"]
    assert not first.repeatable
    model(batch.clone()).square().sum().backward()
    plain(batch.clone()).square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_a_model_is_measured_as_a_chain_whose_plan_it_runs(tmp_path):
    case = case_of("gpt")
    model, sample = copy.deepcopy(case.model), case.sample
    classes = [type(each) for each in model.modules()]
    measured = remat.measure(model, sample)
    assert [type(each) for each in model.modules()] == classes
    measured.save(tmp_path / "chain.json")
    chain = remat.Chain.load(tmp_path / "chain.json")
    assert chain == measured
    assert sum("block" in each.name for each in chain.stages) > 1
    kept = remat.plan(chain, memory="1 GiB", planner="chain-keep-all")
    plan = remat.plan(chain, memory=int(0.7 * kept.peak))
    remat.auto_checkpoint(model, plan=plan)
    case.step(model)
    plain = copy.deepcopy(case.model)
    case.step(plain)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert allocated_by(case, model) < 0.8 * allocated_by(case, plain)

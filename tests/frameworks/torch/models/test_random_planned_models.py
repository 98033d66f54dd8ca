"""Random models under random budgets: gradients and statistics of the plain model, and peaks inside the budget."""

import copy
import random

import pytest
import torch

import remat
from remat.frameworks.torch.meter import allocator_of
from tests.frameworks.torch.models.planned_models import assert_equal_runs, least_memory
from tests.frameworks.torch.models.random_planned_models import random_model

FEW, MANY = range(24), range(24, 224)


@pytest.mark.parametrize("seed", [*FEW, *(pytest.param(seed, marks=pytest.mark.full) for seed in MANY)])
def test_random_models(seed):
    model, data = random_model(seed)
    least = least_memory(model, data, loss=torch.sum)
    plain = remat.auto_checkpoint(copy.deepcopy(model), memory=10**12, sample=data, loss=torch.sum).remat_plan.peak
    budget = int(least + random.Random(seed).random() * max(0, plain - least)) + 1
    try:
        ours = remat.auto_checkpoint(copy.deepcopy(model), memory=budget, sample=data, loss=torch.sum)
    except remat.InfeasibleError as error:  # sizes around blocks are not exact; the error says what is enough
        budget = int(error.minimum) + 8192
        ours = remat.auto_checkpoint(copy.deepcopy(model), memory=budget, sample=data, loss=torch.sum)
    assert_equal_runs(lambda model: model(*_fresh(data)).pow(2).sum().backward(), model, ours)
    assert_equal_runs(lambda model: model(*_fresh(data)).pow(2).sum().backward(), model, ours)
    assert _peak(ours, data) <= budget


def _fresh(data):
    return [each.detach().clone().requires_grad_(each.requires_grad) for each in data]


def _peak(model, data):
    """The peak of a step with gradients there."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    data = _fresh(data)
    meter = allocator_of([torch.device("cpu")])
    with meter.counting():
        before = meter.now()
        meter.reset_peak()
        model(*data).sum().backward()
        return meter.peak() - before

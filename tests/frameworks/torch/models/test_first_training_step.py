"""The first training step under a new plan raises if the program, beside the model, takes more than the budget."""

import pytest
import torch
from torch import Tensor, nn

import remat
from remat.frameworks.torch.meter import StorageMeter
from remat.frameworks.torch.models import planned_model
from remat.frameworks.torch.models.model_trial import Trial

X = torch.randn(64, 128)
MEMORY = 600_000


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> StorageMeter:
    """A device whose allocator counts, as CUDA's does."""
    counting = StorageMeter()
    monkeypatch.setattr(planned_model, "cuda_of", lambda devices: torch.device("cpu"))
    monkeypatch.setattr(planned_model, "CudaMeter", lambda device: counting)
    return counting


def net() -> nn.Sequential:
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(12)]
    return remat.auto_checkpoint(nn.Sequential(*blocks), memory=MEMORY, sample=(X,))


def large_loss(out: Tensor) -> Tensor:
    return (out.repeat(12, 1).sin() ** 2).sum()


def test_a_loss_that_the_plan_does_not_know_is_named(meter: StorageMeter) -> None:
    model = net()
    out = model(X)
    with meter, pytest.raises(remat.InfeasibleError, match="first training step took") as e:
        large_loss(out).backward()
    assert e.value.minimum > MEMORY
    assert "loss=" in str(e.value)
    assert all(each.grad is not None for each in model.parameters())  # the step is complete
    with meter:
        large_loss(model(X)).backward()  # and later ones are not watched


def test_a_loss_that_the_plan_knows_is_inside(meter: StorageMeter) -> None:
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(12)]
    with pytest.raises(remat.InfeasibleError):
        remat.auto_checkpoint(nn.Sequential(*blocks), memory=MEMORY, sample=(X,), loss=large_loss)
    model = remat.auto_checkpoint(nn.Sequential(*blocks), memory=5 * MEMORY, sample=(X,), loss=large_loss)
    with meter:
        large_loss(model(X)).backward()


def test_new_gradients_do_not_count(meter: StorageMeter) -> None:
    model = net()
    assert sum(each.nbytes for each in model.parameters()) > MEMORY
    with meter:
        model(X).sum().backward()


def test_a_model_that_is_called_twice_before_the_backward_is_not_blamed(meter: StorageMeter) -> None:
    model = net()
    with meter:
        (model(X).sum() + model(X).sum() + large_loss(model(X))).backward()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_by_the_allocator_of_a_gpu() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.Tanh()) for _ in range(12))).cuda()
    x = torch.randn(4096, 1024, device="cuda")
    memory = 8 * x.nbytes
    remat.auto_checkpoint(model, memory=memory, sample=(x,))
    model(x).sum().backward()
    remat.auto_checkpoint(model, memory=memory, sample=(x,))
    with pytest.raises(remat.InfeasibleError, match="first training step took"):
        large_loss(model(x)).backward()


def test_garbage_of_earlier_runs_does_not_make_the_peak_of_a_trial_smaller():
    model, x = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4))), torch.randn(8, 32)

    def with_garbage():
        cycle = [torch.empty(1 << 16)]
        cycle.append(cycle)
        return model(x)

    def with_collection():
        assert [[number] for number in range(200_000)]  # so many objects that the collector would run
        return model(x)

    trial = Trial(model, [torch.device("cpu")])
    expected = trial.run(lambda: model(x), torch.sum).peak
    trial.run(with_garbage, torch.sum)
    assert trial.run(with_collection, torch.sum).peak == expected

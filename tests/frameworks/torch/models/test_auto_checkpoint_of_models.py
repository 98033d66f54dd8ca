"""auto_checkpoint and what is done with models: copies, files, moves, optimizers, compilers, threads, segments."""

import copy
import io
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

import remat
from remat.schedule import Advance
from tests.frameworks.torch.models.planned_models import (
    SHARES,
    WIDTH,
    Net,
    assert_equal_runs,
    assert_same,
    backward,
    batch,
    both,
    gradients,
    net,
    planned,
    x,
)


class SquaredTanh(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return functional.tanh(self.layer(x)).square()


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copies_and_files(how):
    plain, ours = both()
    if how == "deepcopy":
        other = copy.deepcopy(ours)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(ours))
    else:
        file = io.BytesIO()
        torch.save(ours, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert type(other) is type(ours)
    assert other.remat_plan.schedule == ours.remat_plan.schedule
    with remat.profile() as run:
        assert_equal_runs(lambda model: backward(model, x), plain, ours, other)
    runs = [call.steps for call in run.calls]
    assert sum(runs) > len(runs) > 6
    assert runs[: len(runs) // 2] == runs[len(runs) // 2 :]  # blocks of the copy are computed again as often


def test_state_dicts_and_names():
    plain, ours = both()
    assert list(ours.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in ours.named_modules()] == [name for name, _ in plain.named_modules()]
    assert repr(ours) == repr(plain)
    assert isinstance(ours, Net)
    other = net()
    other.load_state_dict(ours.state_dict())
    ours.load_state_dict(other.state_dict())
    assert_equal_runs(lambda model: backward(model, x), plain, ours, other)


def test_moves_and_modes():
    plain = net(norm=True, dropout=0.2, dtype=torch.float32)
    ours = remat.auto_checkpoint(copy.deepcopy(plain), memory=80_000, sample=(x.float(),))
    plain, ours = plain.double().to("cpu"), ours.double().to("cpu")
    assert_equal_runs(lambda model: backward(model, x), plain, ours)
    plain.eval(), ours.eval()
    assert_equal_runs(lambda model: backward(model, x), plain, ours)
    plain.train(), ours.train()
    assert_equal_runs(lambda model: backward(model, x), plain, ours)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)])
def test_ten_steps_of_an_optimizer(make, share):
    def run(model):
        optimizer = make(model.parameters())
        for i in range(10):
            optimizer.zero_grad()
            backward(model, batch(seed=i))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return list(model.parameters())

    assert_equal_runs(run, *both(share, dropout=0.1, norm=True))


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("which", ["blocks before", "blocks after", "model", "model.compile"])
def test_compiled(which):
    plain = net()
    ours = copy.deepcopy(plain)
    if which == "blocks before":
        for block in ours.blocks:
            block.compile(backend="aot_eager")
    ours = planned(ours, (x,)) if which != "blocks before" else remat.auto_checkpoint(ours, memory=30_000, sample=(x,))
    called = ours
    if which == "blocks after":
        for block in ours.blocks:
            block.compile(backend="aot_eager")
    elif which == "model":
        called = torch.compile(ours, backend="aot_eager")
    elif which == "model.compile":
        ours.compile(backend="aot_eager")
    backward(plain, x)
    for _ in range(2):
        ours.zero_grad()
        backward(called, x)
        for name, gradient in gradients(plain).items():
            torch.testing.assert_close(gradients(ours)[name], gradient)


@pytest.mark.filterwarnings("ignore")
def test_compiled_modules_in_a_list():
    plain, ours = net(), net()
    ours.blocks = nn.ModuleList(torch.compile(block, backend="aot_eager") for block in ours.blocks)
    remat.auto_checkpoint(ours, memory=30_000, sample=(x,))
    backward(plain, x)
    backward(ours, x)
    for found, expected in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


def test_scripts_of_a_planned_model():
    """TorchScript compiles what blocks are written as, with the names of the module in which they are written."""

    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(SquaredTanh() for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    model = remat.auto_checkpoint(Written().double(), memory=10**6, sample=x)
    assert torch.equal(torch.jit.script(model)(x), model(x))


def test_threads():
    plain, ours = both()
    found, errors = {}, []

    def work(number):
        try:
            data = batch(seed=number)
            for _ in range(3):
                found[number] = torch.autograd.grad(ours(data).pow(2).sum(), list(ours.parameters()))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for number, slopes in found.items():
        expected = torch.autograd.grad(plain(batch(seed=number)).pow(2).sum(), list(plain.parameters()))
        assert all(map(torch.equal, slopes, expected))


@pytest.mark.parametrize("share", SHARES)
def test_functional_call(share):
    def run(model):
        other = {name: p.detach().mul(1.5).requires_grad_() for name, p in model.named_parameters()}
        loss = torch.func.functional_call(model, other, (x,)).pow(2).sum()
        return torch.autograd.grad(loss, list(other.values()))

    assert_equal_runs(run, *both(share))


def test_transforms():
    plain, ours = both()

    def slopes(model):
        params = {name: p.detach() for name, p in model.named_parameters()}
        return torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).pow(2).sum())(params)

    assert_same(slopes(ours), slopes(plain))


class Breaks(Net):
    def forward(self, x, fail=False):
        h = self.first(x)
        for number, block in enumerate(self.blocks):
            if fail and number == 3:
                raise KeyError("in the middle")
            h = block(h)
        return self.last(h)


def test_errors_in_the_middle_of_a_forward():
    plain, ours = both(make=lambda: Breaks().double())
    for _ in range(2):
        with pytest.raises(KeyError):
            ours(x, True)
    assert_equal_runs(lambda model: backward(model, x), plain, ours)


def test_blocks_alone_and_without_gradients():
    plain, ours = both()
    h = x.clone().requires_grad_()
    assert_equal_runs(lambda model: model.blocks[2](h).sum().backward(), plain, ours)
    with torch.no_grad():
        assert torch.equal(ours(x), plain(x))
    with torch.inference_mode():
        assert torch.equal(ours(x), plain(x))


def test_segments_inside_and_around():
    plain, ours = both()
    inside = copy.deepcopy(plain)
    for block in inside.blocks:
        block.act = remat.drop(block.act)
    assert_equal_runs(lambda model: backward(model, x), plain, planned(inside, (x,)))
    assert_equal_runs(lambda model: remat.checkpoint(model, x).pow(2).sum().backward(), plain, ours)
    assert_equal_runs(
        lambda model: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).pow(2).sum().backward(),
        plain,
        ours,
    )
    assert_equal_runs(
        lambda model: torch.utils.checkpoint.checkpoint(
            model, x.clone().requires_grad_(), use_reentrant=True
        ).pow(2).sum().backward(),
        plain,
        ours,
    )  # fmt: skip
    dropped = remat.drop(ours)
    assert_equal_runs(lambda model: backward(model, x), plain, dropped)


def test_twice_and_nested():
    plain, ours = both()
    remat.auto_checkpoint(ours, memory=10**9, sample=(x,))
    assert not any(isinstance(op, Advance) for op in ours.remat_plan.schedule)
    assert_equal_runs(lambda model: backward(model, x), plain, ours)
    outer_plain, outer = Twice(), Twice()
    outer.one = planned(outer.one, (x,))
    outer.two = planned(outer.two, (x,), 0.5)
    assert_equal_runs(lambda model: backward(model, x), outer_plain, outer)


def test_what_fails_and_what_only_measures_leaves_the_plan_as_it_was():
    plain, ours = both()
    schedule = ours.remat_plan.schedule
    with pytest.raises(remat.InfeasibleError):
        remat.auto_checkpoint(ours, memory=100, sample=(x,))
    remat.largest_batch(ours, lambda size: (batch(size),), memory=100_000)
    assert ours.remat_plan.schedule == schedule
    with remat.profile() as run:
        assert_equal_runs(lambda model: backward(model, x), plain, ours)
    assert run.calls


def test_plans_of_blocks_that_are_models_are_replaced():
    outer_plain, outer = nn.Sequential(net(), nn.Linear(2, WIDTH).double(), net()), nn.Sequential()
    outer.extend([planned(outer_plain[0], (x,)), copy.deepcopy(outer_plain[1]), copy.deepcopy(outer_plain[2])])
    remat.auto_checkpoint(outer, memory=10**6, sample=(x,))
    assert outer[0].remat_plan is None
    assert_equal_runs(lambda model: backward(model, x), outer_plain, outer)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.between = net(), net(), nn.Linear(2, WIDTH).double()

    def forward(self, x):
        return self.two(self.between(self.one(x)))


def test_without_a_sample_the_first_call_is_one():
    plain, ours = net(), remat.auto_checkpoint(net(), memory=200_000)
    assert ours.remat_plan is None
    with pytest.raises(remat.ProblemError, match=r"this .* is not planned yet: call it once"):
        remat.explain(ours)
    with pytest.raises(remat.ProblemError, match=r"explain takes a model after remat.auto_checkpoint"):
        remat.explain(plain)
    with pytest.raises(remat.ProblemError, match=r"remat.auto_checkpoint\(model, memory=..., sample=...\)"):
        remat.auto_checkpoint(net(), 200_000, x)
    assert_equal_runs(lambda model: backward(model, x), plain, ours)
    assert ours.remat_plan.peak <= 200_000


def test_new_shapes():
    plain, ours = net(), remat.auto_checkpoint(net(), memory=200_000, sample=(x,))
    for size in (16, 5, 40, 15, *range(50, 120, 20)):
        assert_equal_runs(lambda model, size=size: backward(model, batch(size)), plain, ours)
    strict = remat.auto_checkpoint(net(), memory=10**9, sample=(x,), on_new_shape="error")
    with pytest.raises(remat.ProblemError, match=r"planned for float64 \[16, 8\].*called with float64 \[40, 8\]"):
        strict(batch(40))
    backward(strict, x)
    strict.eval()
    with pytest.raises(remat.ProblemError, match="what differs is train or eval"):
        strict(x)
    strict.train()
    next(module for module in strict.modules() if not list(module.children())).eval()
    with pytest.raises(remat.ProblemError, match="what differs is which parameters are frozen, or which modules"):
        strict(x)


def test_the_loop_of_a_trainer():
    """What Hugging Face's Trainer does in three steps of two batches each, with all hidden states asked for."""
    transformers = pytest.importorskip("transformers")
    size = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**size, intermediate_size=32, num_key_value_heads=1)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).double()
    ids = torch.randint(0, 32, (6, 2, 16))
    sample = {"input_ids": ids[0], "labels": ids[0], "output_hidden_states": True, "use_cache": False}

    def run(model):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
        model.train()
        for step, each in enumerate(ids):
            out = model(input_ids=each, labels=each, output_hidden_states=True, use_cache=False)
            ((out.loss + out.hidden_states[2].pow(2).mean()) / 2).backward()
            if step % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                model.zero_grad()
        return out.loss.detach(), list(model.parameters())

    assert_equal_runs(run, model, planned(model, sample))

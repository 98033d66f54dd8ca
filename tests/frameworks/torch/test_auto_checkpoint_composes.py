"""auto_checkpoint with what people use beside it: gradients, statistics and random numbers are the plain model's."""

import copy
import io
import pickle
import threading

import pytest
import torch
from torch import nn

import remat
from remat.schedule import Advance
from tests.frameworks.torch.planned_models import (
    WIDTH,
    Net,
    assert_equal_runs,
    assert_same,
    batch,
    gradients,
    net,
    planned,
)

SHARES = (0.0, 0.5)  # ranges inside ranges; some blocks kept
x = batch()


def both(share=0.0, sample=(x,), make=net, **options):
    """A plain model, and one under a budget."""
    model = make(**options)
    return model, planned(model, sample, share)


def backward(model, *args):
    model(*args).pow(2).sum().backward()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("options", [{}, {"dropout": 0.3}, {"norm": True}, {"in_place": True}], ids=str)
def test_gradients_random_numbers_and_statistics(options, share):
    assert_equal_runs(lambda model: backward(model, x), *both(share, **options))


@pytest.mark.parametrize("share", SHARES)
def test_autocast_and_scaled_losses(share):
    model = net(dtype=torch.float32)
    data = x.float()

    def run(model):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(data).float().pow(2).sum()
        (loss * 1024).backward()

    with torch.autocast("cpu", torch.bfloat16):
        ours = planned(model, (data,), share)
    assert_equal_runs(run, model, ours)


def test_other_precisions_have_plans_of_their_own():
    """A plan that was made without autocast, or for another dtype, is none for them."""
    model, ids = nn.Sequential(nn.Embedding(9, WIDTH), *net(dtype=torch.float32).blocks), torch.arange(9)
    remat.auto_checkpoint(model, memory=10**6, sample=(ids,))
    peaks = [model.remat_plan.peak]
    with torch.autocast("cpu", torch.bfloat16):
        model(ids).float().sum().backward()
    peaks.append(model.remat_plan.peak)
    model.double()(ids).sum().backward()
    peaks.append(model.remat_plan.peak)
    assert len(set(peaks)) == 3


def test_grad_scaler():
    def run(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x.float()).float().pow(2).sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return list(model.parameters())

    model = net(dtype=torch.float32)
    assert_equal_runs(run, model, remat.auto_checkpoint(copy.deepcopy(model), memory=25_000, sample=(x.float(),)))


@pytest.mark.parametrize("share", SHARES)
def test_accumulation_several_forwards_and_two_backwards(share):
    def run(model):
        for i in range(3):
            backward(model, batch(seed=i))
        losses = [model(batch(seed=i)).pow(2).sum() for i in range(3)]
        sum(losses).backward()
        loss = model(x).pow(2).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    assert_equal_runs(run, *both(share, dropout=0.2))


@pytest.mark.parametrize("share", SHARES)
def test_second_order_and_gradients_of_inputs(share):
    def run(model):
        data = x.clone().requires_grad_()
        loss = model(data).pow(2).sum()
        (slope,) = torch.autograd.grad(loss, data, create_graph=True)
        slope.pow(2).sum().backward()
        again = torch.autograd.grad(model(data).pow(2).sum(), [data, *model.parameters()])
        return data.grad, again

    assert_equal_runs(run, *both(share, sample=(x.clone().requires_grad_(),)))


@pytest.mark.parametrize("share", SHARES)
def test_hooks_run_once_and_see_the_same(share):
    def run(model):
        seen, handles = [], []
        for module in (*model.blocks, model):
            handles += [
                module.register_forward_hook(lambda module, args, out: seen.append(out.detach().clone())),
                module.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().clone())),
                module.register_full_backward_hook(lambda module, ins, outs: seen.append(outs[0].clone())),
                module.register_full_backward_pre_hook(lambda module, outs: seen.append(outs[0].clone())),
            ]
        backward(model, x.clone().requires_grad_())
        for handle in handles:
            handle.remove()
        return seen

    assert_equal_runs(run, *both(share, sample=(x.clone().requires_grad_(),)))


@pytest.mark.parametrize("share", SHARES)
def test_hooks_that_change_or_hold_outputs(share):
    def run(model):
        held = []
        for number, block in enumerate(model.blocks):
            block.register_forward_hook(lambda module, args, out: held.append(out))
            if number == 2:
                block.register_forward_hook(lambda module, args, out: out * 2)
        out = model(x)
        (out.pow(2).sum() + sum(h.pow(2).mean() for h in held)).backward()
        return [h.detach() for h in held]

    assert_equal_runs(run, *both(share))


def lora(model):
    """Frozen weights, and two thin layers that are trained beside each of them."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for block in model.blocks:
        block.up = _Lora(block.up)
    return model.double()


class _Lora(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.a = layer, nn.Linear(layer.in_features, 2, bias=False)
        self.b = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.b(self.a(x))


def last_blocks(model):
    model.requires_grad_(False)
    model.blocks[-2:].requires_grad_(True)
    return model


def first_blocks_without_gradient(model):
    model.first.requires_grad_(False)
    model.blocks[:3].requires_grad_(False)
    return model


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("freeze", [lora, last_blocks, first_blocks_without_gradient])
def test_frozen_parameters(freeze, share):
    model = freeze(net())
    assert_equal_runs(lambda model: backward(model, x), model, planned(model, (x,), share))


def test_parameters_frozen_after_planning():
    plain, ours = net(), remat.auto_checkpoint(net(), memory=40_000, sample=(x,))
    for model in (plain, ours):
        last_blocks(model)
    assert_equal_runs(lambda model: backward(model, x), plain, ours)


@pytest.mark.parametrize("share", SHARES)
def test_shared_weights_and_a_block_that_is_there_twice(share):
    model = net()
    model.blocks[4].up.weight = model.blocks[1].up.weight
    model.blocks[3] = model.blocks[2]
    assert_equal_runs(lambda model: backward(model, x), model, planned(model, (x,), share))


@pytest.mark.parametrize("share", SHARES)
def test_several_inputs_and_all_hidden_states(share):
    scale = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)

    def run(model):
        factor = scale.detach().clone().requires_grad_()
        out, states = model(x, scale=factor, all_states=True)
        (out.sum() + states[2].pow(2).sum() + states[-1].sin().sum()).backward()
        return factor.grad, [state.detach() for state in states]

    assert_equal_runs(run, *both(share, sample={"x": x, "scale": scale, "all_states": True}))


class WithAux(Net):
    """Keeps something of the middle blocks for a loss beside the other one."""

    def forward(self, x):
        h, aux = self.first(x), 0
        for block in self.blocks:
            h = block(h)
            aux = aux + h.softmax(-1).pow(2).mean()
            h = h * 1.0
        return self.last(h), aux


@pytest.mark.parametrize("share", SHARES)
def test_losses_from_the_middle(share):
    def run(model):
        out, aux = model(x)
        (out.pow(2).sum() + aux).backward()

    assert_equal_runs(run, *both(share, make=lambda: WithAux().double()))


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


def test_new_shapes():
    plain, ours = net(), remat.auto_checkpoint(net(), memory=200_000, sample=(x,))
    for size in (16, 5, 40, 15, *range(50, 120, 20)):
        assert_equal_runs(lambda model, size=size: backward(model, batch(size)), plain, ours)
    strict = remat.auto_checkpoint(net(), memory=10**9, sample=(x,), on_new_shape="error")
    with pytest.raises(remat.ProblemError, match=r"planned for float64 \[16, 8\].*called with float64 \[40, 8\]"):
        strict(batch(40))
    backward(strict, x)

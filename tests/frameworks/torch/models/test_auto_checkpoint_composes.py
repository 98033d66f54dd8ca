"""auto_checkpoint with what people use beside it: gradients, statistics and random numbers are the plain model's."""

import copy
from contextvars import ContextVar
from unittest.mock import patch

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import remat
from tests.frameworks.torch.models.planned_models import (
    SHARES,
    WIDTH,
    Block,
    Net,
    assert_equal_runs,
    assert_same,
    backward,
    batch,
    both,
    net,
    peak,
    planned,
    x,
)


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


@pytest.mark.parametrize("between", [nn.Identity(), nn.Unflatten(1, (2, 4)), nn.Dropout(0.0)], ids=repr)
def test_blocks_that_hand_on_what_they_get(between):
    """To keep what they return is to keep what the block before has made: they neither cost nor save memory."""

    def sequence(*more):
        torch.manual_seed(0)
        return nn.Sequential(
            *[nn.Sequential(nn.Linear(8, 8), *more, nn.Tanh(), nn.Flatten()) for _ in range(8)]
        ).double()

    sample, least = torch.randn(4000, 8, dtype=torch.float64), []
    for model in (sequence(), sequence(between)):
        with pytest.raises(remat.InfeasibleError) as error:
            remat.auto_checkpoint(model, memory=1, sample=sample)
        least.append(error.value.minimum)
        ours = remat.auto_checkpoint(copy.deepcopy(model), memory=int(least[-1]), sample=sample)
        assert_equal_runs(lambda each: backward(each, sample), model, ours)
    assert least[0] == least[1]


class Crossing(nn.Module):
    """Hands two tensors on, the second as it is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, y):
        return torch.tanh(self.layer(x)) + y.mean(), y


class Exchange(nn.Module):
    def forward(self, x, y):
        return y, x


class Crossed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(block for _ in range(6) for block in (Crossing(), Exchange()))

    def forward(self, x):
        x, y = torch.sin(x), torch.cos(x)
        for block in self.blocks:
            x, y = block(x, y)
        return x + y


def test_the_least_memory_that_is_named_suffices():
    torch.manual_seed(0)
    model, sample = Crossed().double(), torch.randn(2000, 8, dtype=torch.float64, requires_grad=True)
    with pytest.raises(remat.InfeasibleError) as error:
        remat.auto_checkpoint(model, memory=1, sample=sample)
    ours = remat.auto_checkpoint(copy.deepcopy(model), memory=int(error.value.minimum), sample=sample)
    assert_equal_runs(lambda each: backward(each, sample), model, ours)


def test_transforms_and_traces_of_a_new_shape_are_plain():
    plain, ours = both()
    assert torch.equal(torch.jit.trace(ours.eval(), x[:3])(x[:3]), plain.eval()(x[:3]))
    parameters = {name: each.detach() for name, each in plain.named_parameters()}

    def loss(model, parameters):
        return torch.func.functional_call(model, parameters, (x[:5],)).square().sum()

    ours_grad, plain_grad = (torch.func.grad(lambda p, m=model: loss(m, p))(parameters) for model in (ours, plain))
    assert_same(ours_grad, plain_grad)


def test_blocks_that_are_checkpointed_already_are_an_error():
    class Checkpointed(Net):
        def forward(self, x):
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            return x

    with pytest.raises(remat.ProblemError, match=r"torch\.utils\.checkpoint around its block 'blocks\.0'"):
        remat.auto_checkpoint(Checkpointed().double(), memory=10**6, sample=x)


def test_blocks_that_are_left_out_take_no_more():
    class Dropping(Net):
        left_out = ()

        def forward(self, x):
            x = self.first(x)
            for number, block in enumerate(self.blocks):
                x = x if number in self.left_out else block(x)
            return self.last(x)

    sample = batch(2000)
    model, ours = both(sample=(sample,), make=lambda: Dropping(8).double())
    budget = peak(ours, lambda each: each(sample))
    for left_out in ((7,), (3,), (0, 5), (1, 2, 6)):
        model.left_out = ours.left_out = left_out
        assert_equal_runs(lambda each: backward(each, sample), model, ours)
        assert peak(ours, lambda each: each(sample)) <= 1.15 * budget  # inputs are kept where a block is missing


def test_other_parts_that_are_frozen_have_a_plan_of_their_own():
    model, sample = net(), batch(2000)
    model.blocks[:3].requires_grad_(False)
    ours = remat.auto_checkpoint(model, memory=10**9, sample=sample)
    first = ours.remat_plan
    model.blocks.requires_grad_(True)
    model.blocks[3:].requires_grad_(False)  # as many bytes as before
    backward(ours, sample)
    assert ours.remat_plan is not first


class Cache:
    """What blocks have made, in an object that all of them are given: each puts its own there once."""

    def __init__(self):
        self.keys = {}


class Cached(Net):
    """Blocks that write into a cache, and read what they find in it, as those of decoders do."""

    def __init__(self, depth=4):
        super().__init__(depth)
        self.blocks = nn.ModuleList(map(CachedBlock, range(depth)))

    def forward(self, x):
        cache, h = Cache(), self.first(x)
        for block in self.blocks:
            h = block(h, cache)
        return self.last(h) + sum(key.sum() for key in cache.keys.values())


class CachedBlock(Block):
    """Appends to what the cache has of it."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x, cache):
        key = self.up(x)
        if self.number in cache.keys:
            key = torch.cat([cache.keys[self.number], key])
        cache.keys[self.number] = key
        return x + self.down(key.tanh()).reshape(-1, *x.shape).sum(0)


@pytest.mark.parametrize("share", SHARES)
def test_blocks_with_a_cache_among_their_arguments(share):
    model = Cached().double()
    ours = planned(model, x, share)
    assert_equal_runs(lambda each: backward(each, x), model, ours)


@pytest.mark.parametrize("share", SHARES)
def test_a_method_that_is_replaced_during_the_forward_only(share):
    class Patched(Block):
        def scale(self, x):
            return x.exp()

        def forward(self, x):
            return x + self.down(self.scale(self.up(x)).tanh())

    def make():
        model = net()
        model.blocks = nn.ModuleList(Patched() for _ in range(4)).double()
        return model

    def run(model):
        with patch.object(Patched, "scale", lambda self, x: x.sin()):
            out = model(x)
        out.pow(2).sum().backward()

    model = make()
    with patch.object(Patched, "scale", lambda self, x: x.sin()):
        ours = planned(model, x, share)
    assert_equal_runs(run, model, ours)
    assert_equal_runs(lambda each: backward(each, x), model, ours)


collector = ContextVar("collector", default=None)


class Collecting(Net):
    """What hooks of inner modules see is collected while the model runs, and part of what it returns."""

    def __init__(self, depth=4):
        super().__init__(depth)
        for block in self.blocks:
            block.up.register_forward_hook(_collect)

    def forward(self, x):
        found = {"up": []}
        token = collector.set(found)
        try:
            out = super().forward(x)
        finally:
            collector.reset(token)
        assert len(found["up"]) == len(self.blocks)
        return out + sum(each.sin().sum() for each in found["up"])


def _collect(module, args, out):
    found = collector.get()
    if found is not None:
        found["up"].append(out)


@pytest.mark.parametrize("share", SHARES)
def test_what_hooks_collect_is_collected_once(share):
    model = Collecting().double()
    assert_equal_runs(lambda each: backward(each, x), model, planned(model, x, share))


class Forces(nn.Module):
    """A block that differentiates inside, as models of energies do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        with torch.enable_grad():  # also where the block runs without a graph
            y = x if x.requires_grad else x.detach().requires_grad_()
            (force,) = torch.autograd.grad(self.layer(y).sin().exp().sum(), y, create_graph=True)
        return x - 0.1 * force


@pytest.mark.parametrize("share", SHARES)
def test_blocks_that_differentiate_inside(share):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(*(Forces() for _ in range(4))).double()

    assert_equal_runs(lambda model: backward(model, x), *both(share, make=make))

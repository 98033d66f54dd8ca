"""Checkpoints inside checkpoints on PyTorch."""

import functools
import gc
import random

import pytest
import torch
from torch import nn

import remat
from tests.frameworks.torch.segments.checkpoint_programs import (
    Counted,
    Seen,
    leaf,
    rand,
)
from tests.frameworks.untracked import Box, Log


class Drop(nn.Module):
    """`drop` as the forum question writes it: a module whose forward performs `checkpoint(child_model, x)`."""

    def __init__(self, child_model):
        super().__init__()
        self.child_model = child_model

    def forward(self, x):
        return remat.checkpoint(self.child_model, x)


def test_the_drop_of_the_forum_question_recomputes_each_part_once():
    log = Log()
    two = nn.Sequential(Counted("2a", log), Drop(Counted("2b", log)))
    x = rand(2, 4)
    nn.Sequential(Counted("1", log), Drop(two), Counted("3", log))(x).sum().backward()
    assert [each for each in log if each.startswith("F")] == ["F1", "F2a", "F2b", "F3", "F2a", "F2b"]


@pytest.mark.parametrize("early_stop", [True, False])
def test_the_forum_question_runs_in_the_documented_order(early_stop):
    log = Log()
    drop = functools.partial(remat.drop, early_stop=early_stop)
    two = nn.Sequential(Counted("2a", log), drop(Counted("2b", log)))
    net = nn.Sequential(Counted("1", log), drop(two), Counted("3", log))
    with remat.profile() as run:
        net(rand(2, 4)).sum().backward()
    again = [] if early_stop else ["F2b"]
    assert log == ["F1", "F2a", "F2b", "F3", "B3", "B2b", "F2a", *again, "F2b", "B2a", "B1"]  # hooks come before saved
    passes = [(each.what, each.name, each.depth, each.again) for each in run.passes]
    assert passes == [
        ("forward", "Sequential.1", 0, False),
        ("forward", "Sequential.1.1", 1, False),
        ("recompute", "Sequential.1", 0, False),
        *([] if early_stop else [("forward", "Sequential.1.1", 1, True)]),
        ("recompute", "Sequential.1.1", 1, False),
        ("pullback", "Sequential.1.1", 1, False),
        ("pullback", "Sequential.1", 0, False),
    ]
    assert all(each.seconds >= 0 for each in run.passes)
    loaded = remat.Profile.from_json(run.to_json())
    assert loaded.passes == run.passes
    assert "recompute   Sequential.1.1" in str(loaded)


def nested(drop, log):
    """1, D(2, D(D(3,4),5,D(6))), D(7,8), 9."""
    torch.manual_seed(0)
    parts = {name: Counted(name, log) for name in "123456789"}
    inner = drop(nn.Sequential(drop(nn.Sequential(parts["3"], parts["4"])), parts["5"], drop(parts["6"])))
    return nn.Sequential(
        parts["1"],
        drop(nn.Sequential(parts["2"], inner)),
        drop(nn.Sequential(parts["7"], parts["8"])),
        parts["9"],
    )


@pytest.mark.parametrize("early_stop", [True, False])
def test_the_authors_nesting_gives_the_plain_gradients_in_every_iteration(early_stop):
    log, plain_log = Log(), Log()
    net, plain = nested(functools.partial(remat.drop, early_stop=early_stop), log), nested(lambda part: part, plain_log)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (net, plain)]
    for step in range(3):
        log.clear()
        for each, optimizer in zip((net, plain), optimizers, strict=True):
            optimizer.zero_grad()
            each(rand(3, 4, seed=step)).sum().backward()
        assert [entry for entry in log if entry[0] == "B"] == [f"B{i}" for i in range(9, 0, -1)]
        for a, b in zip(net.parameters(), plain.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
        for optimizer in optimizers:
            optimizer.step()


def test_an_inner_segment_keeps_nothing_while_the_outer_one_is_first_run():
    seen = Seen()

    def innermost(x):
        return seen(seen(x.sin()).cos()) * 1

    def inner(x):
        return remat.checkpoint(innermost, seen(x.exp()).sin())

    def outer(x):
        h = seen(x.cos())
        return remat.checkpoint(inner, h) + remat.checkpoint(lambda: h.tanh())  # by argument, and by closure

    x = leaf(7)
    gc.disable()
    try:
        y = remat.checkpoint(outer, x).sum()
        assert (len(seen.refs), seen.alive) == (4, 0)
        (found,) = torch.autograd.grad(y, x)
        assert seen.alive == 0
    finally:
        gc.enable()
    plain = innermost(x.cos().exp().sin()) + x.cos().tanh()
    torch.testing.assert_close(found, torch.autograd.grad(plain.sum(), x)[0], rtol=1e-14, atol=0)


@pytest.mark.parametrize("seed", range(12))
def test_random_nestings_of_dropout_and_batch_norm_are_bitwise_the_plain_ones(seed):
    def parts(rng, drop, depth):
        found = []
        for _ in range(rng.randint(1, 3)):
            if depth and rng.random() < 0.5:
                found.append(drop(nn.Sequential(*parts(rng, drop, depth - 1))))
            else:
                found.append(rng.choice([nn.Tanh, lambda: nn.Dropout(0.3), lambda: nn.BatchNorm1d(4), nn.Sigmoid])())
            found.append(nn.Linear(4, 4))
        return found

    def make(drop):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 4), *parts(random.Random(seed), drop, 3)).double()

    options = random.Random(seed)
    nets = [
        make(lambda part: part),
        make(lambda part: remat.drop(part, check="always", early_stop=options.random() < 0.5)),
    ]
    for step in range(2):
        found = []
        for net in nets:
            torch.manual_seed(step)
            x = leaf(5, 4, seed=step)
            net(x).square().sum().backward()
            found.append([x.grad, torch.rand(3), *(p.grad for p in net.parameters()), *net.buffers()])
        assert all(map(torch.equal, *found))


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_leaf_that_is_an_argument_and_in_a_cache_is_one_object_at_every_depth(calls):
    def result(run):
        cache, w, x = {}, leaf(4, 4), leaf(3, 4)

        def innermost(x, cache):
            cache["sum"] = cache["sum"] + x if "sum" in cache else x
            return x * 0.9

        def inner(x):
            y = run(innermost, x, cache)
            return torch.where(y > 0, y, 0.1 * x @ w)

        out = sum(run(lambda x: run(inner, x).sin(), x).pow(2).sum() for _ in range(calls))
        return out.detach(), *torch.autograd.grad(out + cache["sum"].sum(), (x, w)), cache["sum"].detach()

    assert all(map(torch.equal, result(remat.checkpoint), result(lambda fn, *args: fn(*args))))


def test_segments_around_one_that_enters_a_transform_are_given_up_with_it():
    w = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4).requires_grad_()

    def gradient(checkpoint):
        def inner(h):
            (slope,) = torch.autograd.grad(torch.tanh(h @ w).sum(), h, create_graph=True)
            return torch.sin(h) - slope - torch.func.grad(lambda q: torch.tanh(q @ w).pow(2).sum())(h)

        def outer(h):
            return checkpoint(inner, torch.tanh(h @ w))

        return torch.autograd.grad(checkpoint(outer, w * 0.5).square().sum(), w)[0]

    assert torch.equal(gradient(remat.checkpoint), gradient(lambda fn, *args: fn(*args)))


def test_a_loop_whose_states_are_rows_of_its_outputs_inside_of_a_segment():
    """When it runs again its states are copies, which were never written into, and no rows."""

    def result(run, scan):
        x = leaf(3, 4)
        out = run(lambda x: scan(lambda h, _: ((h * 2).sin(),) * 2, x, length=6), x)
        return *(each.detach() for each in out), *torch.autograd.grad(sum(each.sum() for each in out), x)

    def plain(step, h, length):
        ys = [h := step(h, None)[0] for _ in range(length)]
        return h, torch.stack(ys)

    ours = result(remat.checkpoint, functools.partial(remat.scan, slots=2))
    assert all(map(torch.equal, ours, result(lambda fn, x: fn(x), plain)))


@pytest.mark.parametrize("loop", ["scan", "while_loop", "scan in scan"])
def test_a_loop_in_a_segment_has_the_same_plan_when_it_is_recomputed(loop):
    """What it saves depends on the plan, and that on times and on free memory, which are others by then."""
    w, start = leaf(32, 32), leaf(16, 32)
    free = Box("1 MiB")  # as where a fraction of the free memory is asked for

    def step(h, _):
        return torch.tanh(h @ w), None

    def segment(h):
        budget, free.value = {"memory": free.value}, "64 KiB"
        if loop == "while_loop":
            return remat.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + 1, step(c[1], None)[0]), (0, h), **budget)[1]
        inner = (lambda h, _: remat.scan(step, h, length=2, **budget)) if loop == "scan in scan" else step
        return remat.scan(inner, h, length=9, **budget)[0]

    remat.checkpoint(segment, start).sum().backward()
    found, w.grad, start.grad = (w.grad, start.grad), None, None
    h = start
    for _ in range(18 if loop == "scan in scan" else 9):
        h, _ = step(h, None)
    h.sum().backward()
    for one, other in zip(found, (w.grad, start.grad), strict=True):
        torch.testing.assert_close(one, other)

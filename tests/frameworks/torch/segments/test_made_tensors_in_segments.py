"""Tensors that are made outside of a segment, with a graph, and that its function finds by itself."""

import threading
import types
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import remat
from tests.frameworks.torch.segments.checkpoint_programs import leaf, rand
from tests.frameworks.untracked import Box


def ways_to_reach(made):
    """Functions that use a tensor without taking it, by the way in which they get at it."""
    holder, box, module = types.SimpleNamespace(made=made), {"made": made}, nn.Module()
    module.memory, pair = made, (1.0, made)
    globals()["MADE"] = made
    return {
        "closure": lambda h: torch.tanh(h @ made),
        "global": lambda h: torch.tanh(h @ MADE),  # noqa: F821
        "attribute": lambda h: torch.tanh(h @ holder.made),
        "dict": lambda h: torch.tanh(h @ box["made"]),
        "module": lambda h: torch.tanh(h @ module.memory),
        "default": lambda h, q=made: torch.tanh(h @ q),
        "tuple": lambda h: torch.tanh(h @ pair[1]),
    }


RUNS = {
    "checkpoint": remat.checkpoint,
    "never": lambda fn, *args: remat.drop(fn, check="never")(*args),
    "no early stop": lambda fn, *args: remat.drop(fn, early_stop=False)(*args),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("way", ["closure", "global", "attribute", "dict", "module", "default", "tuple"])
def test_a_segment_in_a_segment_finds_a_tensor_made_outside_of_both(way, run):
    w, h = leaf(3, 3), leaf(3, seed=1)
    inner, drop = ways_to_reach(w @ w)[way], RUNS[run]
    expected = torch.autograd.grad(inner(h).sum(), (w, h), retain_graph=True)
    found = torch.autograd.grad(drop(lambda h: drop(inner, h), h).sum(), (w, h), retain_graph=True)
    assert all(map(torch.equal, found, expected))


def test_a_function_that_was_compared_while_the_tensor_was_a_leaf_gets_the_right_gradient():
    p, h = leaf(3), leaf(3, seed=1)
    state = {"m": p}

    def inner(h):
        return torch.tanh(h * state["m"])

    def outer(run, h):
        u = torch.sin(torch.exp(run(inner, h)))
        return u, torch.cos(u)

    def ours(h):
        return outer(remat.checkpoint, h)

    sum(remat.checkpoint(ours, h)).sum().backward()
    state["m"] = p * 1.5
    expected = torch.autograd.grad(outer(lambda fn, h: fn(h), h)[0].sum(), (p, h), retain_graph=True)
    found = torch.autograd.grad(remat.checkpoint(ours, h)[0].sum(), (p, h), retain_graph=True)
    assert all(map(torch.equal, found, expected))


def test_other_threads_see_nothing_of_a_recomputation():
    w, x = leaf(3, 3), rand(3)
    made = w * 1.5
    inside, go_on, found = threading.Event(), threading.Event(), Box()

    def block(h):
        if remat.is_recomputing():
            inside.set()
            go_on.wait(10)
        return torch.tanh(h @ made).sin()

    def plain():
        inside.wait(10)
        y = torch.tanh(x @ made).sin()
        go_on.set()
        (found.value,) = torch.autograd.grad(y.sum(), w, retain_graph=True)

    (expected,) = torch.autograd.grad(torch.tanh(x @ made).sin().sum(), w, retain_graph=True)
    other = threading.Thread(target=plain)
    other.start()
    (ours,) = torch.autograd.grad(remat.checkpoint(block, x).sum(), w, retain_graph=True)
    other.join()
    assert torch.equal(ours, expected)
    assert torch.equal(found.value, expected)


def test_hooks_that_a_function_registers_on_a_tensor_made_outside_act_once():
    def gradient(run):
        w = leaf(3)
        made = w * 2

        def fn(x):
            made.register_hook(lambda g: 3 * g)
            return (x * made).sin().exp()

        run(fn, rand(3)).sum().backward()
        return w.grad

    assert torch.equal(gradient(remat.checkpoint), gradient(lambda fn, x: fn(x)))


def test_what_an_attribute_held_at_the_call_is_not_kept_alive_by_a_segment_inside_another():
    module, alive = nn.Module(), Box()

    def inner(x):
        return (x * module.state[0]).sin()

    def outer(x):
        module.state = (x.exp(), 1)
        alive.value = torch.multiprocessing.reductions.StorageWeakRef(module.state[0].untyped_storage())
        y = remat.checkpoint(inner, x)
        module.state = None
        return y.cos()

    x = leaf(3)
    y = remat.checkpoint(outer, x)
    assert alive.value.expired()
    (found,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad((x * x.exp()).sin().cos().sum(), x)[0], rtol=1e-14, atol=0)


def test_functions_that_use_transforms_of_torch_func_are_segments_without_a_recomputation():
    w, q, runs = leaf(3, 3), rand(3), []

    def energy(q):
        return torch.tanh(q @ w).square().sum()

    def steps(q):
        runs.append(1)
        for _ in range(3):
            q = q - 0.1 * torch.func.grad(energy)(q)
        return q

    (expected,) = torch.autograd.grad(steps(q).sum(), w)
    for nested in (steps, lambda q: remat.checkpoint(steps, q) * 1.0):
        runs.clear()
        (found,) = torch.autograd.grad(remat.checkpoint(nested, q).sum(), w)
        assert torch.equal(found, expected)
        assert len(runs) == 1  # the run that was refused has left no trace


def test_masks_that_do_not_repeat_are_an_error_though_they_are_no_floats():
    state = Box(0)

    def drops(x):
        state.value += 1
        mask = torch.arange(8) % (state.value + 1) == 0
        return torch.where(mask, x.sin(), x * 2)

    with pytest.raises(remat.DeterminismError, match=r"bool\[8\]"):
        remat.checkpoint(drops, leaf(8)).sum().backward()


WRAPPED = {
    "itself": lambda x: x,
    "in a list": lambda x: [x],
    "in a dict": lambda x: {"x": x},
    "in a tuple": lambda x: (x,),
}


@pytest.mark.parametrize("inner", WRAPPED)
@pytest.mark.parametrize("outer", WRAPPED)
def test_nested_segments_that_get_a_tensor_and_also_close_over_it(outer, inner):
    def unwrapped(value):
        return value if isinstance(value, torch.Tensor) else value["x"] if isinstance(value, dict) else value[0]

    def result(run):
        x, w = leaf(3, 4), leaf(4, 4)
        first = x * 2
        second = torch.tanh(first @ w)

        def innermost(value):
            y = unwrapped(value)
            return torch.where(y > 0, torch.sin(y) * first, 0.1 * second * y)

        def fn(value):
            return run(innermost, WRAPPED[inner](unwrapped(value))).exp() * second

        outs = [run(fn, WRAPPED[outer](each)) for each in (second, first)]
        return *(out.detach() for out in outs), *torch.autograd.grad((outs[0] * outs[1]).sum(), (x, w))

    assert all(map(torch.equal, result(remat.checkpoint), result(lambda fn, *args: fn(*args))))


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("where", ["attribute", "variable"])
def test_segments_may_add_to_a_sum_of_losses_in_place(where, run):
    def gradients(call):
        w, holder, variable = leaf(3, 3), types.SimpleNamespace(total=0.0), 0.0

        def block(h):
            nonlocal variable
            h = torch.tanh(h @ w)
            loss = h.pow(2).sum()
            if where == "attribute":
                holder.total += loss
            else:
                variable += loss
            return h

        h = rand(2, 3)
        for _ in range(3):
            h = call(block, h)
        total = holder.total if where == "attribute" else variable
        (h.sum() + total * 2).backward()
        return w.grad, total.detach(), h.detach()

    torch.manual_seed(0)
    found = gradients(RUNS[run])
    torch.manual_seed(0)
    assert all(map(torch.equal, found, gradients(lambda fn, h: fn(h))))


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("blocks", ["around both", "around the forward", "around the backward", "around each"])
def test_weights_with_parametrizations_that_are_cached(blocks, used_before):
    """Where the first run has filled the cache of a block, or found it filled, so does a recomputation."""

    def run(checkpoint, drop):
        torch.manual_seed(0)
        layer = parametrizations.orthogonal(nn.Linear(4, 4).double())
        dropped, x = drop(layer), rand(3, 4)
        twice = lambda x: torch.tanh(dropped(torch.tanh(dropped(x))))  # noqa: E731
        both, forward, backward = (
            parametrize.cached() if blocks in names else nullcontext()
            for names in (
                ("around both",),
                ("around the forward", "around each"),
                ("around the backward", "around each"),
            )
        )
        with both:
            with forward:
                x = layer(x) if used_before else x
                y = checkpoint(twice, checkpoint(twice, x))
            with backward:
                y.pow(2).sum().backward()
                count = len(parametrize._cache)
        return [parameter.grad for parameter in layer.parameters()], count

    (found, count), (expected, plain_count) = (
        run(*ways) for ways in ((remat.checkpoint, remat.drop), (lambda fn, x: fn(x), lambda module: module))
    )
    assert all(map(torch.equal, found, expected))
    assert count == plain_count

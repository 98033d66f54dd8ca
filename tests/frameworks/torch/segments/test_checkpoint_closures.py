"""What functions in checkpoints use without taking it, and what is changed between the call and its backward."""

import functools

import pytest
import torch
from torch import nn

import remat
from tests.frameworks.torch.segments.checkpoint_programs import (
    assert_bitwise,
    block,
    gradients,
    leaf,
    rand,
    same_as_plain,
)


def test_variables_that_are_assigned_again_are_what_they_were():
    x, layers = leaf(2, 4), [block(seed=i) for i in range(3)]

    def forward(run):
        h = x
        for layer in layers:
            scale = h.detach().sum()
            h = run(lambda: layer(h) * scale)  # noqa: B023
        return h.sum()

    found = gradients(lambda x: forward(lambda fn: remat.checkpoint(fn)), x)
    assert_bitwise(found, gradients(lambda x: forward(lambda fn: fn()), x))


@pytest.mark.parametrize("kind", ["attribute", "tuple", "list", "dict", "partial", "global", "object", "data"])
def test_tensors_that_are_put_elsewhere_are_where_they_were(kind):
    class Times(nn.Module):
        def forward(self, x):
            return (x * (self.w[0] if kind == "tuple" else self.w)).sin()

    module, items, named, space = Times(), [None], {}, type("Space", (), {})()

    def work(run):
        x, h = leaf(3), leaf(3, seed=1)
        y = x
        for i in range(3):
            w = (h.detach() if kind == "data" else h) * (i + 1.0)
            module.w = (w, i) if kind == "tuple" else w
            items[0] = named["w"] = space.w = globals()["REBOUND"] = w
            functions = {
                "list": lambda x: (x * items[0]).sin(),
                "dict": lambda x: (x * named["w"]).sin(),
                "partial": functools.partial(lambda o, x: (x * o.w).sin(), space),
                "object": lambda x: (x * space.w).sin(),
                "global": lambda x: (x * REBOUND).sin(),  # noqa: F821
            }
            y = run(functions.get(kind, module), y)
        y.sum().backward()
        return x.grad, torch.zeros(()) if h.grad is None else h.grad

    same_as_plain(work)


def test_parameters_that_are_exchanged_for_a_call_are_exchanged_again():
    class Outer(nn.Module):
        def __init__(self, run):
            super().__init__()
            self.inner, self.run = block(), run

        def forward(self, x):
            return self.run(self.inner, x).sin()

    def work(run):
        module, x = Outer(run), leaf(2, 4)
        other = {name: parameter * 2 for name, parameter in module.named_parameters()}
        torch.func.functional_call(module, other, (x,)).sum().backward()
        return x.grad, *(parameter.grad for parameter in module.parameters())

    same_as_plain(work)


def test_a_state_that_a_module_keeps_is_that_of_each_call_and_the_last_one_in_the_end():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4).double()

        def forward(self, x):
            self.state = torch.tanh(self.linear(x) + self.state)
            return self.state * 2

    def work(run):
        torch.manual_seed(0)
        module, x = Keeps(), leaf(2, 4)
        module.state = torch.zeros(2, 4, dtype=torch.float64)
        total = sum(run(module, x * i).sum() for i in range(3))
        total.backward()
        return x.grad, module.state.detach(), module.linear.weight.grad

    same_as_plain(work)


def test_flags_that_are_toggled_before_the_backward_are_what_they_were():
    class Scales(nn.Module):
        def forward(self, x):
            return (x * (2.0 if self.training else 1.0)).sin()

    def work(run):
        module, scales, x, items = block(), Scales(), leaf(2, 4), [rand(4, 4), leaf(4, 4, seed=1)]
        module.requires_grad_(False)
        y = run(module, x) + run(scales, x) + run(lambda x: x @ items[0] @ items[1], x.detach())
        module.requires_grad_(True)
        items[0].requires_grad_(True)
        scales.eval()
        y.sum().backward()
        assert all(parameter.grad is None and parameter.requires_grad for parameter in module.parameters())
        assert not scales.training
        return x.grad, items[1].grad

    same_as_plain(work)


def test_buffers_that_are_saved_have_the_numbers_of_their_call():
    class Doubles(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(1, dtype=torch.float64))

        def forward(self, x):
            with torch.no_grad():
                self.scale.mul_(2)
            return x * self.scale

    module, x = Doubles(), leaf(3)
    y, _ = remat.checkpoint(module, x), remat.checkpoint(module, x)
    y.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    assert module.scale == 4


class Holder:
    """An object that has a dict."""

    def __init__(self, table):
        self.table = table


def in_a_closure(table, w):
    return lambda x, given: written(given, x) * read(table, w, x), (table,)


def in_an_object(table, w):
    holder = Holder(table)
    return lambda x, given: written(given, x) * read(holder.table, w, x), (table,)


def given_twice(table, w):
    return lambda x, given, again: written(given, x) * read(again, w, x), (table, table)


def given_in_a_list(table, w):
    return lambda x, given, tables: written(given, x) * read(tables[1]["inner"], w, x), (table, [0, {"inner": table}])


def written(table, x):
    table["sum"] = table["sum"] * 0.5 + x
    table["calls"].append(len(table["calls"]))
    return len(table["calls"])


def read(table, w, x):
    return torch.tanh(x @ w) * table["sum"] * len(table["calls"])


@pytest.mark.parametrize("make", [in_a_closure, in_an_object, given_twice, given_in_a_list])
def test_a_container_that_is_reached_in_two_ways_is_one_object(make):
    def result(run):
        w, x = leaf(4, 4), leaf(3, 4)
        table = {"sum": torch.ones(3, 4, dtype=torch.float64), "calls": []}
        fn, tables = make(table, w)
        out = run(fn, run(fn, x, *tables), *tables)
        gradients = torch.autograd.grad(out.pow(2).sum() + table["sum"].sum(), (x, w))
        return out.detach(), *gradients, table["sum"].detach(), torch.tensor(table["calls"])

    assert all(map(torch.equal, result(remat.checkpoint), result(lambda fn, *args: fn(*args))))

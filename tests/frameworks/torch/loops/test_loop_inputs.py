"""What a step uses is an input of the loop's node, in whichever step it is used first; what it only reaches is none."""

import threading
import types

import pytest
import torch
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal

import remat
from remat.frameworks.torch.replay.watch import Watch
from tests.frameworks.torch.programs import DOUBLE, assert_same, plain_scan, weigh

BUDGETS = [{"slots": 2}, {"slots": 12}, {"slots": 3, "check": "always"}, {"memory": "1 MiB"}, {"memory": 6000}]


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def gradient(loop, step, init, xs, wanted, **budget):
    return torch.autograd.grad(weigh(loop(step, init, xs, **budget)), wanted, retain_graph=True, allow_unused=True)


@pytest.mark.parametrize("how", BUDGETS, ids=str)
def test_an_encoding_that_steps_attend_to_from_the_second_one_on(how):
    w = numbers(3, 3).requires_grad_()
    encoded = torch.tanh(numbers(5, 3, seed=1) @ w)  # w is used besides: it lies behind what is made of it

    def step(carry, x):
        h, i = carry
        if i > 0:
            h = h + torch.softmax(encoded @ h, 0) @ encoded
        return (torch.tanh(h @ w + x), i + 1), h.sum()

    given = (step, (torch.zeros(3, dtype=DOUBLE), 0), numbers(12, 3, seed=2), [w])
    assert_same(gradient(remat.scan, *given, **how), gradient(plain_scan, *given))


hidden = types.ModuleType("hidden")  # as after `import hidden`


@pytest.mark.parametrize("how", BUDGETS, ids=str)
@pytest.mark.parametrize("place", ["attribute of a module", "long dict", "frozenset"])
@pytest.mark.parametrize("leaf", [False, True])
def test_a_tensor_that_one_later_step_alone_uses(place, leaf, how):
    w, v = numbers(3, 3).requires_grad_(), numbers(3, 3, seed=1).requires_grad_()
    special = w if leaf else w * 1.5
    hidden.special = special
    table, frozen = dict.fromkeys(range(5000)) | {6: special}, frozenset([special])
    get = {
        "attribute of a module": lambda: hidden.special,
        "long dict": lambda: table[6],
        "frozenset": lambda: next(iter(frozen)),
    }[place]

    def step(carry, x):
        h, i = carry
        h = torch.tanh(h @ (get() if i == 6 else v) + x)
        return (h, i + 1), h.sum()

    given = (step, (torch.ones(3, dtype=DOUBLE), 0), numbers(12, 3, seed=2), [w, v])
    assert_same(gradient(remat.scan, *given, **how), gradient(plain_scan, *given))


@pytest.mark.parametrize("how", BUDGETS, ids=str)
def test_a_parametrization_that_is_computed_once(how):
    cell = orthogonal(torch.nn.RNNCell(4, 4, dtype=DOUBLE), "weight_hh")

    def run(loop, **budget):
        with parametrize.cached():
            given = (lambda h, x: (cell(x, h), None), torch.zeros(2, 4, dtype=DOUBLE), numbers(9, 2, 4))
            return gradient(loop, *given, list(cell.parameters()), **budget)

    assert_same(run(remat.scan, **how), run(plain_scan))


def test_hooks_of_parameters_that_no_step_uses_are_not_called():
    cell, spare = torch.nn.GRUCell(4, 4), torch.nn.Linear(4, 4)
    model = torch.nn.ModuleDict({"cell": cell, "spare": spare})
    for parameter in spare.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1, 1))
    loss = remat.scan(lambda h, x: (model["cell"](x, h), None), torch.zeros(2, 4), torch.ones(7, 2, 4), slots=2)[
        0
    ].sum()
    reached, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in reached:
            reached.add(node)
            waiting += [after for after, _ in node.next_functions]
    leaves = {id(node.variable) for node in reached if hasattr(node, "variable")}
    assert leaves == {id(parameter) for parameter in cell.parameters()}
    loss.sum().backward()
    assert all(parameter.grad is None for parameter in spare.parameters())


def test_hooks_and_gradients_of_a_made_tensor_see_the_whole_gradient_once():
    w, seen = numbers(3, 3).requires_grad_(), []

    def run(loop, **budget):
        made = w * 1.5
        made.retain_grad()
        made.register_hook(lambda gradient: seen.append(gradient.clone()))
        weigh(loop(lambda h, x: (torch.tanh(h @ made + x), None), torch.ones(3, dtype=DOUBLE), xs, **budget)).backward()
        return made.grad

    xs = numbers(9, 3, seed=1)
    found, expected = run(remat.scan, slots=2), run(plain_scan)
    assert_same([found, seen[0]], [expected, seen[1]])
    assert len(seen) == 2


def test_other_threads_see_what_a_step_closes_over_as_it_is():
    w = numbers(3, 3).requires_grad_()
    made, inside, go_on, found = w * 1.5, threading.Event(), threading.Event(), []

    def step(h, _):
        if threading.current_thread().name == "loop":
            inside.set()
            go_on.wait(5)
        return torch.tanh(h @ made), None

    def work():
        found.append(gradient(remat.scan, step, torch.ones(3, dtype=DOUBLE), None, [w], length=1, slots=1))

    thread = threading.Thread(target=work, name="loop")
    thread.start()
    inside.wait(5)
    y = torch.tanh(torch.ones(3, dtype=DOUBLE) @ made)
    go_on.set()
    thread.join()
    assert torch.autograd.grad(y.sum(), w, retain_graph=True)[0] is not None
    assert_same(found[0], gradient(plain_scan, step, torch.ones(3, dtype=DOUBLE), None, [w], length=1))


def test_a_loop_in_a_checkpoint_that_reaches_a_made_tensor_and_does_not_use_it():
    w, b = numbers(3, 3).requires_grad_(), numbers(3, seed=1).requires_grad_()
    box = {"w": w, "made": w[0] * 2, "b": b}

    def loop(h):
        return remat.scan(lambda h, _: (torch.tanh(h @ box["w"] + box["b"]), None), h, length=4, slots=2)[0]

    def derivatives(run):
        out = run(torch.ones(3, dtype=DOUBLE)).sum()
        first = torch.autograd.grad(out, (w, b), retain_graph=True)
        slopes = torch.autograd.grad(out, (w, b), create_graph=True)
        return [*first, *torch.autograd.grad(sum(slope.pow(2).sum() for slope in slopes), (w, b))]

    assert_same(derivatives(lambda h: remat.checkpoint(loop, h)), derivatives(loop), bitwise=False)


def test_a_watch_notes_operations_of_its_own_thread_alone():
    parameter, made, other = torch.nn.Parameter(torch.ones(2)), torch.ones(2) * 2, torch.ones(2)
    watch = Watch([parameter, made, other])
    threading.Thread(target=lambda: other + 1).start()
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.shape == (2,)  # no use
    assert watch.used == []
    torch.cat([made, torch.nn.functional.relu(parameter)])
    watch.end()
    assert {id(tensor) for tensor in watch.used} == {id(parameter), id(made)}
    assert [type(each) for each in (parameter, made, other)] == [torch.nn.Parameter, torch.Tensor, torch.Tensor]


@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 3}, {"slots": 20}], ids=str)
def test_a_carry_that_is_left_in_an_attribute_is_refused(how):
    class Cell(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.h = torch.nn.Parameter(numbers(3, 3)), torch.zeros(3, dtype=DOUBLE)

        def forward(self, total, x):
            self.h = torch.tanh(self.h @ self.w + x)
            return total + self.h, None

    with pytest.raises((remat.StepError, remat.DeterminismError)):
        remat.scan(Cell(), torch.zeros(3, dtype=DOUBLE), numbers(12, 3), **how)[0].sum().backward()


def test_a_parameter_that_is_frozen_before_the_backward_gets_no_gradient():
    w, v = numbers(3, 3).requires_grad_(), numbers(3, 3, seed=1).requires_grad_()
    loss = weigh(
        remat.scan(lambda h, x: (torch.tanh(h @ w @ v + x), None), torch.ones(3, dtype=DOUBLE), numbers(9, 3), slots=2)
    )
    w.requires_grad_(False)
    loss.backward()
    assert w.grad is None
    assert v.grad is not None


def test_second_derivatives_leave_no_trace_in_a_log():
    w, log = numbers(3, 3).requires_grad_(), []

    def step(h, x):
        log.append(float(h.detach().sum()))
        return torch.tanh(h @ w + x), None

    h = remat.scan(step, torch.ones(3, dtype=DOUBLE), numbers(6, 3), slots=2)[0]
    (slope,) = torch.autograd.grad(h.sum(), w, create_graph=True)
    slope.pow(2).sum().backward()
    assert len(log) == 6


def test_a_made_tensor_that_only_a_loop_inside_uses_for_nothing_has_no_gradient():
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    made = torch.sin(w)

    def inside(h, _):
        _ = h * made  # the result does not depend on it
        return torch.tanh(h), None

    def step(h, _):
        return remat.scan(inside, h, length=6, slots=1)[0], None

    h = torch.ones(3, dtype=torch.float64, requires_grad=True)
    last, _ = remat.scan(step, h, length=6, slots=1)
    for create_graph in (False, True):
        found = torch.autograd.grad(last.sum(), w, allow_unused=True, retain_graph=True, create_graph=create_graph)
        assert found == (None,)

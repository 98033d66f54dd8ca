"""Loops and segments under transforms of torch.func: each does what plain PyTorch does there."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from torch.func import grad, jacrev, vmap

import remat
from tests.frameworks.torch.programs import DOUBLE, assert_same, plain_scan
from tests.frameworks.untracked import Box

scan = partial(remat.scan, slots=2)


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)) * 0.5


XS = numbers(9, 3, seed=1)  # made outside: under vmap no random numbers are drawn


def test_second_derivatives_with_a_constant_that_is_put_back():
    constant = numbers(3, 3)  # small and without a gradient, so that steps may write into it

    def loss(loop, w):
        step = lambda h, x: (torch.tanh(h @ w + x @ constant), None)  # noqa: E731
        return loop(step, numbers(3), XS)[0].sum()

    def twice(loop):
        return grad(lambda w: grad(lambda w: loss(loop, w))(w).pow(2).sum())(numbers(3, 3, seed=2))

    before = constant.clone()
    assert_same([twice(scan)], [twice(plain_scan)], bitwise=False, tolerance=1e-12)
    assert torch.equal(constant, before)


def test_segments_in_steps_that_are_measured():
    def loss(loop, segment, w, **how):
        def step(h, x):
            return segment(lambda h: torch.tanh(h @ w), h) + x, None

        return loop(step, numbers(3), XS, **how)[0].sum()

    w = numbers(3, 3, seed=2)
    found = grad(lambda w: loss(remat.scan, remat.checkpoint, w, memory="1 MiB"))(w)
    assert_same([found], [grad(lambda w: loss(plain_scan, lambda f, h: f(h), w))(w)], bitwise=False, tolerance=1e-12)


FIRST_USE_INSIDE_OF_A_TRANSFORM = """
import torch, remat
w = torch.eye(3, requires_grad=True)
segment = lambda h: torch.tanh(h @ w)
step = lambda h, x: (remat.checkpoint(segment, h) + x, None)
torch.func.grad(lambda h: remat.scan(step, h, torch.zeros(4, 3), slots=2)[0].sum())(torch.ones(3))
remat.adaptive_checkpoint(segment, torch.ones(3), threshold=10_000).sum().backward()
torch.testing.assert_close(w.grad, (1 - torch.tanh(torch.ones(3)) ** 2).expand(3, 3))
"""


def test_segments_after_the_package_was_first_used_inside_of_a_transform():
    run = subprocess.run([sys.executable, "-c", FIRST_USE_INSIDE_OF_A_TRANSFORM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_jacobian_runs_the_steps_as_often_as_the_plan_says():
    """jacrev maps the backward alone: steps run for one example, so that they may ask for numbers, and draw some."""

    def jacobian(loop, evaluations):
        torch.manual_seed(0)

        def step(h, x):
            evaluations.value += 1
            scale = 1.0 + (h.sum().item() > 0)
            return torch.tanh(h * scale + x + 0.1 * torch.randn(3, dtype=DOUBLE)), h[0]

        return jacrev(lambda h: loop(step, h, XS)[1])(numbers(3))

    plan = remat.plan(remat.Loop(9), slots=2)
    counts = Box(0), Box(0)
    assert_same([jacobian(partial(remat.scan, plan=plan), counts[0])], [jacobian(plain_scan, counts[1])], bitwise=False)
    assert counts[0].value == plan.forward_steps


def mapped_jacobian(function):
    return vmap(jacrev(function))


def second_derivatives(function):
    return jacrev(jacrev(function))


@pytest.mark.parametrize("transform", [jacrev, mapped_jacobian, second_derivatives])
@pytest.mark.parametrize("segments", [False, True])
def test_jacobians_of_loops_with_segments_and_loops_inside(segments, transform):
    def run(loop, checkpoint, w):
        def step(h, x):
            h = checkpoint(lambda h: torch.tanh(h @ w) + x, h)
            inner, ys = loop(lambda a, b: (a * b, a.sin()), h, h[:, None])
            return inner + ys.sum(0), h.cos()

        h, ys = loop(step, w[0], XS)
        return h + ys.sum(0)

    w = numbers(2, 3, 3) if transform is mapped_jacobian else numbers(3, 3)
    checkpoint = remat.checkpoint if segments else lambda f, h: f(h)
    found = transform(partial(run, scan, checkpoint))(w)
    assert_same([found], [transform(partial(run, plain_scan, lambda f, h: f(h)))(w)], bitwise=False, tolerance=1e-11)


@pytest.mark.parametrize("place", ["variable", "frozenset"])
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_parameter_that_no_transform_knows_has_its_gradient(mapped, made, place):
    """Of what a transform returns, by plain autograd; also if only a later step uses it, and wherever it is."""

    def gradients(loop):
        parameter = numbers(3, 3, seed=3).requires_grad_()
        used = parameter.sin() if made else parameter
        frozen = frozenset([used])

        def step(carry, x):
            h, i = carry
            weight = used if place == "variable" else next(iter(frozen))
            return (torch.tanh((h @ weight if i == 4 else h) + x), i + 1), None

        def slope(h):
            return grad(lambda h: loop(step, (h, 0), XS)[0][0].pow(2).sum())(h)

        slopes = vmap(slope)(numbers(2, 3)) if mapped else slope(numbers(3))
        return [slopes, *torch.autograd.grad(slopes.sum(), parameter)]

    assert_same(gradients(scan), gradients(plain_scan), bitwise=False, tolerance=1e-11)


def test_numbers_as_outputs_of_a_mapped_loop():
    def run(h):
        h, (halves, rows) = scan(lambda h, x: (h.sin() + x, (0.5, h)), h, XS)
        return h * halves.mean() + rows.sum(0)

    def expected(h):
        h, rows = plain_scan(lambda h, x: (h.sin() + x, h), h, XS)
        return h * 0.5 + rows.sum(0)

    given = numbers(2, 3)
    assert_same([vmap(run)(given)], [vmap(expected)(given)], bitwise=False)


@pytest.mark.parametrize("mapped", [False, True])
def test_second_derivatives_of_steps_that_count_and_draw(mapped):
    def twice(loop):
        torch.manual_seed(0)
        counter = {"calls": 0}

        def step(carry, x):
            h, n = carry
            counter["calls"] += 1
            kept = torch.nn.functional.dropout(h, 0.3)
            return (torch.tanh(h * counter["calls"] * 0.1 + kept * n + x), n + 1), None

        def slope(h):
            return grad(lambda h: loop(step, (h, 0), XS)[0][0].pow(2).sum())(h)

        second = grad(lambda h: slope(h).pow(2).sum())
        found = vmap(second, randomness="different")(numbers(2, 3)) if mapped else second(numbers(3))
        assert counter == {"calls": 9}
        return [found]

    assert_same(twice(scan), twice(plain_scan), bitwise=False, tolerance=1e-11)


def test_inputs_of_integers_are_not_mapped():
    def run(loop, h):
        return loop(lambda h, x: (torch.sin(h * int(x)), None), h, torch.arange(5))[0]

    given = numbers(2, 3)
    assert_same([vmap(partial(run, scan))(given)], [vmap(partial(run, plain_scan))(given)], bitwise=False)


@pytest.mark.parametrize("transform", [grad, lambda f: vmap(grad(f))])
def test_a_cache_of_constants_that_steps_of_two_loops_fill(transform):
    def total(loop, h):
        cache = {"keys": None}

        def step(h, x):
            new = h.detach()[None]
            cache["keys"] = new if cache["keys"] is None else torch.cat([cache["keys"], new])
            return torch.tanh(h * cache["keys"].mean(0) + x), None

        for _ in range(2):
            h = loop(step, h, XS)[0]
        return (h * cache["keys"].sum(0)).sum()

    given = numbers(3) if transform is grad else numbers(2, 3)
    found, expected = (transform(partial(total, loop))(given) for loop in (scan, plain_scan))
    assert_same([found], [expected], bitwise=False, tolerance=1e-11)


@pytest.mark.parametrize("transform", [grad, lambda f: vmap(grad(f))])
@pytest.mark.parametrize("slots", [1, 20])
def test_losses_in_a_list_are_logged_and_not_differentiated(slots, transform):
    def total(loop, used, losses, h):
        def step(h, x):
            losses.append(h.pow(2).sum())
            return torch.tanh(h * x), None

        return loop(step, h, XS)[0].sum() + (sum(losses) if used else 0.0)

    given = numbers(3) if transform is grad else numbers(2, 3)
    loop, losses = partial(remat.scan, slots=slots), []
    found = transform(partial(total, loop, False, losses))(given)
    assert_same([found], [transform(partial(total, plain_scan, False, []))(given)], bitwise=False, tolerance=1e-11)
    assert len(losses) == 9
    with pytest.raises(remat.StepError, match="Return it from the step as y"):
        transform(partial(total, loop, True, []))(given)


@pytest.mark.parametrize(
    "transform", [grad, lambda f: vmap(grad(f)), lambda f: grad(lambda h: grad(f)(h).pow(2).sum())]
)
@pytest.mark.parametrize("slots", [1, 3])
def test_a_tensor_that_steps_use_and_replace(slots, transform):
    def total(loop, h):
        state = {"v": h * 1.5}

        def step(h, x):
            h = torch.tanh(h * x + state["v"])
            state["v"] = h.detach()
            return h, None

        return loop(step, h, XS)[0].sum()

    given = numbers(2, 3)[0] if transform is grad else numbers(2, 3)
    found, expected = (
        transform(partial(total, loop))(given) for loop in (partial(remat.scan, slots=slots), plain_scan)
    )
    assert_same([found], [expected], bitwise=False, tolerance=1e-11)


def test_what_a_step_leaves_for_a_loop_inside_is_no_input_of_the_loop_around_it():
    """Each step replaces it before it is used. Under vmap all that a loop reaches is an input: no graph shows more."""

    def total(loop, h):
        state = {}
        in_loop = lambda step: lambda h, _: (loop(step, h, XS[:1])[0], None)  # noqa: E731

        def gated(h, x):
            return torch.tanh(h * state["gate"] + x), None

        def gate(h, _):
            state["gate"] = torch.sigmoid(h)
            return in_loop(gated)(h, _)

        return loop(in_loop(gate), h, XS)[0].sum()

    found, expected = (vmap(grad(partial(total, loop)))(numbers(2, 3)) for loop in (scan, plain_scan))
    assert_same([found], [expected], bitwise=False, tolerance=1e-12)


def test_nothing_runs_behind_a_loop_that_cuts_the_graph():
    """Not in a transform either, also where all of it has a graph in plain autograd, of a parameter."""
    parameter = numbers(3).requires_grad_()

    def total(loop, h):
        def broken(h, x):
            h = torch.tanh(h * parameter)
            return h.mul_(2.0) + x, None  # tanh has saved its result: this has no gradient

        last, _ = loop(broken, h, XS)
        return loop(lambda c, x: (c.detach() + x * h, None), last * 2, XS)[0].sum()

    for transform in (grad, lambda f: vmap(grad(f))):
        given = numbers(3) if transform is grad else numbers(2, 3)
        found, expected = (transform(partial(total, loop))(given) for loop in (scan, plain_scan))
        assert_same([found], [expected], bitwise=False, tolerance=1e-12)


def test_what_steps_of_an_earlier_loop_have_left_is_replaced_in_a_transform():
    parameter, state = numbers(3).requires_grad_(), {}

    def total(loop, h):
        def gate(h, x):
            state["gate"] = torch.sin(parameter * h)
            return torch.tanh(h * state["gate"] + x), None

        def twice(h, _):
            return loop(gate, h, XS)[0], None

        return loop(twice, loop(twice, h, XS[:1])[0], XS[:1])[0].sum()

    found, expected = (grad(partial(total, loop))(numbers(3)) for loop in (scan, plain_scan))
    assert_same([found], [expected], bitwise=False, tolerance=1e-12)


NESTED = {
    "grad(vmap)": lambda total: grad(lambda w: vmap(lambda h: total(w, h))(XS).sum())(numbers(3)),
    "vmap(grad(vmap))": lambda total: vmap(grad(lambda w: vmap(lambda h: total(w, h))(XS).sum()))(numbers(2, 3)),
    "grad(vmap(vmap))": lambda total: grad(
        lambda ws: vmap(lambda w: vmap(lambda h: total(w, h))(XS))(ws).sum()
    )(numbers(2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("transform", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("kept", [torch.detach, torch.sin], ids=["detached", "with its graph"])
def test_what_a_loop_leaves_is_of_the_vmaps_around_it(transform, kept):
    """Steps run in vmaps of their own, whose levels are others than those of the vmaps around the loop."""

    def total(loop, w, h):
        left = {"mean": torch.zeros(3, dtype=DOUBLE)}

        def step(h, x):
            h = torch.tanh(h * w + x) + 0.1 * left["mean"].detach()
            left["mean"] = kept(h)
            return h, None

        return (loop(step, loop(step, h, XS)[0], XS)[0] * left["mean"].detach()).sum()

    found, expected = (transform(partial(total, loop)) for loop in (scan, plain_scan))
    assert_same([found], [expected], bitwise=False, tolerance=1e-12)


def plain_while(cond, body, carry):
    while cond(carry):
        carry = body(carry)
    return carry


@pytest.mark.parametrize("count", [0, torch.tensor(0)], ids=["number", "tensor"])
@pytest.mark.parametrize("transform", NESTED.values(), ids=NESTED)
def test_while_loops_of_a_batch_whose_examples_end_together(transform, count):
    def total(loop, w, h):
        return loop(lambda carry: carry[1] < 5, lambda carry: (torch.tanh(carry[0] * w), carry[1] + 1), (h, count))[0]

    found, expected = (
        transform(lambda *args, loop=loop: total(loop, *args).sum())
        for loop in (partial(remat.while_loop, slots=2), plain_while)
    )
    assert_same([found], [expected], bitwise=False, tolerance=1e-12)


def test_while_loops_of_a_batch_whose_examples_do_not_end_together():
    halved = lambda h: remat.while_loop(lambda h: h.abs().sum() > 0.1, lambda h: h / 2, h, slots=2)  # noqa: E731
    assert torch.equal(vmap(halved)(torch.ones(2, 3)), torch.full((2, 3), 1 / 32))  # they are alike
    with pytest.raises(remat.StepError, match=r"different numbers of steps.*Use scan"):
        vmap(halved)(XS)
    assert vmap(lambda h: remat.while_loop(lambda h: False, torch.sin, h, slots=2))(XS) is not None


@pytest.mark.parametrize("transform", [grad, lambda loss: vmap(grad(loss))])
def test_what_a_step_saves_for_the_gradient_of_a_constant_may_be_written_into(transform):
    """A parameter that the transform does not differentiate by needs nothing that steps save for it."""
    scale = numbers(3).requires_grad_()

    def loss(loop, start):
        def step(h, _):
            h = h * 1.5
            wave = torch.sin(scale * h)
            return torch.tanh(h.mul_(1.1) * wave), None

        return loop(step, start, None, length=4)[0].pow(2).sum()

    found, expected = (transform(partial(loss, loop))(numbers(2, 3)) for loop in (scan, plain_scan))
    assert_same([found], [expected], bitwise=False, tolerance=1e-12)
    assert scale.requires_grad

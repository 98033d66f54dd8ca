"""Hooks see whole gradients, as often and in the same order as in the plain loop, wherever a recorded range begins."""

import pytest
import torch

import remat
from tests.frameworks.torch.programs import DOUBLE, plain_scan
from tests.frameworks.untracked import Box

BUDGETS = [{"slots": 1}, {"slots": 3}, {"slots": 8}, {"memory": "1 MiB"}]


def start():
    torch.manual_seed(0)
    return (torch.randn(3, 3, dtype=DOUBLE) * 0.7).requires_grad_(), torch.randn(3, dtype=DOUBLE, requires_grad=True)


def clipping(calls):
    """A step's hook on its carry: it notes the gradient that it is given, and clips it."""

    def hook(gradient):
        calls.append(gradient.clone())
        return gradient.clamp(-0.1, 0.1)

    return hook


def sums(w, calls, h):
    if h.requires_grad:
        h.register_hook(clipping(calls))
    h = torch.tanh(h @ w)
    return h, h.sum()


def the_carry_as_output(w, calls, h):
    h, _ = sums(w, calls, h)
    return h, h


def the_incoming_carry_as_output(w, calls, h):
    return sums(w, calls, h)[0], h


def two_hooks_in_and_out(w, calls, h):
    if h.requires_grad:
        h.register_hook(lambda g: calls.append(g * 2))
    h, y = sums(w, calls, h)
    if h.requires_grad:
        h.register_hook(lambda g: calls.append(g + 1) or g * 0.5)
    return h, y


@pytest.mark.parametrize("how", BUDGETS, ids=str)
@pytest.mark.parametrize("step", [sums, the_carry_as_output, the_incoming_carry_as_output, two_hooks_in_and_out])
def test_a_hook_on_the_carry_sees_its_whole_gradient(step, how):
    def run(loop, **how):
        w, start_at = start()
        calls = []
        last, ys = loop(lambda h, _: step(w, calls, h), start_at * 1.0, None, length=8, **how)
        slopes = torch.autograd.grad(ys.pow(2).sum() + last.sum(), (w, start_at))
        return [*slopes, *calls]

    found, expected = run(remat.scan, **how), run(plain_scan)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("how", BUDGETS, ids=str)
def test_hooks_on_a_leaf_that_steps_hand_on_are_those_of_one_tensor(how):
    def run(loop, **how):
        w, scale = start()
        calls = []

        def step(carry, _):
            h, scale = carry
            if scale.requires_grad:
                scale.register_hook(clipping(calls))
            return (torch.tanh(h @ w * scale), scale), None

        (h, _), _ = loop(step, (torch.ones(3, dtype=DOUBLE), scale * 1.0), None, length=5, **how)
        return torch.autograd.grad(h.sum(), (w, scale)), len(calls)

    (found, often), (expected, expected_often) = run(remat.scan, **how), run(plain_scan)
    assert often == expected_often == 5
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_a_hook_on_the_initial_carry_sees_what_other_uses_of_it_add():
    def run(loop, **how):
        w, start_at = start()
        calls = []
        last, _ = loop(lambda h, _: sums(w, calls, h), start_at, None, length=4, **how)
        return [*torch.autograd.grad(last.sum() + 3 * start_at.sum(), (w, start_at)), *calls]

    for one, other in zip(run(remat.scan, slots=2), run(plain_scan), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def halved(h):
    if h.requires_grad:
        h.register_hook(lambda g: g * 0.5)
    return h


def halves_inside(loop, w, h, x):
    h = torch.tanh(halved(h @ w) * x)
    return h, h.sum()


def halves_what_it_returns(loop, w, h, x):
    h = halved(halves_inside(loop, w, h, x)[0])
    return h, h


def halves_its_input(loop, w, h, x):
    return halves_inside(loop, w, h, halved(x))


def halves_in_a_loop_inside(loop, w, h, x):
    return loop(lambda h, _: halves_inside(loop, w, h, x), h, None, length=2)[0], None


@pytest.mark.parametrize("how", [{"slots": 2}, {"memory": "1 MiB"}], ids=str)
@pytest.mark.parametrize(
    ("step", "order"),
    [(halves_inside, 2), (halves_inside, 3), (halves_what_it_returns, 2), (halves_its_input, 2),
     (halves_in_a_loop_inside, 2)],
)  # fmt: skip
def test_linear_hooks_in_steps_are_exact_in_derivatives_of_any_order(step, order, how):
    def run(loop, **how):
        w, start_at = start()
        leaves = w, start_at, torch.linspace(0.5, 1.5, 4, dtype=DOUBLE).requires_grad_()
        inner = lambda *args, **length: loop(*args, **length, **how)  # noqa: E731
        last, ys = loop(lambda h, x: step(inner, w, h, x), start_at, leaves[2], **how)
        slopes = [last, *([] if ys is None else [ys])]
        for _ in range(order):
            slopes = torch.autograd.grad(sum(slope.pow(2).sum() for slope in slopes), leaves, create_graph=True)
        return slopes

    torch.testing.assert_close(run(remat.scan, **how), run(plain_scan), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "hook",
    [lambda g: g.clamp(-0.1, 0.1), lambda g: g / g.norm(), lambda g: g * (g.abs() < 1), lambda g: g + 1],
    ids=["clamp", "norm", "mask", "add"],
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_hook_that_is_not_linear_is_refused_in_second_derivatives(hook, inside):
    w, start_at = start()

    def step(h, _):
        h = torch.tanh(h @ w) if inside else h
        if h.requires_grad:
            h.register_hook(hook)
        return torch.tanh(h @ w), None

    last, _ = remat.scan(lambda h, _: remat.scan(step, h, None, length=2, slots=1), start_at, None, length=2, slots=2)
    (slope,) = torch.autograd.grad(last.sum(), w, create_graph=True)
    with pytest.raises(remat.StepError, match=r"hook that a step.*changes the gradient.*differentiate once"):
        slope.sum().backward()


@pytest.mark.parametrize("hook", [lambda g: None, lambda g: g * 0.5], ids=["sees", "halves"])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("how", [{"slots": 2}, {"memory": "1 MiB"}], ids=str)
def test_a_hook_on_a_parameter_is_called_once_for_each_derivative(hook, order, how):
    def run(loop, **how):
        leaves = start()
        calls = []
        leaves[0].register_hook(lambda g: (calls.append(1), hook(g))[1])
        last, ys = loop(lambda h, _: (torch.tanh(h @ leaves[0]), h.sum()), leaves[1], None, length=4, **how)
        slopes = last, ys
        for _ in range(order):
            slopes = torch.autograd.grad(sum(slope.pow(2).sum() for slope in slopes), leaves, create_graph=True)
        return slopes, len(calls)

    (found, often), (expected, expected_often) = run(remat.scan, **how), run(plain_scan)
    assert often == expected_often == order
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("losses", [1, 2])
@pytest.mark.parametrize("segment", [remat.checkpoint, torch.utils.checkpoint.checkpoint])
def test_a_hook_on_a_parameter_of_a_loop_in_a_segment(segment, losses):
    def run(loop):
        w, start_at = start()
        calls = []
        w.register_hook(lambda g: (calls.append(1), g * 0.5)[1])
        last, ys = loop(lambda h, _: (torch.tanh(h @ w), h.sum()), start_at)
        if losses == 2:
            ys.sum().backward(retain_graph=True)
        (last.sum() + ys.pow(2).sum()).backward()
        return w.grad, len(calls)

    inside = {"use_reentrant": False} if segment is not remat.checkpoint else {}
    found = run(lambda step, h: segment(lambda h: remat.scan(step, h, None, length=4, slots=2), h, **inside))
    expected = run(lambda step, h: plain_scan(step, h, None, length=4))
    assert found[1] == expected[1] == losses
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-14)


def test_a_hook_draws_random_numbers_where_the_program_goes_on():
    def run(loop, **how):
        w, start_at = start()
        torch.manual_seed(3)

        def step(h, _):
            h = torch.nn.functional.dropout(torch.tanh(h @ w), 0.3)
            if h.requires_grad:
                h.register_hook(lambda g: g + torch.randn_like(g))
            return h, None

        last, _ = loop(step, start_at, None, length=6, **how)
        return [*torch.autograd.grad(last.sum(), (w, start_at)), torch.rand(2)]

    for one, other in zip(run(remat.scan, slots=2), run(plain_scan), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("how", [{"slots": 2}, {"memory": "1 MiB"}], ids=str)
def test_what_a_hook_writes_stays_after_each_backward_and_not_after_measuring(how):
    def run(loop, **how):
        w, start_at = start()
        counted, norms, box = [0], [], Box(0)

        def step(h, _):
            counted[0] += 1  # state of the step, which is put back when it is recomputed
            h = torch.tanh(h @ w) * (1 + 0.1 * counted[0])
            if h.requires_grad:
                h.register_hook(lambda g: norms.append(float(g.norm())))
                h.register_hook(lambda g: setattr(box, "value", box.value + 1))
            return h, None

        last, _ = loop(step, start_at, None, length=6, **how)
        last.sum().backward(retain_graph=True)
        last.pow(2).sum().backward()
        return counted, box.value, norms

    found, expected = run(remat.scan, **how), run(plain_scan)
    assert found[:2] == expected[:2] == ([6], 12)
    assert found[2] == pytest.approx(expected[2], rel=1e-12)


@pytest.mark.parametrize("how", BUDGETS, ids=str)
def test_a_hook_on_what_depends_on_constants_alone_does_not_run(how):
    """Step 0 is recorded with a carry that requires a gradient, also where that of the caller does not."""

    def run(loop, **how):
        w, start_at = start()
        box = Box(0)

        def step(h, x):
            h = h + x
            if h.requires_grad:
                h.register_hook(lambda g: setattr(box, "value", box.value + 1))
            return torch.tanh(h @ w), None

        last, _ = loop(step, start_at.detach(), torch.ones(5, 3, dtype=DOUBLE), **how)
        (slope,) = torch.autograd.grad(last.sum(), w)
        return slope, box.value

    (found, often), (expected, expected_often) = run(remat.scan, **how), run(plain_scan)
    assert torch.equal(found, expected)
    assert often == expected_often == 4


def behind_the_carry(loop, cut_at, **how):
    """A loop, one step of which detaches its carry: how often hooks behind the carry are called with a gradient."""
    w, start_at = start()
    weight = torch.full((3, 3), 0.2, dtype=DOUBLE, requires_grad=True)
    count, calls = [0], Box(0)
    weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    weight.register_post_accumulate_grad_hook(lambda _: setattr(calls, "value", calls.value + 1))

    def step(h, _):
        count[0] += 1
        return torch.tanh((h.detach() if count[0] == cut_at else h) @ w), None

    h = torch.sin(start_at @ weight)
    h.register_hook(lambda g: g.clamp(-0.1, 0.1))
    h = loop(lambda h, _: (torch.sin(h), None), h, None, length=2, **how)[0]
    last = loop(step, torch.tanh(h), None, length=8, **how)[0]
    last.sum().backward()
    return w.grad, weight.grad, calls.value


@pytest.mark.parametrize("how", BUDGETS, ids=str)
@pytest.mark.parametrize("cut_at", [1, 2, 3, 4, 7, 8])
def test_nothing_runs_behind_a_carry_that_a_step_detaches(cut_at, how):
    found, expected = behind_the_carry(remat.scan, cut_at, **how), behind_the_carry(plain_scan, cut_at)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:] == (None, 0)


def test_nothing_seems_to_run_behind_an_output_that_the_loss_does_not_use():
    """The node of the loop has all inputs of its outputs, and not those of one of them."""

    def run(loop, **how):
        w, start_at = start()
        calls, seen = Box(0), []
        for hooked in (w.register_hook, w.register_post_accumulate_grad_hook, start_at.register_hook):
            hooked(lambda _: setattr(calls, "value", calls.value + 1))
        w.grad = torch.ones_like(w)
        made = start_at * w.sum()
        made.register_hook(lambda g: seen.append(g.abs().sum().item()))
        scale = torch.ones((), dtype=DOUBLE, requires_grad=True)

        def step(h, _):
            return (torch.sin(h[0] * scale).detach() * scale, h[1] * 2), h[0]

        (last, _), _ = loop(step, (made.sin(), (w * 2).sum()), None, length=5, **how)
        last.sum().backward()
        return scale.grad, start_at.grad, w.grad.sum(), calls.value, seen

    found, expected = run(remat.scan, slots=2), run(plain_scan)
    assert found == expected
    assert expected[1:] == (None, 9, 0, [])


def test_hooks_that_waited_for_an_unused_input_are_called_for_other_uses():
    def run(loop, **how):
        w, start_at = start()
        calls = []
        w.register_hook(lambda g: calls.append(g.sum().item()))
        w.register_post_accumulate_grad_hook(lambda leaf: calls.append(leaf.grad.sum().item()))

        def step(h, _):
            return (h[0] * 2, torch.sin(h[1])), None

        (last, _), _ = loop(step, (start_at, w.sum()), None, length=5, **how)
        (last.sum() + w.pow(2).sum()).backward(retain_graph=True)
        last.sum().backward(retain_graph=True)
        w.sum().backward()
        return calls

    assert run(remat.scan, slots=2) == run(plain_scan)


@pytest.mark.parametrize("made", [lambda w: w.sum(), lambda w: (w * 2).sum(), lambda w: (w.sin() + w.cos()).sum()])
@pytest.mark.parametrize("also", [0.0, None])
def test_a_gradient_that_is_zero_is_not_taken_for_none(made, also):
    """Behind an unused input it is None if nothing else leads there, and not if other uses give zeros."""

    def run(loop, **how):
        w, start_at = start()
        calls = []
        w.register_hook(lambda g: calls.append(g.clone()))

        def step(h, _):
            return (h[0] * 2, torch.sin(h[1]), h[2] * 3), None

        (last, _, _), _ = loop(step, (start_at, made(w), made(w)), None, length=5, **how)
        loss = last.sum() if also is None else last.sum() + (w * also).sum()
        (by_grad,) = torch.autograd.grad(loss, w, retain_graph=True, allow_unused=True)
        loss.backward()
        return w.grad, by_grad, len(calls)

    found, expected = run(remat.scan, slots=2), run(plain_scan)
    assert found[2] == expected[2] == (0 if also is None else 2)
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert one is other is None if also is None else torch.equal(one, other)


def test_the_last_carry_has_no_graph_where_the_last_step_detaches_it():
    count = [0]

    def step(h, _):
        count[0] += 1
        return (torch.sin(h).detach() if count[0] == 4 else torch.sin(h)), None

    last, _ = remat.scan(step, start()[1], None, length=4, slots=2)
    assert not last.requires_grad


def test_inputs_that_no_step_uses_are_not_connected():
    _, start_at = start()
    calls = []
    unused = start_at * 2
    unused.register_hook(calls.append)
    (last, _), _ = remat.scan(lambda c, x: ((c[0] * x[0], c[1].detach()), None), (start_at, unused),
                              (torch.ones(3, 3, dtype=DOUBLE), unused * 1.0), slots=3)  # fmt: skip
    last.sum().backward()
    assert calls == []


@pytest.mark.parametrize("how", [{"slots": 2}, {"memory": "1 MiB"}], ids=str)
@pytest.mark.parametrize("inner", [{"slots": 1}, {"memory": "1 MiB"}], ids=str)
def test_hooks_in_a_loop_inside_of_a_step_are_not_called_by_measuring(how, inner):
    def run(loop, how, inner):
        w, start_at = start()
        calls = Box(0)

        def small_step(h, _):
            h = torch.tanh(h @ w)
            if h.requires_grad:
                h.register_hook(lambda g: setattr(calls, "value", calls.value + 1))
            return h, None

        last, _ = loop(lambda h, _: loop(small_step, h, None, length=3, **inner), start_at, None, length=4, **how)
        last.sum().backward()
        return calls.value

    assert run(remat.scan, how, inner) == run(plain_scan, {}, {}) == 12


@pytest.mark.parametrize("segment", [lambda fn, x: fn(x), remat.checkpoint], ids=["", "in a segment"])
@pytest.mark.parametrize("how", BUDGETS, ids=str)
def test_the_hook_of_a_parameter_that_is_frozen_before_the_backward_sees_its_gradient(how, segment):
    def run(loop, **how):
        w, start_at = start()
        calls = []
        w.register_hook(calls.append)

        def losses(h):
            return loop(lambda h, _: (torch.tanh(h @ w), None), h, None, length=6, **how)[0]

        last = segment(losses, start_at)
        w.requires_grad_(False)
        last.sum().backward()
        assert w.grad is None
        assert not w.requires_grad
        return [*calls, start_at.grad]

    for one, other in zip(run(remat.scan, **how), run(plain_scan), strict=True):
        assert torch.equal(one, other)


def test_hooks_of_a_first_run_that_is_given_up_are_taken_off():
    def gradient(checkpoint):
        w = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4).requires_grad_()

        def fn(h):
            h.register_hook(lambda bar: bar * 0.7)
            # Transforms refuse to run in a segment, which is then run again without hooks on saved tensors.
            return torch.sin(h) - torch.func.grad(lambda q: torch.tanh(q).pow(2).sum())(h)

        checkpoint(fn, w * 2).sum().backward()
        return w.grad

    assert torch.equal(gradient(remat.checkpoint), gradient(lambda fn, h: fn(h)))


def with_module_hooks(loop, hook, order, **how):
    torch.manual_seed(0)
    layer, start_at = torch.nn.Linear(3, 3, dtype=DOUBLE), start()[1]
    calls = Box(0)
    layer.register_full_backward_hook(
        lambda _, inputs, outputs: (setattr(calls, "value", calls.value + 1), hook(inputs[0]))[1]
    )
    slopes, _ = loop(lambda h, _: (torch.tanh(layer(h)), None), start_at, None, length=5, **how)
    for _ in range(order):
        slopes = sum(torch.autograd.grad(slopes.pow(2).sum(), (layer.weight, start_at), create_graph=order > 1))
    return slopes, calls.value


@pytest.mark.parametrize("how", [{"slots": 2}, {"memory": "1 MiB"}], ids=str)
def test_backward_hooks_of_modules_are_called_once_a_step_and_not_by_measuring(how):
    found, expected = (
        with_module_hooks(loop, lambda g: None, 1, **h) for loop, h in [(remat.scan, how), (plain_scan, {})]
    )
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-14)
    assert found[1] == expected[1] == 5


def test_backward_hooks_of_modules_are_exact_in_second_derivatives_or_refused():
    found, expected = (
        with_module_hooks(loop, lambda g: (g * 0.5,), 2, **h)[0]
        for loop, h in [(remat.scan, {"slots": 2}), (plain_scan, {})]
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(remat.StepError, match=r"backward hook of Linear changes the gradient.*not linear"):
        with_module_hooks(remat.scan, lambda g: (g.clamp(-0.01, 0.01),), 2, slots=2)


@pytest.mark.parametrize("how", BUDGETS, ids=str)
@pytest.mark.parametrize("wanted", [["w"], ["v"], ["start"], ["xs"], ["made"], ["v", "made"]], ids=str)
def test_no_hook_is_called_on_the_way_to_gradients_that_nobody_asks_for(wanted, how):
    def run(loop, **how):
        w, start_at = start()
        leaves = {"w": w, "start": start_at, "v": torch.ones(3, dtype=DOUBLE), "xs": torch.ones(4, 3, dtype=DOUBLE),
                  "made": torch.ones(3, dtype=DOUBLE)}  # fmt: skip
        for leaf in leaves.values():
            leaf.requires_grad_()
        made, calls = leaves["made"].sin(), Box(0)

        def step(h, x):
            h = h @ w
            h.register_hook(lambda g: setattr(calls, "value", calls.value + 1))
            scaled = x * 2
            scaled.register_hook(lambda g: setattr(calls, "value", calls.value + 100))
            return torch.tanh(h * leaves["v"] + scaled * made), None

        last, _ = loop(step, start_at, leaves["xs"], **how)
        return torch.autograd.grad(last.sum(), [leaves[name] for name in wanted]), calls.value

    (found, often), (expected, expected_often) = run(remat.scan, **how), run(plain_scan)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert often == expected_often

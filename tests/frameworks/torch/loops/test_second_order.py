"""Beyond the first order on PyTorch: gradients of gradients, and the transforms of torch.func."""

import pytest
import torch
from torch.func import functional_call, grad, jacrev, vjp, vmap

import remat
from tests.frameworks.torch.programs import DOUBLE, assert_same, lstm, plain_scan, weigh


def values():
    torch.manual_seed(0)
    return (torch.randn(4, 4, dtype=DOUBLE) * 0.5, torch.randn(3, 4, dtype=DOUBLE), torch.randn(7, 3, 4, dtype=DOUBLE))


def run(loop, W, h, xs, **how):
    def step(h, x):
        h = torch.tanh(h @ W + x)
        return h, h.sin()

    return loop(step, h, xs, **how)


def loss(loop, **how):
    def of(W, h, xs):
        last, ys = run(loop, W, h, xs, **how)
        return (last**2).sum() + (ys**3).sum()

    return of


LOSSES = loss(remat.scan, slots=2), loss(plain_scan)


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("wanted", ["Whx"])
def test_gradients_of_gradients(order, wanted):
    def derivatives(of):
        W, h, xs = (v.clone().requires_grad_(k in wanted) for v, k in zip(values(), "Whx", strict=True))
        inputs = [v for v in (W, h, xs) if v.requires_grad]
        total = of(W, h, xs)
        for _ in range(order):
            found = torch.autograd.grad(total, inputs, create_graph=True)
            total = sum((part**2).sum() for part in found)
        return found

    assert_same(*map(derivatives, LOSSES), bitwise=False, tolerance=1e-10)


def test_gradients_of_gradients_of_modules_and_of_what_was_made_before():
    def derivatives(loop, **how):
        cell, carry, xs, wanted = lstm(steps=6)
        made = carry[0] * 2
        total = weigh(loop(lambda c, x: (cell(c, x + made)[0], c[0]), (made, carry[1]), xs, **how))
        first = torch.autograd.grad(total, wanted, create_graph=True)
        return torch.autograd.grad(sum((part**2).sum() for part in first), wanted)

    assert_same(derivatives(remat.scan, slots=2), derivatives(plain_scan), bitwise=False, tolerance=1e-11)


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("steps", [2, 7])
def test_gradients_of_gradients_of_what_a_loop_in_a_checkpoint_closes_over(steps, made):
    def derivatives(loop, checkpoint, **how):
        W, h, xs = (v.clone().requires_grad_() for v in values())
        weight = W.sin() if made else W  # a checkpoint saves it, and gives another tensor for it

        def segment(h, xs):
            return loop(lambda h, x: (torch.tanh(h @ weight + x), None), h, xs[:steps], **how)[0]

        total = checkpoint(segment, h.tanh(), xs).pow(2).sum()
        first = torch.autograd.grad(total, (W, h, xs), create_graph=True)
        return torch.autograd.grad(sum((part**2).sum() for part in first), (W, h, xs))

    expected = derivatives(plain_scan, lambda function, *args: function(*args))
    assert_same(derivatives(remat.scan, remat.checkpoint, slots=1), expected, bitwise=False, tolerance=1e-11)


def test_a_gradient_penalty_by_backward():
    def gradient(of):
        W, h, xs = (v.clone().requires_grad_() for v in values())
        (slope,) = torch.autograd.grad(of(W, h, xs), h, create_graph=True)
        (slope.pow(2).sum() + of(W, h, xs)).backward()
        return [W.grad, h.grad, xs.grad]

    assert_same(*map(gradient, LOSSES), bitwise=False)


def test_gradcheck():
    W, h, xs = (v.clone().requires_grad_() for v in values())
    assert torch.autograd.gradcheck(LOSSES[0], (W, h, xs[:2]))
    assert torch.autograd.gradgradcheck(LOSSES[0], (W, h, xs[:2]))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: grad(f, argnums=(0, 1, 2))(*values()),
        lambda f: vjp(f, *values())[1](torch.ones((), dtype=DOUBLE)),
        lambda f: grad(lambda W: (grad(f)(W, *values()[1:]) ** 2).sum())(values()[0]),
        lambda f: vmap(grad(f, argnums=(0, 1)), in_dims=(None, 0, None))(values()[0], batch(), values()[2]),
        lambda f: grad(lambda W, xs: vmap(lambda h: f(W, h, xs))(batch()).sum())(values()[0], values()[2]),
        lambda f: jacrev(jacrev(lambda W: f(W, *values()[1:])))(values()[0]),
    ],
    ids=["grad", "vjp", "grad of grad", "vmap of grad", "grad of vmap", "jacrev of jacrev"],
)
def test_transforms_of_torch_func(transform):
    found, expected = map(transform, LOSSES)
    as_tuple = lambda v: v if isinstance(v, tuple) else (v,)  # noqa: E731
    assert_same(as_tuple(found), as_tuple(expected), bitwise=False, tolerance=1e-11)


def batch():
    return torch.randn(5, 3, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("axis", ["W", "h", "xs", "all"])
def test_loops_over_a_batch(axis):
    W, h, xs = values()
    many = torch.stack([W, W * 0.5, W * 0.1]), torch.stack([h, h * 2, h - 1]), torch.stack([xs, xs + 1, xs * 2], 1)
    dims = [int(name == "xs") if axis in (name, "all") else None for name in ("W", "h", "xs")]
    args = [b if dim is not None else a for a, b, dim in zip((W, h, xs), many, dims, strict=True)]
    found = vmap(lambda *a: run(remat.scan, *a, slots=2), in_dims=tuple(dims))(*args)
    expected = vmap(lambda *a: run(plain_scan, *a), in_dims=tuple(dims))(*args)
    assert_same(found, expected, bitwise=False)


def test_backward_through_a_mapped_loop():
    W, _, xs = values()

    def gradient(of):
        weight = W.clone().requires_grad_()
        vmap(lambda h: of(weight, h, xs))(batch()).sum().backward()
        return [weight.grad]

    assert_same(*map(gradient, LOSSES), bitwise=False)


def test_functional_calls_of_modules():
    cell, carry, xs, _ = lstm(steps=6)

    def of(loop, **how):
        def total(parameters):
            return weigh(loop(lambda c, x: functional_call(cell, parameters, (c, x)), carry, xs, **how))

        return grad(total)({name: p.detach() for name, p in cell.named_parameters()})

    assert_same(list(of(remat.scan, slots=2).values()), list(of(plain_scan).values()), bitwise=False)


@pytest.mark.parametrize("place", ["variable", "dict", "frozenset"])
def test_second_derivatives_where_one_captured_tensor_was_computed_from_another(place):
    def derivatives(scan):
        W, h, _ = values()
        W.requires_grad_()
        made = torch.tanh(h @ W)
        by_name, hidden = {"made": made}, frozenset([made])

        def step(h, _):
            shift = {"variable": lambda: made, "dict": lambda: by_name["made"], "frozenset": lambda: list(hidden).pop()}
            return torch.tanh(h @ W + shift[place]()), h.sum()

        last = scan(step, h)
        (first,) = torch.autograd.grad(last.square().sum(), W, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), W, create_graph=True)
        return [first.detach(), second.detach(), *torch.autograd.grad(second.sum(), W)]

    ours = derivatives(lambda step, h: remat.scan(step, h, length=5, slots=2)[0])
    assert_same(ours, derivatives(lambda step, h: plain_scan(step, h, (), length=5)[0]), bitwise=False)


def test_second_derivatives_where_a_step_reaches_what_a_tensor_was_computed_from():
    class Cell:
        def __init__(self):
            self.m = torch.linspace(-1, 1, 12, dtype=DOUBLE).view(3, 4).requires_grad_()
            self.made = frozenset([torch.tanh(self.m)])  # in which nothing can be rebound

        def __call__(self, h, x):
            return torch.tanh(h * next(iter(self.made)) + x), self.m.shape[0]

    def derivatives(scan):
        cell, (_, h, xs) = Cell(), values()
        last = torch.sin(scan(cell, h.requires_grad_(), xs)[0])
        firsts = torch.autograd.grad(last.square().sum(), (cell.m, h), create_graph=True)
        return torch.autograd.grad(sum(first.square().sum() for first in firsts), (cell.m, h))

    assert_same(derivatives(lambda *args: remat.scan(*args, slots=2)), derivatives(plain_scan), bitwise=False)


def test_steps_run_under_the_autocast_of_their_loop_in_second_derivatives():
    W, h, xs = (value.float() for value in values())
    W.requires_grad_()

    def step(h, x):
        product = h @ W
        assert product.dtype is torch.bfloat16
        return torch.tanh(product + x).float(), None

    with torch.autocast("cpu", torch.bfloat16):
        last, _ = remat.scan(step, h, xs, slots=2)
    (first,) = torch.autograd.grad(last.square().sum(), W, create_graph=True)
    assert torch.autograd.grad(first.square().sum(), W)[0].isfinite().all()


def test_a_hook_inside_a_step_may_look_at_second_derivatives_and_not_change_them():
    def derivatives(scan, hook):
        W, h, _ = values()
        W.requires_grad_()

        def step(h, _):
            inner = h @ W
            inner.register_hook(hook)
            return torch.tanh(inner), h.sum()

        last = scan(step, h)
        (first,) = torch.autograd.grad(last.square().sum(), W, create_graph=True)
        return [first.detach(), *torch.autograd.grad(first.square().sum() + last.sum(), W)]

    def ours(step, h):
        return remat.scan(step, h, length=5, slots=2)[0]

    def plain(step, h):
        return plain_scan(step, h, (), length=5)[0]

    assert_same(derivatives(ours, lambda bar: None), derivatives(plain, lambda bar: None), bitwise=False)
    with pytest.raises(remat.StepError, match=r"a hook that a step puts on a tensor changes the gradient"):
        derivatives(ours, lambda bar: bar.clamp(-0.05, 0.05))


def test_a_made_tensor_in_a_frozenset_of_a_loop_in_a_segment():
    """Inside a segment, saved leaves come back as other tensors; that they are behind the made one must be seen."""

    def second(loop, segment):
        W, h, _ = (value.requires_grad_() for value in values())

        def inner(h):
            made = frozenset([torch.sin(h @ W)])
            return loop(lambda h, _: (torch.tanh(h @ W) * next(iter(made)), None), h, None, length=2)[0]

        slopes = torch.autograd.grad(segment(inner, torch.tanh(h @ W)).sum(), (W, h), create_graph=True)
        sum(slope.pow(2).sum() for slope in slopes).backward()
        return W.grad, h.grad

    found = second(lambda *args, **how: remat.scan(*args, slots=1, **how), remat.checkpoint)
    assert_same(found, second(plain_scan, lambda fn, x: fn(x)), bitwise=False)


@pytest.mark.parametrize("budget", [{"slots": 1}, {"memory": "1 MiB"}], ids=str)
def test_zeros_by_an_input_that_the_first_derivative_was_not_asked_for_are_no_missing_gradient(budget):
    h = torch.ones(3, dtype=torch.float64, requires_grad=True)
    xs = torch.linspace(0, 1, 12, dtype=torch.float64).view(4, 3).requires_grad_()
    step = lambda h, x: (torch.tanh(h * 0 + x), None)  # noqa: E731
    (slope,) = torch.autograd.grad(remat.scan(step, h, xs, **budget)[0].sum(), h, create_graph=True)
    assert torch.equal(torch.autograd.grad(slope.sum(), xs, allow_unused=True)[0], torch.zeros_like(xs))

"""What a step closes over gets its gradient without being listed; what cannot be found is an error, never a loss."""

import itertools
import weakref

import pytest
import torch

import remat
from tests.frameworks.torch.programs import DOUBLE, LSTM, assert_same, gradients, lstm, plain_scan, weigh


def tensors(seed=0):
    torch.manual_seed(seed)
    W = (torch.randn(3, 3, dtype=DOUBLE) * 0.5).requires_grad_()
    return W, torch.randn(2, 3, dtype=DOUBLE), torch.randn(11, 2, 3, dtype=DOUBLE)


def compared(make, wanted, h, xs, **how):
    """A step made anew for each of the two loops, since graphs behind captured tensors are used up."""
    how = how or {"slots": 3}
    assert_same(gradients(remat.scan, make(), h, xs, wanted, **how)[1], gradients(plain_scan, make(), h, xs, wanted)[1])


def test_modules_of_modules_and_frozen_parameters():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).double()
    net[0].bias.requires_grad_(False)
    _, h, xs = tensors()
    wanted = [p for p in net.parameters() if p.requires_grad]
    compared(lambda: lambda h, x: (net(h + x), h), wanted, h, xs)
    weigh(remat.scan(lambda h, x: (net(h + x), None), h, xs, slots=2)).backward()
    assert net[0].bias.grad is None


def test_a_parameter_that_no_step_uses_has_no_gradient():
    _, h, xs = tensors()
    cell = LSTM(3)
    cell.spare = torch.nn.Parameter(torch.ones(2))
    weigh(remat.scan(cell, (h, h), xs, slots=3)).backward()
    assert cell.spare.grad is None
    assert cell.gates.weight.grad is not None


def test_parameters_that_later_steps_use_are_found_through_the_module():
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3, dtype=DOUBLE) for _ in range(9)])
    h = torch.randn(2, 3, dtype=DOUBLE)

    def step(carry, _):
        i, h = carry
        return (i + 1, torch.tanh(layers[i](h))), None

    wanted = list(layers.parameters())
    loss = weigh(remat.scan(step, (0, h), length=9, slots=3))
    found = torch.autograd.grad(loss, wanted)
    loss = weigh(plain_scan(step, (0, h), None, length=9))
    assert_same(found, torch.autograd.grad(loss, wanted))


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 3}, {"slots": 7}, {"memory": "1 MiB"}], ids=str)
def test_a_made_tensor_that_only_later_steps_use(how, together):
    W, h, _ = tensors()
    made = [W * k for k in range(1, 8)]

    def step(carry, _):
        i, h = carry
        return (i + 1, torch.tanh(h @ made[i] + (h @ W if together else 0))), None

    def gradient(loop, **budget):
        return torch.autograd.grad(weigh(loop(step, (0, h), None, length=7, **budget)), [W], retain_graph=True)

    assert_same(gradient(remat.scan, **how), gradient(plain_scan), bitwise=False)


def test_a_made_tensor_that_no_search_finds_is_found_in_the_graph():
    W, h, xs = tensors()
    V = W * 2
    get = iter([V] * 1000).__next__
    found = gradients(remat.scan, lambda h, x: (torch.tanh(h @ get() + x), h), h, xs, [V], slots=3)[1]
    assert_same(found, gradients(plain_scan, lambda h, x: (torch.tanh(h @ V + x), h), h, xs, [V])[1])


def test_a_leaf_that_no_search_finds_is_found_in_the_graph():
    W, h, xs = tensors()
    made = iter([W] * 1000)
    get = made.__next__
    found = gradients(remat.scan, lambda h, x: (torch.tanh(h @ get() + x), h), h, xs, [W], slots=3)[1]
    assert_same(found, gradients(plain_scan, lambda h, x: (torch.tanh(h @ W + x), h), h, xs, [W])[1])


def test_a_layer_of_a_python_loop_is_seen_again_in_the_reverse_sweep():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 3, dtype=DOUBLE) for _ in range(3)]
    _, h, xs = tensors()
    wanted = [p for layer in layers for p in layer.parameters()]

    def net(loop, **how):
        carry = h
        for layer in layers:
            carry = loop(lambda c, x: (torch.tanh(layer(c) + x), None), carry, xs, **how)[0]  # noqa: B023
        return torch.autograd.grad(weigh(carry), wanted)

    assert_same(net(remat.scan, slots=2), net(plain_scan))


def test_hooks_on_made_tensors_and_kept_gradients_are_served_once():
    W, h, xs = tensors()
    made = W * 2
    made.retain_grad()
    seen = []
    made.register_hook(lambda g: seen.append(g))
    weigh(remat.scan(lambda h, x: (torch.tanh(h @ made + x), None), h, xs, slots=3)).backward()
    assert len(seen) == 1
    assert torch.equal(made.grad, seen[0])
    assert torch.equal(W.grad, made.grad * 2)


def test_steps_that_are_compiled():
    cell, carry, xs, wanted = lstm(steps=6)
    torch._dynamo.reset()
    compiled = torch.compile(cell, backend="aot_eager")
    expected = gradients(plain_scan, cell, carry, xs, wanted)[1]
    assert_same(gradients(remat.scan, compiled, carry, xs, wanted, slots=2)[1], expected, bitwise=False)
    assert_same(gradients(remat.scan, compiled, carry, xs, wanted, memory="64 KiB")[1], expected, bitwise=False)


def test_custom_functions_in_the_step():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    W, h, xs = tensors()
    compared(lambda: lambda h, x: (torch.tanh(Cube.apply(h @ W) + x), h), [W], h, xs)


def test_a_parameter_that_is_hidden_and_used_by_one_later_step_is_an_error():
    W, h, xs = tensors()
    p = torch.tensor(0.7, dtype=DOUBLE, requires_grad=True)
    hidden = weakref.ref(p)

    def step(carry, x):
        i, h = carry
        h = torch.tanh(h @ W + x)
        return (i + 1, h * hidden() if i == 5 else h), None

    with pytest.raises(remat.StepError, match="gradient would be lost"):
        weigh(remat.scan(step, (0, h), xs, slots=3)).backward()


@pytest.mark.parametrize(
    "how", [{"slots": 1}, {"slots": 3}, {"slots": 30}, {"memory": "1 MiB"}, {"memory": 6000}], ids=str
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_tensor_in_a_cache_that_a_step_fills(first, how):
    W, h, xs = tensors()

    def gradient(loop, **budget):
        cache = {}

        def step(carry, x):
            i, h = carry
            if i >= first and "V" not in cache:
                cache["V"] = torch.tanh(W)
            return (i + 1, torch.tanh(h @ (cache["V"] if i >= first else W) + x @ W)), h

        return torch.autograd.grad(weigh(loop(step, (0, h), xs, **budget)), [W])

    assert_same(gradient(remat.scan, **how), gradient(plain_scan), bitwise=False)


def test_parameters_that_are_swapped_for_the_call_are_swapped_for_the_reverse_sweep():
    cell, carry, xs, _ = lstm(steps=8)
    fast = {name: (p.detach() * 0.5).requires_grad_() for name, p in cell.named_parameters()}

    class Net(torch.nn.Module):
        def __init__(self, loop, **how):
            super().__init__()
            self.cell, self.loop, self.how = cell, loop, how

        def forward(self):
            return self.loop(self.cell, carry, xs, **self.how)

    def run(net):
        swapped = {f"cell.{name}": p for name, p in fast.items()}
        return torch.autograd.grad(weigh(torch.func.functional_call(net, swapped, ())), list(fast.values()))

    assert_same(run(Net(remat.scan, slots=3)), run(Net(plain_scan)))


def test_tensor_subclasses_that_are_captured():
    class Mine(torch.Tensor):
        pass

    W, h, xs = tensors()
    V = W.detach().as_subclass(Mine).requires_grad_()

    def step(h, x):
        return torch.tanh(h @ V + x).as_subclass(torch.Tensor), h

    expected = gradients(plain_scan, lambda h, x: (torch.tanh(h @ W + x), h), h, xs, [W])[1]
    found = gradients(remat.scan, step, h, xs, [V], slots=3)[1]
    assert_same([g.as_subclass(torch.Tensor) for g in found], expected)


def test_threads_may_share_a_step_that_captures_a_made_tensor():
    from threading import Thread

    W, h, xs = tensors()
    made = W * 1.5
    step = lambda h, x: (torch.tanh(h @ made + x), h)  # noqa: E731
    wanted, found = [made], []  # another thread may have bound the variable itself
    expected = gradients(plain_scan, step, h, xs, wanted)[1]

    def work():
        for _ in range(5):
            found.append(gradients(remat.scan, step, h, xs, wanted, slots=3)[1])

    threads = [Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    for each in found:
        assert_same(each, expected)
    assert made.grad_fn is not None


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the compiler itself
def test_a_loop_inside_something_compiled():
    W, h, xs = tensors()
    torch._dynamo.reset()

    def net(h, xs):
        return remat.scan(lambda h, x: (torch.tanh(h @ W + x), None), h * 2, xs, slots=3)[0].sin()

    expected = torch.autograd.grad(weigh(net(h, xs)), [W])
    found = torch.autograd.grad(weigh(torch.compile(net, backend="aot_eager")(h, xs)), [W])
    assert_same(found, expected, bitwise=False)


@pytest.mark.parametrize("place", ["frozenset", "set", "frozenset in a tuple"])
def test_a_tensor_in_a_set_has_its_gradient_under_torch_func(place):
    def loss(w, scan):
        made = torch.tanh(w)
        held = {"frozenset": frozenset([made]), "set": {made}, "frozenset in a tuple": (frozenset([made]),)}[place]

        def step(h, x):
            found = next(iter(held[0] if isinstance(held, tuple) else held))
            return torch.sin(h * found + x), None

        return scan(step, torch.ones(3, dtype=DOUBLE), torch.ones(5, 3, dtype=DOUBLE))[0].sum()

    w = torch.linspace(-1, 1, 3, dtype=DOUBLE)
    ours = torch.func.grad(loss)(w, lambda *args: remat.scan(*args, slots=2))
    torch.testing.assert_close(ours, torch.func.grad(loss)(w, plain_scan), rtol=1e-13, atol=0)


def test_a_tensor_that_cannot_be_found_is_no_lost_gradient_under_torch_func():
    def loss(w):
        hidden = itertools.repeat(torch.tanh(w))
        return remat.scan(lambda h, x: (h * next(hidden), None), torch.ones(3), length=5, slots=2)[0].sum()

    with pytest.raises(remat.StepError, match=r"shape \[3\].*torch.func.*not found.*Pass it through init or xs"):
        torch.func.grad(loss)(torch.ones(3))


@pytest.mark.parametrize("length", [2, 3, 7])
def test_a_step_that_replaces_what_it_keeps_in_a_dict_is_refused_whatever_the_length(length):
    # The second step must not find the value of the call again: results would be others than those of a plain loop.
    w, start = torch.randn(3, 3).requires_grad_(), torch.randn(3).requires_grad_()
    past = {"k": start * 1.0}

    def step(h, _):
        past["k"] = past["k"] * 0.5 + torch.tanh(h @ w)
        return torch.tanh(h + past["k"]), None

    with pytest.raises(remat.StepError, match="used a tensor that AddBackward0 made"):
        torch.autograd.grad(remat.scan(step, torch.ones(3), length=length, slots=2)[0].sum(), w)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("replaced_by", [1, 3])
@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 3}, {"memory": "1 MiB"}], ids=str)
def test_a_made_tensor_in_a_dict_that_steps_use_and_replace(how, replaced_by, order):
    """It was computed from another input, so that steps use a root in its place, also after the dict is put back."""

    def gradient(loop, **budget):
        W, h, xs = tensors()
        state = {"v": torch.tanh(W.sum(0)), "n": 0}

        def step(h, x):
            h = torch.tanh(h @ W + x + state["v"])
            state["n"] += 1
            if state["n"] >= replaced_by:
                state["v"] = h.detach().mean(0)
            return h, None

        slope = torch.autograd.grad(loop(step, h, xs, **budget)[0].sum(), W, create_graph=order == 2)[0]
        return slope if order == 1 else torch.autograd.grad(slope.pow(2).sum(), W)[0]

    torch.testing.assert_close(gradient(remat.scan, **how), gradient(plain_scan), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("saved", [lambda scale: scale, lambda scale: scale[0], lambda scale: scale[:1]])
def test_a_pullback_sees_tensors_that_steps_write_into_as_the_steps_left_them(saved):
    W, h, xs = tensors()

    def make(saved):
        scale = torch.ones(3, dtype=DOUBLE)

        def step(h, x):
            scale.add_(0.25)
            return torch.tanh(h @ W * saved(scale) + x), None

        return step

    expected = gradients(plain_scan, make(lambda scale: saved(scale).clone()), h, xs, [W])[1]
    for slots in (1, 3):
        assert_same(gradients(remat.scan, make(saved), h, xs, [W], slots=slots)[1], expected)


def test_hooks_write_into_tensors_that_steps_write_into_too():
    W, h, xs = tensors()
    log = torch.zeros(2, dtype=DOUBLE)

    def count(bar):
        log[1] += 1

    def step(h, x):
        log[0] += 1
        h = torch.tanh(h @ W + x)
        if h.requires_grad:
            h.register_hook(count)
        return h, None

    weigh(remat.scan(step, h, xs, slots=3)).backward()
    assert log.tolist() == [11, 11]


@pytest.mark.parametrize("cls", [True, False], ids=["on its class", "on an object"])
def test_the_error_for_a_parameter_that_a_step_makes_says_when_to_make_it(cls):
    class Layer:
        weight = None

    layer = Layer if cls else Layer()

    def step(h, x):
        if layer.weight is None:
            layer.weight = torch.nn.Parameter(torch.full((3,), 0.3))
        return torch.tanh(h * layer.weight + x), None

    with pytest.raises(remat.StepError, match="parameter that a step makes when it first runs has to be made before"):
        remat.scan(step, torch.zeros(3), torch.ones(6, 3), slots=2)[0].sum().backward()

    remat.scan(step, torch.zeros(3), torch.ones(6, 3), slots=2)[0].sum().backward()
    assert layer.weight.grad.abs().min() > 0

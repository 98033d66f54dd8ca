"""What a block does not keep is made again by the operators that made it: exact, once, and nothing is left behind."""

import copy
import gc
import weakref
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import remat
from remat.frameworks.torch.lineage.block_trace import trace_block
from remat.frameworks.torch.lineage.lineage import OperatorCounter, dropped_results, result_name, run_by_lineage
from remat.frameworks.torch.lineage.lineage_results import Kept
from remat.frameworks.torch.lineage.operator_traits import traits_of
from tests.frameworks.torch.models.lineage_blocks import BLOCKS, Attention, Residual, block_of


class Everything:
    """All results of all operators."""

    def get(self, key, default=None):
        return tuple(range(8))


class EveryOther:
    """The results of operators with odd, or even, numbers."""

    def __init__(self, first):
        self.number = first

    def get(self, key, default=None):
        self.number += 1
        return tuple(range(8)) if self.number % 2 else default


DROPPED = {"all": Everything, "odd": lambda: EveryOther(0), "even": lambda: EveryOther(1), "none": dict}


def backward(block, x, dropped=None, loss=lambda y: y.pow(2).sum(), times=1):
    """Gradients and buffers after a forward and a number of backwards, from the same seed."""
    torch.manual_seed(1)
    block.zero_grad()
    x.grad = None
    y = block(x) if dropped is None else run_by_lineage(block, (x,), {}, dropped)
    value = loss(y)
    for left in reversed(range(times)):
        value.backward(retain_graph=left > 0)
    found = [x.grad, *(p.grad for p in block.parameters())]
    return [y.detach(), *found, *(b.clone() for b in block.buffers()), torch.get_rng_state()]


def assert_equal(found, expected):
    assert len(found) == len(expected)
    for at, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(a, b), at


@pytest.mark.parametrize("dropped", DROPPED)
@pytest.mark.parametrize("name", BLOCKS)
def test_gradients_are_those_of_the_plain_block(name, dropped):
    block, x = block_of(name)
    other, _ = block_of(name)
    assert_equal(backward(block, x, DROPPED[dropped]()), backward(other, x))


@pytest.mark.parametrize("name", ["attention", "residual", "shared"])
def test_two_backwards_through_one_graph(name):
    block, x = block_of(name)
    other, _ = block_of(name)
    assert_equal(backward(block, x, Everything(), times=2), backward(other, x, times=2))


@pytest.mark.parametrize("name", ["gated", "shared", "writes"])
def test_second_order(name):
    def run(dropped):
        block, x = block_of(name, torch.float64)
        y = block(x) if dropped is None else run_by_lineage(block, (x,), {}, dropped)
        (g,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(g.pow(2).sum(), [x, *block.parameters()], allow_unused=True)

    assert_equal(run(Everything()), run(None))


@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside):
    def run(dropped):
        block, x = block_of("attention")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = block(x) if dropped is None else run_by_lineage(block, (x,), {}, dropped)
            if inside:  # operators that run again must not be cast once more
                y.float().pow(2).sum().backward()
        if not inside:
            y.float().pow(2).sum().backward()
        return [x.grad, *(p.grad for p in block.parameters())]

    assert_equal(run(Everything()), run(None))


def test_hooks_run_once():
    block, x = block_of("attention")
    seen = []
    block.norm2.register_forward_hook(lambda *_: seen.append("forward"))
    block.up.register_full_backward_hook(lambda *_: seen.append("backward"))
    block.down.weight.register_hook(lambda _: seen.append("gradient"))
    backward(block, x, Everything())
    assert Counter(seen) == {"forward": 1, "backward": 1, "gradient": 1}


class Names(TorchDispatchMode):
    """The operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(traits_of(func).name)
        return func(*args, **(kwargs or {}))


def test_each_operator_runs_again_once_and_just_in_time():
    block, x = block_of("attention")
    names = ["native_layer_norm 1.0", "addmm 2.0", "gelu 0.0"]
    y = run_by_lineage(block, (x,), {}, dropped_results(tuple(names))).sum()
    with Names() as again:
        y.backward()
    with Names() as plain:
        block(x).sum().backward()
    forward = Names()
    with forward:
        block(x)
    more = Counter(again.names) - (Counter(plain.names) - Counter(forward.names))
    assert {name: count for name, count in more.items() if name not in ("as_strided", "detach")} == {
        "native_layer_norm": 1,
        "addmm": 1,
        "gelu": 1,
    }
    assert again.names.index("native_layer_norm") < again.names.index("gelu_backward")


def test_random_operators_and_statistics_are_left_alone():
    block, x = block_of("residual")
    y = run_by_lineage(block, (x,), {}, Everything())
    before = {name: buffer.clone() for name, buffer in block.named_buffers()}
    y.sum().backward()
    assert all(torch.equal(buffer, before[name]) for name, buffer in block.named_buffers())
    torch.manual_seed(0)
    block, x = block_of("dropout")
    y = run_by_lineage(block, (x,), {}, Everything())
    state = torch.get_rng_state()
    y.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("end", ["backward", "discarded", "part"])
def test_nothing_is_left_behind(end):
    class Storages(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.found = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for each in out if isinstance(out, tuple | list) else (out,):
                if isinstance(each, torch.Tensor) and not func.is_view and not func._schema.is_mutable:
                    self.found.append(weakref.ref(each.untyped_storage()))
            return out

    block, x = block_of("attention")
    for parameter in [x, *block.parameters()]:
        parameter.grad = torch.zeros_like(parameter)
    gc.collect()
    gc.disable()  # without a cycle nothing has to be collected
    try:
        with Storages() as made:
            y = run_by_lineage(block, (x,), {}, Everything())
            if end == "backward":
                y.sum().backward()
            elif end == "part":
                torch.autograd.grad(y.sum(), block.down.weight, retain_graph=True)
                held = [each for each in made.found if each() is not None]
                assert sum(each().nbytes() for each in held) < 4 * x.nbytes
            del y
        assert not [each() for each in made.found if each() is not None]
    finally:
        gc.enable()


def test_less_is_held():
    from remat.frameworks.torch.meter import StorageMeter

    block, x = Attention(width=64), torch.randn(4, 32, 64, requires_grad=True)
    held = []
    for dropped in (
        None,
        {},
        dropped_results(
            (
                "native_layer_norm 1.0",
                "gelu 0.0",
            )
        ),
        Everything(),
    ):
        meter = StorageMeter()
        with meter.counting():
            y = block(x) if dropped is None else run_by_lineage(block, (x,), {}, dropped)
            held.append(meter.now() / x.nbytes)
            del y
    assert held[0] == held[1] == pytest.approx(16, abs=0.3)
    assert held[2] == pytest.approx(11, abs=0.3)
    assert held[3] == pytest.approx(1, abs=0.3)


def test_writing_into_what_is_kept_is_an_error():
    block, x = block_of("attention")
    h = x * 1
    y = run_by_lineage(block, (h,), {}, Everything())
    with torch.no_grad():
        h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_writing_into_the_output_of_a_block_is_none():
    def run(dropped):
        block, x = block_of("attention")
        y = block(x) if dropped is None else run_by_lineage(block, (x,), {}, dropped)
        y += 1
        y.pow(2).sum().backward()
        return [x.grad, *(p.grad for p in block.parameters())]

    assert_equal(run(Everything()), run(None))


def test_tensor_subclasses_are_kept():
    class Wrapped(torch.Tensor):
        pass

    x = torch.randn(4, 4).as_subclass(Wrapped).requires_grad_()
    other = torch.randn(4, 4, requires_grad=True)
    other.data.copy_(x.as_subclass(torch.Tensor).data)
    run_by_lineage(lambda x: x.sin().exp().cos().sum(), (x,), {}, Everything()).backward()
    other.sin().exp().cos().sum().backward()
    assert torch.equal(x.grad.as_subclass(torch.Tensor), other.grad)


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, as DTensors are."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [each.inner if isinstance(each, cls) else each for each in args]
        return cls(func(*args, **(kwargs or {})))


class Wrap(torch.autograd.Function):
    """A plain tensor as a wrapper, or back."""

    @staticmethod
    def forward(ctx, x):
        return x.inner if isinstance(x, Wrapper) else Wrapper(x.detach())

    @staticmethod
    def backward(ctx, grad):
        return grad.inner if isinstance(grad, Wrapper) else Wrapper(grad)


@pytest.mark.parametrize("dropped", [Everything(), None])
def test_wrapper_subclasses_are_saved_as_they_are(dropped):
    def block(x):
        wrapped = Wrap.apply(x.sin())
        return Wrap.apply((wrapped * 2).exp() * wrapped).tanh()

    x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(block(x).sum(), x)
    (found,) = torch.autograd.grad(run_by_lineage(block, (x,), {}, dropped or {}).sum(), x)
    assert torch.equal(found, expected)


def test_names_of_results():
    names = [result_name("addmm", 2, 0), result_name("native_layer_norm", 0, 0), result_name("native_layer_norm", 0, 2)]
    assert dropped_results(tuple(names)) == {("addmm", 2): (0,), ("native_layer_norm", 0): (0, 2)}
    counter = OperatorCounter()
    assert [counter.next(name) for name in ("mul", "add", "mul")] == [0, 0, 1]


def test_a_block_that_takes_another_way_keeps_more():
    block, x = Residual(), torch.randn(2, 4, 6, 6, requires_grad=True)
    other, _ = block_of("residual")
    other.load_state_dict(block.state_dict())
    names = dropped_results(
        (
            "convolution 0.0",
            "native_batch_norm 7.0",
            "unknown 0.0",
        )
    )
    assert_equal(backward(block, x, names), backward(other, x))


def test_recurrent_layers_are_kept_under_autocast():
    """Their kernels make a work space only where gradients are recorded: run again without, they have none."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.norm = nn.LSTM(16, 16, batch_first=True), nn.LayerNorm(16)

        def forward(self, x):
            return x + self.norm(self.lstm(x)[0])

    torch.manual_seed(0)
    plain = nn.Sequential(*(Recurrent() for _ in range(4)))
    ours, x = copy.deepcopy(plain), torch.randn(4, 8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        remat.auto_checkpoint(ours, memory=150_000, sample=(x,))
        for model in (plain, ours):
            model(x).float().square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), ours.parameters(), strict=True))


@pytest.mark.parametrize("function", [torch.exp, lambda x: torch.softmax(x, -1), lambda x: (2 * x).relu_()])
def test_a_graph_without_a_backward_is_freed(function):
    """An operator that saves its own result must not hold itself."""
    x = torch.randn(3, 4, requires_grad=True)

    def live():
        gc.collect()
        return sum(type(each) in (torch.Tensor, Kept) for each in gc.get_objects())

    before = live()
    for dropped in ((), ("exp 0.0", "_softmax 0.0", "mul 0.0")):
        run_by_lineage(function, (x,), {}, dropped_results(dropped))
    trace_block(function, x, {}, None)
    assert live() == before

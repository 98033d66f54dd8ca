"""Further tests of PyTorch's own suites, for segments; the table is in test_torch_checkpoint_suite.py."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import remat
from tests.frameworks.torch.segments.checkpoint_programs import leaf


def same_gradient(fn, x):
    ours, plain = remat.checkpoint(fn, x), fn(x)
    pairs = zip(torch.autograd.grad(ours.sum(), x), torch.autograd.grad(plain.sum(), x), strict=True)
    return torch.equal(ours, plain) and all(torch.equal(*pair) for pair in pairs)


# TestCheckpoint, test_utils.py


def scale():
    """A number that depends on the device of tensors that are made without naming one."""
    return 2.0 if torch.empty(1).device.type == "cpu" else 3.0


@pytest.mark.parametrize("how", ["block", "global"])
@pytest.mark.parametrize("loop", [False, True], ids=["checkpoint", "scan"])
def test_checkpoint_preserves_device_context(loop, how):
    """The backward runs without the context, as it does in the threads of GPUs."""
    x = leaf(4)

    def run():
        if loop:
            return remat.scan(lambda h, _: ((h * scale()).sin(), None), x, length=4, slots=1)[0]
        return remat.checkpoint(lambda x: (x * scale()).sin(), x)

    if how == "block":
        with torch.device("meta"):
            out = run()
    else:
        torch.set_default_device("meta")
        try:
            out = run()
        finally:
            torch.set_default_device(None)
    expected = x
    for _ in range(4 if loop else 1):
        expected = (expected * 3.0).sin()
    assert torch.equal(*(torch.autograd.grad(each.sum(), x)[0] for each in (out, expected)))


def test_checkpoint_of_tensors_without_numbers():
    """On the device "meta" (`test_infer_device_state_recursive_meta`), and on fake tensors."""
    meta = torch.empty(3, 4, device="meta", requires_grad=True)
    remat.checkpoint(lambda x: x.sin().cos(), meta).sum().backward()
    assert meta.grad.shape == (3, 4)
    with FakeTensorMode():
        layer, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
        remat.checkpoint(lambda x: layer(x).sin(), x).sum().backward()
        assert x.grad.shape == (3, 4)
    assert same_gradient(lambda x: x.sin().cos(), leaf(3))  # real ones, afterwards


# TestAutograd, test_autograd.py


def test_checkpoint_graph_execution_group():
    """Two backwards through disjoint parts of one segment; remat has no group of them, to recompute it once."""

    def fn(x):
        middle = x.sin().cos()
        return middle, middle.sin().cos()

    def gradient(run):
        middle, last = run(fn, x)
        (bar,) = torch.autograd.grad(last.sum(), middle)
        return torch.autograd.grad(middle, x, bar)[0]

    x = leaf(3, 3)
    assert torch.equal(gradient(remat.checkpoint), gradient(lambda fn, x: fn(x)))


def test_checkpointing_dataparallel():
    layer = nn.Linear(2, 2).double()
    x = leaf(2, 2)
    (ours,) = torch.autograd.grad(remat.checkpoint(nn.DataParallel(layer), x).sum(), x)
    assert torch.equal(ours, torch.autograd.grad(layer(x).sum(), x)[0])


def test_deep_reentrant():
    class Deep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_() - 1
            return ctx.x.detach()

        @staticmethod
        def backward(ctx, bar):
            if ctx.x >= 0:
                with torch.enable_grad():
                    remat.checkpoint(Deep.apply, ctx.x).backward()
            return bar

    x = torch.tensor(100.0, requires_grad=True)
    remat.checkpoint(Deep.apply, x).backward()
    assert float(x.grad) == 1.0


def test_callbacks_of_a_backward_are_called_once():
    called = []

    class Calls(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, bar):
            torch.autograd.Variable._execution_engine.queue_callback(lambda: called.append(1))
            return bar

    remat.checkpoint(lambda x: Calls.apply(x.sin()).cos(), leaf(3)).sum().backward()
    assert called == [1]


# TestSelectiveActivationCheckpoint, test_autograd.py: what is not about its policies


def test_output_already_has_autograd_meta():
    numbers, y = torch.tensor([1, 2, 3]), leaf(3)
    view, out = remat.checkpoint(lambda x, y: (x.view(-1), y.sin().cos()), numbers, y)
    out.sum().backward()
    assert view.tolist() == [1, 2, 3]
    assert y.grad is not None


@pytest.mark.parametrize(
    "fn",
    [lambda x: torch.stack(torch.var_mean(x)).prod(), lambda x: x.sin().mul_(2).cos().exp()],
    ids=["more than one output", "written into before it is saved"],
)
def test_operators(fn):
    assert same_gradient(fn, leaf(3))


def test_function_with_non_tensor_output():
    with torch.library._scoped_library("remat_tests", "FRAGMENT"):

        @torch.library.custom_op("remat_tests::sine_and_number", mutates_args=())
        def sine_and_number(x: torch.Tensor) -> tuple[torch.Tensor, int]:
            return x.sin(), 2

        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        def backward(ctx, bar, _):
            return bar * ctx.saved_tensors[0].cos()

        sine_and_number.register_autograd(backward, setup_context=setup_context)
        assert same_gradient(lambda x: (sine_and_number(x)[0] * x.sin().exp()).sin(), leaf(3))

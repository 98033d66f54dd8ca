"""Checkpoints under all that PyTorch's autograd offers: retained graphs, hooks, forward mode, transforms, threads."""

import threading

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
from tests.frameworks.untracked import Log


def test_backward_twice_over_a_retained_graph_recomputes_twice():
    module, x, runs = block(), leaf(2, 4), Log()

    def fn(x):
        runs.append(1)
        return module(x)

    y = remat.checkpoint(fn, x).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    second = torch.autograd.grad(y, x, retain_graph=True)
    third = torch.autograd.grad(y, x)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[0], third[0])
    assert len(runs) == 4
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)


def test_second_derivatives_are_those_of_the_plain_call():
    x = leaf(3)

    def fn(x):
        return (x.sin() * x.exp()).tanh()

    def twice(run):
        (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        return torch.autograd.grad((first**2).sum(), x)[0]

    assert torch.equal(twice(lambda x: remat.checkpoint(fn, x)), twice(fn))
    assert torch.autograd.gradgradcheck(lambda x: remat.checkpoint(fn, x), x)


def test_a_gradient_for_some_inputs_only_leaves_the_others_alone():
    module, x = block(), leaf(2, 4)
    y = remat.checkpoint(module, x).sum()
    (found,) = torch.autograd.grad(y, module[0].weight)
    assert torch.equal(found, torch.autograd.grad(module(x).sum(), module[0].weight)[0])
    y = remat.checkpoint(module, x).sum()
    y.backward(inputs=[x])
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in module.parameters())


def test_parameters_that_are_used_outside_too_get_the_whole_gradient():
    module, x = block(), leaf(2, 4)

    def loss(run):
        return (run(module, x) * module(x)).sum() + (module[0].weight ** 2).sum()

    found = gradients(lambda x: loss(remat.checkpoint), x, module=module)
    assert_bitwise(found, gradients(lambda x: loss(lambda fn, x: fn(x)), x, module=module))


def test_hooks_of_parameters_and_results_are_called_once():
    module, x, calls = block(), leaf(2, 4), []
    module[0].weight.register_hook(lambda _: calls.append("weight"))
    y = remat.checkpoint(module, x)
    y.register_hook(lambda _: calls.append("y"))
    y.sum().backward()
    assert calls == ["y", "weight"]


def test_a_backward_inside_a_segment_works():
    def fn(x):
        y = x.sin().exp()
        (inner,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return inner.tanh() * y

    def lost(x):
        (inner,) = torch.autograd.grad((x.sin().exp()).sum(), x)
        return x.cos() * inner

    x = leaf(3)
    for each in (fn, lost):
        for early_stop in (True, False):
            run = remat.drop(each, early_stop=early_stop)
            found = gradients(lambda x: run(x * 1).sum(), x)  # noqa: B023
            assert_bitwise(found, gradients(lambda x: each(x * 1).sum(), x))  # noqa: B023


def test_a_reentrant_backward_of_a_custom_function_works():
    class Reentrant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                inside = x.detach().requires_grad_()
                remat.checkpoint(lambda z: z.sin().sin().asin(), inside).backward(g)
            return inside.grad

    x = leaf(3)
    y = remat.checkpoint(lambda x: Reentrant.apply(x.exp()).tanh(), x)
    (found,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(x.exp().sin().tanh().sum(), x)[0])


def test_saved_tensors_may_be_asked_for_twice():
    runs = Log()

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, g):
            assert torch.equal(ctx.saved_tensors[0], ctx.saved_tensors[0])
            return 2 * g * ctx.saved_tensors[0]

    def fn(x):
        runs.append(1)
        return Twice.apply(x.sin()).sin()

    x = leaf(3)
    (found,) = torch.autograd.grad(remat.checkpoint(fn, x).sum(), x)
    assert torch.allclose(found, torch.autograd.grad((x.sin() ** 2).sin().sum(), x)[0])
    assert len(runs) == 3


def test_saved_tensors_may_be_looked_at_outside_of_a_backward():
    x = leaf(3)
    y = remat.checkpoint(lambda x: x.sin().exp(), x)
    assert torch.equal(y.grad_fn._saved_result, x.sin().exp())
    assert torch.equal(y.grad_fn._saved_result, x.sin().exp())


def test_hooks_for_saved_tensors_mix_with_segments():
    packed = []

    def pack(tensor):
        packed.append(tuple(tensor.shape))
        return tensor.numpy(force=True).copy()

    x = leaf(6)
    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        y = remat.checkpoint(lambda x: x.sin().exp(), x * 2)
    around = list(packed)

    def inside(x):
        h = x.sin()
        with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
            h = h.exp()
        return h.cos()

    z = remat.checkpoint(inside, x)
    assert around == [(), (6,)] or around == [(6,)]  # the factor if it is saved, and the input of the segment
    (found,) = torch.autograd.grad((y + z).sum(), x)
    expected = torch.autograd.grad(((x * 2).sin().exp() + x.sin().exp().cos()).sum(), x)[0]
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    with torch.autograd.graph.save_on_cpu():
        y = remat.checkpoint(lambda x: x.sin().exp(), x)
    torch.autograd.grad(y.sum(), x)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_forward_mode_is_that_of_the_plain_call():
    import torch.autograd.forward_ad as forward

    x, tangent = rand(3), rand(3, seed=1)
    with forward.dual_level():
        y = remat.checkpoint(lambda x: x.sin().exp(), forward.make_dual(x, tangent))
        found = forward.unpack_dual(y).tangent
    torch.testing.assert_close(found, (x.sin().exp() * x.cos()) * tangent)


def test_transforms_of_torch_func_get_the_plain_gradients():
    x = rand(3)
    found = torch.func.grad(lambda x: remat.checkpoint(lambda x: x.sin().exp(), x).sum())(x)
    torch.testing.assert_close(found, x.sin().exp() * x.cos())
    found = torch.func.vmap(torch.func.grad(lambda x: remat.checkpoint(lambda x: x.sin() ** 2, x)))(x)
    torch.testing.assert_close(found, 2 * x.sin() * x.cos())


def test_autocast_is_on_again_when_a_segment_is_recomputed():
    module, x, dtypes = nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True), Log()

    def fn(x):
        y = module(x)
        dtypes.append(y.dtype)
        return y.sin().exp()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = remat.checkpoint(fn, x).sum()
    y.backward()
    assert dtypes == [torch.bfloat16, torch.bfloat16]


def test_backward_in_another_thread_works():
    module, x = block(), leaf(2, 4)
    y = remat.checkpoint(module, x).sum()
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    assert torch.equal(x.grad, torch.autograd.grad(module(x).sum(), x)[0])


def test_accumulated_gradients_of_several_calls_are_the_plain_ones():
    module, plain = block(), block()
    for i in range(3):
        remat.checkpoint(module, rand(2, 4, seed=i)).sum().backward()
        plain(rand(2, 4, seed=i)).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(module.parameters(), plain.parameters(), strict=True))


def test_hooks_that_a_function_registers_act_once():
    def work(run):
        x, w = leaf(3), leaf(3, seed=1)

        def reverses(h):
            h.register_hook(lambda g: -g)
            w.register_hook(lambda g: 3 * g)
            return h * h.sin() * w

        run(reverses, x * 2).sum().backward()
        run(reverses, x).sum().backward()
        return x.grad, w.grad

    same_as_plain(work)


def test_hooks_of_parameters_are_there_again_after_a_recomputation():
    w, seen = leaf(3), []
    w.register_hook(lambda g: seen.append(1))
    remat.checkpoint(lambda x: (x * w).sin().exp(), leaf(3)).sum().backward()
    (w * 1).sum().backward()
    assert seen == [1, 1]


def test_saved_tensors_that_are_asked_for_often_are_computed_twice_at_most():
    runs = Log()

    class Many(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            ctx.save_for_backward(*args)
            return sum(args)

        @staticmethod
        def backward(ctx, g):
            return tuple(g * ctx.saved_tensors[i] for i in range(6))

    def fn(x):
        runs.append(1)
        return Many.apply(*(x * i for i in range(6)))

    x = leaf(3)
    remat.checkpoint(fn, x).sum().backward()
    assert len(runs) == 3
    assert torch.allclose(x.grad, 55 * x)


def test_a_segment_may_write_into_a_buffer_and_differentiate_itself():
    """Its gradient is asked for before the first run has ended: it alone has written."""

    def result(run):
        w, x, average = leaf(4, 4), leaf(3, 4), torch.zeros(4, dtype=torch.float64)

        def fn(x):
            average.mul_(0.5).add_(x.detach().mean(0))
            y = torch.tanh(x @ w) * (1 + average.clone())
            (slope,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
            return torch.sin(slope) * y

        out = run(fn, run(fn, x * 1))
        return out.detach(), *torch.autograd.grad(out.sum(), (x, w)), average

    assert all(map(torch.equal, result(remat.checkpoint), result(lambda fn, x: fn(x))))

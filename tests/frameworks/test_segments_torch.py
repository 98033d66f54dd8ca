"""Segments on PyTorch: gradients are those of the plain call, and nothing is kept that can be computed again."""

import functools
import gc
import random
import threading
import warnings
import weakref
from collections import namedtuple
from dataclasses import dataclass

import numpy
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

import remat  # noqa: E402

A = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
B = torch.tensor([[5.0, 6.0], [7.0, 8.0]])


def rand(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def leaf(*shape, seed=0):
    return rand(*shape, seed=seed).requires_grad_()


def block(width=4, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)).double()


class Seen:
    """Storages that were seen: how many of them are still there."""

    def __init__(self):
        self.refs = []

    def __call__(self, tensor):
        self.refs.append(StorageWeakRef(tensor.untyped_storage()))
        return tensor

    @property
    def alive(self):
        return sum(not each.expired() for each in self.refs)


def gradients(fn, *inputs, module=None):
    """The result's sum, and the gradients of inputs and parameters."""
    wanted = [*inputs, *(module.parameters() if module is not None else ())]
    total = fn(*inputs)
    return total.detach(), torch.autograd.grad(total, wanted, allow_unused=True)


def assert_bitwise(found, expected):
    assert torch.equal(found[0], expected[0])
    for a, b in zip(found[1], expected[1], strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


class Counted(nn.Module):
    """Linear and tanh; writes its name into a log each time it is run, and when its backward is."""

    def __init__(self, name, log, width=4):
        super().__init__()
        self.name, self.log, self.linear = name, log, nn.Linear(width, width).double()

    def forward(self, x):
        self.log.append(f"F{self.name}")
        y = torch.tanh(self.linear(x))
        if y.requires_grad and not remat.is_recomputing():
            y.register_hook(lambda _: self.log.append(f"B{self.name}"))
        return y


# The numbers of the documents


def test_a_segment_of_a_product_has_the_documented_gradients():
    a = A.clone().requires_grad_()
    total = remat.checkpoint_segment(lambda inputs: inputs[0] @ inputs[1], [a, B]).sum()
    total.backward()
    assert total.item() == 134
    assert a.grad.tolist() == [[11, 15], [11, 15]]


def test_a_segment_of_squares_has_the_documented_gradients():
    a = A.clone().requires_grad_()
    total = (remat.checkpoint_segment(torch.matmul, (a, B)) ** 2).sum()
    total.backward()
    assert total.item() == 5194
    assert a.grad.tolist() == [[454, 618], [1030, 1402]]


def test_a_group_has_several_outputs_and_gradients_for_all_inputs():
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    c, transposed = remat.CheckpointGroup().checkpoint_fn((a, b), lambda a, b: (a @ b, (a @ b).T))
    total = c.sum() + transposed.sum()
    total.backward()
    assert total.item() == 268
    assert a.grad.tolist() == [[22, 30], [22, 30]]
    assert b.grad.tolist() == [[8, 8], [12, 12]]


def test_a_group_takes_any_number_of_inputs_and_outputs():
    inputs = [leaf(3, seed=i) for i in range(5)]
    outputs = remat.CheckpointGroup().checkpoint_fn(inputs, lambda inputs: [x.sin() * i for i, x in enumerate(inputs)])
    found = torch.autograd.grad(sum(out.sum() for out in outputs), inputs)
    assert all(torch.equal(g, i * x.cos()) for i, (g, x) in enumerate(zip(found, inputs, strict=True)))


def test_the_profiler_counts_every_checkpoint_and_the_bytes_that_are_not_kept():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()
    x, weights = torch.ones(10, 10), [torch.eye(10).requires_grad_() for _ in range(5)]
    for weight in weights:
        x = remat.checkpoint(lambda x, w: torch.tanh(torch.sin(x @ w)), x, weight)
    x.sum().backward()
    profiler.stop_tracking()
    remat.checkpoint(torch.sin, weights[0])
    assert profiler.checkpoint_count() == 5
    assert profiler.memory_saved() == 5 * 400  # x @ w for the sine; what tanh gave is the result
    profiler.reset_statistics()
    assert (profiler.checkpoint_count(), profiler.memory_saved()) == (0, 0)


def test_the_profiler_counts_inner_checkpoints_once_and_no_recomputation():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()
    x = leaf(8)
    remat.checkpoint(lambda x: remat.checkpoint(torch.tanh, x.sin()), x).sum().backward()
    profiler.stop_tracking()
    assert profiler.checkpoint_count() == 2
    profiler.reset_statistics()


def test_the_profiler_counts_all_threads():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()

    def work():
        for _ in range(20):
            remat.checkpoint(lambda x: x.exp().sin(), leaf(3)).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    profiler.stop_tracking()
    assert profiler.checkpoint_count() == 80
    assert profiler.memory_saved() == 80 * 24  # what exp gave
    profiler.reset_statistics()


@pytest.mark.parametrize(("count", "threshold", "recomputed"), [(8, 1000, 0), (20_000, 1000, 1), (250, 1000, 0)])
def test_adaptive_recomputes_only_what_is_strictly_larger(count, threshold, recomputed):
    runs = []

    def fn(x):
        runs.append(1)
        return x.sin().exp()

    x = torch.ones(count, requires_grad=True)
    remat.CheckpointProfiler.reset_statistics()
    remat.CheckpointProfiler.start_tracking()
    y = remat.adaptive_checkpoint(fn, x, threshold=threshold)
    remat.CheckpointProfiler.stop_tracking()
    assert len(runs) == 1
    (found,) = torch.autograd.grad(y.sum(), x)
    assert len(runs) == 1 + recomputed
    assert remat.CheckpointProfiler.checkpoint_count() == recomputed
    assert torch.equal(found, torch.autograd.grad(x.sin().exp().sum(), x)[0])
    remat.CheckpointProfiler.reset_statistics()


def test_adaptive_that_is_left_alone_keeps_nothing_inside_a_segment():
    seen = Seen()

    def inner(x):
        return seen(x.sin()).exp()

    x = leaf(5)
    y = remat.checkpoint(lambda x: remat.adaptive_checkpoint(inner, x * 2, threshold="1 MiB").cos(), x)
    assert seen.alive == 0
    (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(found, torch.autograd.grad(inner(x * 2).cos().sum(), x)[0])


def test_adaptive_that_is_left_alone_notices_writing():
    x = leaf(5)
    h = x * 1
    y = remat.adaptive_checkpoint(torch.sin, h, threshold="1 MiB")
    h.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        y.sum().backward()


# Nesting


@pytest.mark.parametrize("early_stop", [True, False])
def test_the_forum_question_runs_in_the_documented_order(early_stop):
    log = []
    drop = functools.partial(remat.drop, early_stop=early_stop)
    two = nn.Sequential(Counted("2a", log), drop(Counted("2b", log)))
    net = nn.Sequential(Counted("1", log), drop(two), Counted("3", log))
    with remat.profile() as run:
        net(rand(2, 4)).sum().backward()
    again = [] if early_stop else ["F2b"]
    assert log == ["F1", "F2a", "F2b", "F3", "B3", "B2b", "F2a", *again, "F2b", "B2a", "B1"]  # hooks come before saved
    passes = [(each.what, each.name, each.depth, each.again) for each in run.passes]
    assert passes == [
        ("forward", "Sequential", 0, False),
        ("forward", "Counted", 1, False),
        ("recompute", "Sequential", 0, False),
        *([] if early_stop else [("forward", "Counted", 1, True)]),
        ("recompute", "Counted", 1, False),
        ("pullback", "Counted", 1, False),
        ("pullback", "Sequential", 0, False),
    ]
    assert all(each.seconds >= 0 for each in run.passes)
    loaded = remat.Profile.from_json(run.to_json())
    assert loaded.passes == run.passes
    assert "recompute   Counted" in str(loaded)


def nested(drop, log):
    """1, D(2, D(D(3,4),5,D(6))), D(7,8), 9."""
    torch.manual_seed(0)
    parts = {name: Counted(name, log) for name in "123456789"}
    inner = drop(nn.Sequential(drop(nn.Sequential(parts["3"], parts["4"])), parts["5"], drop(parts["6"])))
    return nn.Sequential(
        parts["1"],
        drop(nn.Sequential(parts["2"], inner)),
        drop(nn.Sequential(parts["7"], parts["8"])),
        parts["9"],
    )


@pytest.mark.parametrize("early_stop", [True, False])
def test_the_authors_nesting_gives_the_plain_gradients_in_every_iteration(early_stop):
    log, plain_log = [], []
    net, plain = nested(functools.partial(remat.drop, early_stop=early_stop), log), nested(lambda part: part, plain_log)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (net, plain)]
    for step in range(3):
        log.clear()
        for each, optimizer in zip((net, plain), optimizers, strict=True):
            optimizer.zero_grad()
            each(rand(3, 4, seed=step)).sum().backward()
        assert [entry for entry in log if entry[0] == "B"] == [f"B{i}" for i in range(9, 0, -1)]
        for a, b in zip(net.parameters(), plain.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
        for optimizer in optimizers:
            optimizer.step()


def test_an_inner_segment_keeps_nothing_while_the_outer_one_is_first_run():
    seen = Seen()

    def innermost(x):
        return seen(seen(x.sin()).cos()) * 1

    def inner(x):
        return remat.checkpoint(innermost, seen(x.exp()).sin())

    def outer(x):
        h = seen(x.cos())
        return remat.checkpoint(inner, h) + remat.checkpoint(lambda: h.tanh())  # by argument, and by closure

    x = leaf(7)
    gc.disable()
    try:
        y = remat.checkpoint(outer, x).sum()
        assert (len(seen.refs), seen.alive) == (4, 0)
        (found,) = torch.autograd.grad(y, x)
        assert seen.alive == 0
    finally:
        gc.enable()
    plain = innermost(x.cos().exp().sin()) + x.cos().tanh()
    torch.testing.assert_close(found, torch.autograd.grad(plain.sum(), x)[0], rtol=1e-14, atol=0)


@pytest.mark.parametrize("depth", [1, 2, 5, 30])
def test_segments_nest_to_any_depth(depth):
    def deep(x, depth):
        return x.sin() if depth == 0 else remat.checkpoint(deep, x.sin() * 1.5, depth - 1).cos()

    def plain(x, depth):
        return x.sin() if depth == 0 else plain(x.sin() * 1.5, depth - 1).cos()

    x = leaf(3)
    assert_bitwise(gradients(lambda x: deep(x, depth).sum(), x), gradients(lambda x: plain(x, depth).sum(), x))


def test_early_stop_does_not_run_what_is_not_needed():
    runs = []

    def fn(x):
        y = x.sin()
        runs.append("sin")
        y = y.exp()
        runs.append("exp")
        return y + 1

    for early_stop, expected in ((True, ["sin", "exp", "sin"]), (False, ["sin", "exp"] * 2)):
        runs.clear()
        remat.drop(fn, early_stop=early_stop)(leaf(3)).sum().backward()
        assert runs == expected


# What goes in and out


@dataclass
class Pair:
    left: object
    right: object


Point = namedtuple("Point", "x y")


def test_containers_go_in_and_out_and_gradients_flow_through_all_of_them():
    def fn(pair, point, things, *, scale, flag):
        assert flag == "yes"
        return {
            "a": Pair(pair.left.sin() * scale, "text"),
            "b": (Point(point.x.exp(), None), [things["w"] * point.y, 3]),
        }

    inputs = [leaf(3, seed=i) for i in range(5)]

    def total(run):
        left, x, y, w, scale = inputs
        out = run(fn, Pair(left, None), Point(x, y), {"w": w, "n": [1, "2"]}, scale=scale, flag="yes")
        assert out["a"].right == "text"
        assert out["b"][1][1] == 3
        return (out["a"].left + out["b"][0].x + out["b"][1][0]).sum()

    found = gradients(lambda *_: total(remat.checkpoint), *inputs)
    assert_bitwise(found, gradients(lambda *_: total(lambda fn, *args, **kwargs: fn(*args, **kwargs)), *inputs))


def test_lists_that_are_given_are_appended_to_once():
    log = []

    def fn(x, log):
        log.append("run")
        return x.sin().exp()

    remat.checkpoint(fn, leaf(3), log).sum().backward()
    assert log == ["run"]


def test_outputs_may_be_detached_none_or_an_input_itself():
    x = leaf(3)
    y, detached, none, same = remat.checkpoint(lambda x: (x.sin(), x.cos().detach(), None, x), x)
    assert not detached.requires_grad
    assert none is None
    assert same is x
    (found,) = torch.autograd.grad((y * detached + same).sum(), x)
    assert torch.equal(found, torch.autograd.grad((x.sin() * x.cos().detach() + x).sum(), x)[0])


def test_inputs_need_not_require_a_gradient():
    module, x = block(), rand(2, 4)
    plain = gradients(lambda: module(x).sum(), module=module)
    assert_bitwise(gradients(lambda: remat.checkpoint(module, x).sum(), module=module), plain)


def test_nothing_is_kept_where_nothing_requires_a_gradient():
    x = rand(3)
    there = weakref.ref(x)
    y = remat.checkpoint(lambda x: x.sin().exp(), x)
    assert not y.requires_grad
    del x
    assert there() is None


def test_without_gradients_it_is_a_plain_call():
    with torch.no_grad():
        assert torch.equal(remat.checkpoint(torch.sin, A), A.sin())
    with torch.inference_mode():
        assert torch.equal(remat.checkpoint(torch.sin, A.clone()), A.sin())


def test_no_grad_inside_a_segment_is_respected():
    def fn(x):
        with torch.no_grad():
            y = x.exp()
        return x.sin() * y

    x = leaf(3)
    assert_bitwise(gradients(lambda x: remat.checkpoint(fn, x).sum(), x), gradients(lambda x: fn(x).sum(), x))


def test_a_segment_without_arguments_finds_what_it_closes_over():
    x = leaf(3)
    runs = []

    def fn():
        runs.append(1)
        return x.sin().exp()

    (found,) = torch.autograd.grad(remat.checkpoint(fn).sum(), x)
    assert len(runs) == 2
    assert torch.equal(found, torch.autograd.grad(fn().sum(), x)[0])


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


def test_methods_partials_and_callable_objects_are_functions_too():
    class Scale:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return (x * self.by).sin().exp()

        def method(self, x):
            return self(x)

    x, by = leaf(3), leaf(3, seed=1)
    expected = gradients(lambda x, by: Scale(by)(x).sum(), x, by)
    for fn in (Scale(by), Scale(by).method, functools.partial(lambda by, x: Scale(by)(x), by)):
        assert_bitwise(gradients(lambda x, by: remat.checkpoint(fn, x).sum(), x, by), expected)  # noqa: B023
        assert_bitwise(gradients(lambda x, by: remat.drop(fn)(x).sum(), x, by), expected)  # noqa: B023


# What autograd offers


def test_backward_twice_over_a_retained_graph_recomputes_twice():
    module, x, runs = block(), leaf(2, 4), []

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


def test_what_a_backward_did_not_use_is_let_go_when_it_ends():
    x, w, seen = leaf(50), leaf(50, seed=1), Seen()
    y, z = remat.checkpoint(lambda x, w: (seen(x.sin()).sin(), seen(w.exp()).sin()), x, w)
    during = []
    x.register_hook(lambda _: during.append(seen.alive))
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert during == [1]  # of the other output, since all is computed again
    assert seen.alive == 0
    assert torch.equal(torch.autograd.grad(z.sum(), w)[0], torch.autograd.grad(w.exp().sin().sum(), w)[0])


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
    runs = []

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
    module, x, dtypes = nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True), []

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


# Randomness, statistics, what is known of recomputation


class Noisy(nn.Module):
    """Has a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x):
        return (x * torch.rand(x.shape, generator=self.generator, dtype=x.dtype)).sin()


def draws(kind, generator, noisy):
    return {
        "torch": lambda n: torch.rand(n, dtype=torch.float64),
        "numpy": lambda n: torch.from_numpy(numpy.random.rand(n)),
        "gauss": lambda n: torch.tensor([numpy.random.standard_normal() for _ in range(n)]),
        "python": lambda n: torch.tensor([random.random() for _ in range(n)], dtype=torch.float64),
        "python gauss": lambda n: torch.tensor([random.gauss(0, 1) for _ in range(n)], dtype=torch.float64),
        "closure": lambda n: torch.rand(n, generator=generator, dtype=torch.float64),
        "module": lambda n: noisy(torch.ones(n, dtype=torch.float64)),
    }[kind]


@pytest.mark.parametrize("kind", ["torch", "numpy", "gauss", "python", "python gauss", "closure", "module"])
@pytest.mark.parametrize("nested", [False, True])
def test_random_numbers_are_drawn_again_as_they_were(kind, nested):
    found, after = {}, {}
    for name in ("plain", "remat"):
        torch.manual_seed(1), numpy.random.seed(1), random.seed(1)
        generator, noisy = torch.Generator().manual_seed(3), Noisy()
        draw = draws(kind, generator, noisy)
        x = leaf(3)

        def fn(x, draw=draw):
            return (x * draw(3)).sin() * draw(3)

        def outer(x, fn=fn, draw=draw):
            return remat.checkpoint(fn, x * draw(3)) * draw(3)

        def plain_outer(x, fn=fn, draw=draw):
            return fn(x * draw(3)) * draw(3)

        run = (lambda fn, x: fn(x)) if name == "plain" else remat.drop(remat.checkpoint, check="always")
        inside = fn if not nested else plain_outer if name == "plain" else outer
        y = run(inside, x) + run(inside, x)
        draw(2)
        found[name] = torch.autograd.grad(y.sum(), x)[0]
        after[name] = draw(3)
    assert torch.equal(found["plain"], found["remat"])
    assert torch.equal(after["plain"], after["remat"])


def test_generators_that_are_passed_in_are_replayed():
    x, found = leaf(3), []
    for run in (lambda fn, *args: fn(*args), remat.checkpoint):
        ours, theirs = torch.Generator().manual_seed(3), numpy.random.default_rng(3)

        def fn(x, ours, given):
            numbers = torch.from_numpy(given["rng"].random(3))
            return (x * torch.rand(3, generator=ours, dtype=torch.float64) * numbers).sin().exp()

        found.append(torch.autograd.grad(run(fn, x, ours, {"rng": theirs}).sum(), x)[0])
    assert torch.equal(*found)


def test_dropout_is_the_same_when_it_is_recomputed():
    module = nn.Sequential(block(), nn.Dropout(0.5), block(seed=1), nn.Dropout(0.5))
    x = leaf(5, 4)
    found = []
    for run in (lambda m, x: m(x), remat.checkpoint):
        torch.manual_seed(3)
        found.append(gradients(lambda x: run(module, x).sum(), x, module=module))  # noqa: B023
        found.append((torch.rand(3), ()))
    assert_bitwise(found[2], found[0])
    assert torch.equal(found[3][0], found[1][0])


def test_statistics_are_gathered_once():
    x = leaf(6, 4)
    modules = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.BatchNorm1d(4)).double() for _ in "ab"]
    modules[1].load_state_dict(modules[0].state_dict())
    for _ in range(2):
        plain = gradients(lambda x: modules[0](x).sum(), x, module=modules[0])
        found = gradients(lambda x: remat.checkpoint(modules[1], x).sum(), x, module=modules[1])
        assert_bitwise(found, plain)
        outer = gradients(lambda x: remat.checkpoint(lambda x: remat.checkpoint(modules[1], x).sin(), x).sum(), x)
        assert_bitwise(outer, gradients(lambda x: modules[0](x).sin().sum(), x))
    for a, b in zip(modules[0].buffers(), modules[1].buffers(), strict=True):
        assert torch.equal(a, b)
    assert modules[1][1].num_batches_tracked == 4


def test_a_segment_knows_when_it_is_recomputed():
    seen = []

    def fn(x):
        seen.append(remat.is_recomputing())
        return x.sin().exp()

    y = remat.checkpoint(lambda x: remat.checkpoint(fn, x).cos(), leaf(3)).sum()
    assert seen == [False]
    y.backward()
    assert seen[1:]
    assert all(seen[1:])
    assert not remat.is_recomputing()


# Errors


def test_a_segment_that_is_not_deterministic_is_an_error_that_names_what_changed():
    state = {"n": 0}

    def counts(x):
        state["n"] += 1
        return (x * state["n"]).sin().exp()

    with pytest.raises(remat.DeterminismError, match=r"counts.*tensor 0 of the \d+.*float64\[3\].*of its size"):
        remat.checkpoint(counts, leaf(3)).sum().backward()

    def never(x):
        state["n"] += 1
        return (x * state["n"]).sin().exp()

    remat.drop(never, check="never")(leaf(3)).sum().backward()


def test_what_is_checked_first_is_not_checked_again_and_always_is():
    state = {"n": 1}

    def fn(x):
        return (x * state["n"]).sin().exp()

    for check, error in (("first", False), ("always", True)):
        run = remat.drop(fn, check=check)
        run(leaf(3)).sum().backward()
        y = run(leaf(3)).sum()
        state["n"] += 1
        if error:
            with pytest.raises(remat.DeterminismError):
                y.backward()
        else:
            y.backward()


def test_other_shapes_and_other_numbers_of_tensors_are_errors_without_a_check_of_values():
    state = {"again": False}

    def shape(x):
        y = x[:2] if state["again"] else x
        return y.sin().sum()

    def fewer(x):
        return x.sin() if state["again"] else x.sin().exp().cos()

    def more(x):
        return x.sin().exp().cos() if state["again"] else x.sin()

    for fn, message in (
        (shape, r"float64\[3\] and became float64\[2\]"),
        (fewer, "saved 3 .* and then 1"),
        (more, "1"),
    ):
        state["again"] = False
        y = remat.drop(fn, check="never", early_stop=False)(leaf(3)).sum()
        state["again"] = True
        with pytest.raises(remat.DeterminismError, match=message):
            y.backward()


def test_parameters_that_changed_before_the_backward_are_an_error():
    module = block()
    y = remat.drop(module, check="never")(leaf(2, 4)).sum()
    with torch.no_grad():
        module[2].weight.mul_(2)
    with pytest.raises(remat.StepError, match=r"parameter.*float64\[4, 4\].*version 1, now 2"):
        y.backward()


def test_inputs_that_are_written_into_are_an_error():
    x = leaf(3)
    for fn in (lambda h: h.add_(1).sin(), lambda h: h.sin().exp()):
        h = x * 1
        y = remat.checkpoint(fn, h).sum()
        h.add_(1)
        with pytest.raises(remat.StepError, match="written into"):
            y.backward()


def test_errors_of_the_function_are_the_users_own():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        remat.checkpoint(fails, leaf(3))

    def later(x):
        if remat.is_recomputing():
            raise KeyError("later")
        return x.sin().exp()

    with pytest.raises(KeyError) as info:
        remat.checkpoint(later, leaf(3)).sum().backward()
    assert "recomputed" in info.value.__notes__[0]


@pytest.mark.parametrize("option", ["use_reentrant", "preserve_rng_state", "determinism_check", "context_fn"])
def test_options_of_torchs_own_checkpoint_are_refused_in_words(option):
    with pytest.raises(remat.StepError, match=f"needs no {option}="):
        remat.checkpoint(torch.nn.Linear(2, 2), A, **{option: False})

    def takes(x, **options):
        return x.sin()

    assert torch.equal(remat.checkpoint(takes, A, **{option: False}), A.sin())


def test_nonsense_is_refused():
    with pytest.raises(remat.ProblemError, match="must be a function"):
        remat.checkpoint(3, A)
    with pytest.raises(remat.ProblemError, match="must be a function"):
        remat.drop(None)
    with pytest.raises(remat.ProblemError, match="check must be"):
        remat.drop(torch.sin, check="sometimes")
    with pytest.raises(remat.ProblemError, match="early_stop"):
        remat.drop(torch.sin, early_stop="no")
    with pytest.raises(remat.ProblemError, match="threshold"):
        remat.adaptive_checkpoint(torch.sin, A, threshold="ten")
    with pytest.raises(remat.StepError, match="3 inputs"):
        remat.checkpoint_segment(lambda a, b: a, [1.0, 2.0, 3.0])


# Memory


def test_nothing_is_alive_after_the_backward_without_collecting():
    module, seen = block(), Seen()

    def fn(x, rest):
        h = seen(module(x))
        return remat.checkpoint(torch.sin, h).exp() * rest[0]

    gc.collect()
    gc.disable()
    try:
        x, rest = leaf(2, 4), leaf(2, 4, seed=1)
        y = remat.checkpoint(fn, x * 1, [rest * 1]).sum()
        result = weakref.ref(y)
        y.backward()
        del y
        assert result() is None
        assert seen.alive == 0
    finally:
        gc.enable()


def test_nothing_is_alive_if_there_is_no_backward_at_all():
    module, seen = block(), Seen()

    def forward():
        h = leaf(2, 4) * 1
        for _ in range(3):
            h = seen(remat.checkpoint(lambda: module(h).sin()))  # noqa: B023
        return h

    gc.collect()
    gc.disable()
    try:
        y = forward()
        assert seen.alive == 3
        del y
        assert seen.alive == 0
    finally:
        gc.enable()


def test_each_recomputed_tensor_is_let_go_as_soon_as_it_was_used():
    seen, alive = Seen(), []

    def fn(x):
        for _ in range(10):
            x = seen(x.sin())
            if not remat.is_recomputing():
                x.register_hook(lambda _: alive.append(seen.alive))
        return x

    x = leaf(4)
    y = remat.checkpoint(fn, x).sum()
    assert seen.alive <= 1  # the result
    y.backward()
    assert alive == [0, *range(8, -1, -1)]  # before it is recomputed, and then one less each time
    assert seen.alive == 0


def test_importing_segments_imports_no_compiler():
    import subprocess
    import sys

    code = (
        "import sys, torch, remat; x = torch.ones(3, requires_grad=True);"
        "before = set(sys.modules); remat.checkpoint(torch.sin, x).sum().backward();"
        "print([m for m in set(sys.modules) - before if 'dynamo' in m or 'inductor' in m])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_no_warnings_are_given():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remat.checkpoint(block(), leaf(2, 4)).sum().backward()


@pytest.mark.parametrize("seed", range(12))
def test_random_nestings_of_dropout_and_batch_norm_are_bitwise_the_plain_ones(seed):
    def parts(rng, drop, depth):
        found = []
        for _ in range(rng.randint(1, 3)):
            if depth and rng.random() < 0.5:
                found.append(drop(nn.Sequential(*parts(rng, drop, depth - 1))))
            else:
                found.append(rng.choice([nn.Tanh, lambda: nn.Dropout(0.3), lambda: nn.BatchNorm1d(4), nn.Sigmoid])())
            found.append(nn.Linear(4, 4))
        return found

    def make(drop):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 4), *parts(random.Random(seed), drop, 3)).double()

    options = random.Random(seed)
    nets = [
        make(lambda part: part),
        make(lambda part: remat.drop(part, check="always", early_stop=options.random() < 0.5)),
    ]
    for step in range(2):
        found = []
        for net in nets:
            torch.manual_seed(step)
            x = leaf(5, 4, seed=step)
            net(x).square().sum().backward()
            found.append([x.grad, torch.rand(3), *(p.grad for p in net.parameters()), *net.buffers()])
        assert all(map(torch.equal, *found))


def test_a_changed_tensor_is_named_even_where_an_operator_meets_it():
    module, x = nn.Linear(4, 4, bias=False).double(), leaf(2, 4)
    y = remat.drop(lambda x: x.sin() @ module.weight, check="never")(x).sum()
    with torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(remat.StepError, match="parameter"):
        y.backward()


# What was changed between the call and its backward


def plainly(fn, *args):
    return fn(*args)


def same_as_plain(work):
    """What a function of a way to call gives, plainly and with segments, in two rounds: the first passes the check."""
    expected = [work(plainly) for _ in "ab"]
    found = [work(remat.checkpoint) for _ in "ab"]
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


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


@pytest.mark.parametrize("check", ["always", "never"])
def test_a_parameter_that_is_written_into_is_an_error_whatever_is_saved(check):
    w, other = leaf(3), leaf(3, seed=1)
    held = [w, other]
    run = remat.drop(lambda x: x * held[0].sigmoid(), check=check)
    y, z = run(leaf(3)), run(leaf(3))
    with torch.no_grad():
        other.add_(1)  # which the function finds and does not use
    y.sum().backward()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(remat.StepError, match=r"parameter that it uses \(float64\[3\], version 0, now 1\)"):
        z.sum().backward()


def test_data_that_is_written_into_is_an_error_where_it_is_saved():
    module = nn.Module()
    module.mask = rand(3)
    y = remat.drop(lambda x: (x * module.mask).sin(), check="never")(leaf(3))
    module.mask.mul_(2)
    with pytest.raises(remat.StepError, match="written into since"):
        y.sum().backward()


@pytest.mark.parametrize("given", [False, True])
def test_a_function_may_write_into_data_in_its_first_run_only(given):
    count = torch.zeros(())

    def fn(x, seen=None):
        if not remat.is_recomputing():
            (count if seen is None else seen).add_(1)
        return x.sin().exp()

    x = leaf(3)
    sum(remat.checkpoint(fn, x, *([count] if given else [])).sum() for _ in range(3)).backward()
    assert count == 3
    assert torch.allclose(x.grad, 3 * x.cos() * x.sin().exp())

    def writes(x, data):
        return x * data.add_(1)

    with pytest.raises(remat.StepError, match="written into"):
        remat.drop(writes, check="never")(x, rand(3)).sum().backward()


def test_writing_into_what_was_saved_is_an_error_as_it_is_plainly():
    def writes(x):
        h = x.exp()
        y = h.sin()
        h.mul_(2)
        return y

    for run in (remat.checkpoint, functools.partial(remat.adaptive_checkpoint, threshold=1000)):
        with pytest.raises(remat.StepError, match="by it, after it was saved"):
            run(writes, leaf(3)).sum().backward()

    x = leaf(3)
    y = remat.checkpoint(lambda x: x.sin().exp(), x)  # a result is the caller's, and is computed again
    y.mul_(2)
    y.sum().backward()
    assert torch.allclose(x.grad, 2 * x.cos() * x.sin().exp())


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


def test_only_a_comparison_of_all_that_is_saved_counts_as_the_first():
    state = {"n": 1}

    def fn(x):
        return x.sin(), (x * state["n"]).exp()

    x = leaf(3)
    for _ in range(2):
        first, second = remat.checkpoint(fn, x)
        del second
        first.sum().backward()
    y = remat.checkpoint(fn, x)[1].sum()
    state["n"] = 2
    with pytest.raises(remat.DeterminismError):
        y.backward()


def test_two_closures_of_one_code_are_two_functions():
    def make(state):
        return lambda x: (x * state["n"]).sin()

    steady, other = make({"n": 1}), {"n": 1}
    remat.checkpoint(steady, leaf(3)).sum().backward()
    y = remat.checkpoint(make(other), leaf(3)).sum()
    other["n"] = 2
    with pytest.raises(remat.DeterminismError):
        y.backward()


def test_saved_tensors_that_are_asked_for_often_are_computed_twice_at_most():
    runs = []

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


def test_modules_that_get_their_shapes_in_the_first_run_work():
    def work(run):
        torch.manual_seed(0)
        module = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Tanh()).double()
        x = leaf(6, 4)
        for _ in range(2):
            run(module, x).square().sum().backward()
        return x.grad, *(p.grad for p in module.parameters()), *module.buffers()

    same_as_plain(work)


def test_the_profiler_counts_no_results_and_nothing_that_needs_no_gradient():
    profiler = remat.CheckpointProfiler
    profiler.reset_statistics()
    profiler.start_tracking()
    remat.checkpoint(torch.sin, rand(3))
    assert profiler.checkpoint_count() == 0
    y = remat.checkpoint(torch.exp, leaf(3))
    profiler.stop_tracking()
    assert (profiler.checkpoint_count(), profiler.memory_saved()) == (1, 0)
    assert y.requires_grad
    profiler.reset_statistics()


def test_tensors_made_in_inference_mode_are_taken():
    with torch.inference_mode():
        data = rand(3)
    x = leaf(3)
    remat.checkpoint(lambda x, data: (x + data).sin(), x, data).sum().backward()
    assert torch.equal(x.grad, (x + data).cos())


def test_segments_inside_a_compiled_function_are_compiled():
    module, x = block(), leaf(2, 4)
    compiled = torch.compile(lambda x: remat.checkpoint(module, x).sum(), backend="aot_eager")
    found = gradients(compiled, x, module=module)
    expected = gradients(lambda x: module(x).sum(), x, module=module)
    assert all(torch.allclose(a, b) for a, b in zip(found[1], expected[1], strict=True))
    torch._dynamo.reset()

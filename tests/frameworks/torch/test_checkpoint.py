"""Checkpoints on PyTorch: documented numbers, what goes in and out, and where gradients are not wanted."""

import functools
import warnings
import weakref
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import remat
from tests.frameworks.torch.checkpoint_programs import (
    A,
    B,
    Seen,
    assert_bitwise,
    block,
    gradients,
    leaf,
    rand,
    same_as_plain,
)


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


def test_modules_that_get_their_shapes_in_the_first_run_work():
    def work(run):
        torch.manual_seed(0)
        module = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Tanh()).double()
        x = leaf(6, 4)
        for _ in range(2):
            run(module, x).square().sum().backward()
        return x.grad, *(p.grad for p in module.parameters()), *module.buffers()

    same_as_plain(work)


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

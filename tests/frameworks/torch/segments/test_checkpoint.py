"""Checkpoints on PyTorch: what goes in and out, where gradients are not wanted, and what modules and compilers do."""

import warnings
import weakref

import pytest
import torch
from torch import nn

import remat
from tests.frameworks.torch.segments.checkpoint_programs import (
    A,
    Seen,
    assert_bitwise,
    block,
    gradients,
    leaf,
    rand,
    same_as_plain,
)


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

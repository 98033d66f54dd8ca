"""PyTorch's own tests of nested checkpoints (`TestNestedCheckpoint`, test_autograd.py), for segments: all of them.

One check differs: `backward` inside a segment adds to `.grad` in each recomputation of torch's checkpoint, so that the
sum depends on how often it is recomputed; the program here asks `is_recomputing`.
"""

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import remat
from tests.frameworks.torch.segments.checkpoint_programs import leaf
from tests.frameworks.untracked import Log

both = pytest.mark.parametrize("early_stop", [True, False])


def grad(fn):
    def derivative(x):
        with torch.enable_grad():
            return torch.autograd.grad(fn(x), x, create_graph=True)[0]

    return derivative


def summed(fn):
    return lambda x: fn(x).sum()


def nodes(root):
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


class Mark:
    """Something that a node holds, so that it is seen when the node goes."""


def alive_after(fn):
    """How many nodes of the graph of a function are still there when nothing refers to its result."""

    def scope():
        marks = [Mark() for _ in range(1000)]
        for node, mark in zip(nodes(fn(leaf(())).grad_fn), marks, strict=False):
            node.metadata["mark"] = mark
        return [weakref.ref(mark) for mark in marks]

    return sum(reference() is not None for reference in scope())


@both
def test_nested_checkpoint(early_stop):
    def drop(fn):
        return remat.drop(fn, early_stop=early_stop)

    def sin(x):
        return torch.sin(x)

    def plain(x):
        return x.sin().exp()

    x = leaf(())
    cases = [
        (drop(sin), sin),
        (drop(drop(drop(plain))), plain),
        (drop(lambda x: drop(sin)(x).exp()), plain),
        (drop(grad(sin)), grad(sin)),
        (grad(drop(sin)), grad(sin)),
        (drop(grad(drop(plain))), grad(plain)),
        (grad(grad(drop(drop(plain)))), grad(grad(plain))),
        (drop(grad(drop(grad(drop(plain))))), grad(grad(plain))),
    ]
    for found, expected in cases:
        assert torch.allclose(found(x), expected(x))
        assert torch.allclose(grad(found)(x), grad(expected)(x), rtol=1e-12)
        assert torch.allclose(grad(grad(found))(x), grad(grad(expected))(x), rtol=1e-12)


@both
def test_nested_checkpoint_graph_dies(early_stop):
    def drop(fn):
        return remat.drop(fn, early_stop=early_stop)

    gc.collect()
    gc.disable()
    try:
        for fn in (drop(torch.sin), drop(drop(torch.sin)), drop(grad(drop(torch.sin))), grad(drop(drop(torch.exp)))):
            assert alive_after(fn) == 0
    finally:
        gc.enable()


@both
def test_nested_checkpoint_two_children(early_stop):
    def drop(fn):
        return remat.drop(fn, early_stop=early_stop)

    def expected(x):
        return x.sin().sin() + x.cos().exp()

    def found(x):
        return drop(lambda x: x.sin().sin())(x) + drop(lambda x: x.cos().exp())(x)

    x = leaf(3)
    for transform in (summed, lambda fn: summed(grad(summed(fn))), lambda fn: summed(grad(summed(grad(summed(fn)))))):
        assert torch.allclose(grad(transform(drop(found)))(x), grad(transform(expected))(x), rtol=1e-12)


@both
def test_nested_checkpoint_non_tensor_inputs_and_outputs(early_stop):
    def drop(fn):
        return remat.drop(fn, early_stop=early_stop)

    def fn(k, a, b, f):
        return f(k * a * b.exp()), 1, "abcd"

    k, a, b = 3, leaf(()), leaf((), seed=1)
    out, one, text = drop(drop(fn))(k, a, b, torch.sin)
    assert (one, text) == (1, "abcd")
    expected = torch.autograd.grad(fn(k, a, b, torch.sin)[0], (a, b))
    assert all(map(torch.equal, torch.autograd.grad(out, (a, b)), expected))


@both
def test_nested_checkpoint_kwargs(early_stop):
    def drop(fn):
        return remat.drop(fn, early_stop=early_stop)

    def fn(a, blah=None):
        return a.sin().exp() if blah is None else blah.sin().exp()

    a, b = leaf(()), leaf((), seed=1)
    found = drop(drop(fn))(a, blah=b)
    assert torch.equal(torch.autograd.grad(found, b)[0], torch.autograd.grad(fn(a, blah=b), b)[0])


@both
def test_nested_checkpoint_same_graph(early_stop):
    """Two backwards over one graph: each recomputes once."""
    runs = Log()

    def fn(x):
        runs.append("run")
        return x.sin().cos().sin()

    x = leaf(3)
    out = remat.drop(fn, early_stop=early_stop)(x)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    assert len(runs) == 3
    (expected,) = torch.autograd.grad(x.sin().cos().sin().sum(), x)
    assert torch.equal(x.grad, 2 * expected)


@both
def test_nested_checkpoint_reentrant_backwards(early_stop):
    def fn(x):
        out = x.sin()
        if not remat.is_recomputing():
            out.sum().backward(retain_graph=True)
        return out

    x, y = leaf(3), leaf(3)
    remat.drop(lambda x: remat.drop(fn, early_stop=early_stop)(x).exp(), early_stop=early_stop)(x).sum().backward()
    fn(y).exp().sum().backward()
    assert torch.equal(x.grad, y.grad)


def test_nested_checkpoint_set_early_stop():
    """What comes after the last saved tensor is run again only without early stop."""
    runs = Log()

    def clone(x):
        runs.append("run")
        return x.clone()

    for early_stop, expected in ((True, 1), (False, 2)):
        runs.clear()
        remat.drop(lambda x: clone(x.sin().cos()), early_stop=early_stop)(leaf(3)).sum().backward()
        assert len(runs) == expected


class SinCounter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten.sin.default
        return function(*args, **(kwargs or {}))


def test_nested_checkpoint_early_stop_without_anything_to_recompute():
    runs = Log()

    def fn(x):
        runs.append("run")
        return x.sin()

    def saves_nothing(x):
        runs.append("run")
        return x.clone()

    for early_stop, kernels in ((True, 1), (False, 2)):
        runs.clear()
        with SinCounter() as mode:
            remat.drop(fn, early_stop=early_stop)(leaf(3)).sum().backward()
        assert len(runs) == 2  # sin saves its input before it computes: it is reached, and not run
        assert mode.count == kernels
        runs.clear()
        remat.drop(saves_nothing, early_stop=early_stop)(leaf(3)).sum().backward()
        assert len(runs) == 1

"""Memory of checkpoints on PyTorch: what is held is let go as soon as it was used."""

import gc
import weakref

import torch

import remat
from tests.frameworks.torch.segments.checkpoint_programs import Seen, block, leaf
from tests.frameworks.untracked import Log


def test_what_a_backward_did_not_use_is_let_go_when_it_ends():
    x, w, seen = leaf(50), leaf(50, seed=1), Seen()
    y, z = remat.checkpoint(lambda x, w: (seen(x.sin()).sin(), seen(w.exp()).sin()), x, w)
    during = []
    x.register_hook(lambda _: during.append(seen.alive))
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert during == [1]  # of the other output, since all is computed again
    assert seen.alive == 0
    assert torch.equal(torch.autograd.grad(z.sum(), w)[0], torch.autograd.grad(w.exp().sin().sum(), w)[0])


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
    seen, alive = Seen(), Log()

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

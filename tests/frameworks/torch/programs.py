"""What the tests of PyTorch's loops share: plain loops to compare with, and counters."""

import torch

from remat.pytree import flatten

torch.set_num_threads(1)
DOUBLE = torch.float64


def leaves_of(value):
    return [leaf for leaf in flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def plain_scan(step, init, xs, length=None):
    """The loop that one would write by hand; inputs are unbound, so that their gradients are added up once."""
    leaves, tree = flatten(xs)
    rows = list(zip(*[leaf.unbind(0) for leaf in leaves], strict=True)) if leaves else [()] * length
    carry, ys = init, []
    for row in rows:
        carry, y = step(carry, tree.unflatten(row))
        ys.append(flatten(y))
    rows = zip(*[leaves for leaves, _ in ys], strict=True)
    return carry, ys[0][1].unflatten([torch.stack([torch.as_tensor(leaf) for leaf in row]) for row in rows])


def weigh(value):
    """A number that depends on all floats of a value, each with another weight."""
    total = torch.zeros((), dtype=DOUBLE)
    for k, leaf in enumerate(leaves_of(value)):
        if leaf.is_complex():
            leaf = leaf.real.sin() + leaf.imag.pow(2)
        if leaf.is_floating_point():
            weights = torch.linspace(0.3 + k, 1.7 + k, leaf.numel(), dtype=DOUBLE).reshape(leaf.shape)
            total = total + (leaf.to(DOUBLE).sin() * weights.to(leaf.device)).sum().to("cpu")
    return total


def gradients(loop, step, init, xs, wanted, **how):
    """Value and gradients of a loop's results, weighed."""
    loss = weigh(loop(step, init, xs, **how))
    if not loss.requires_grad:
        return loss, [None] * len(wanted)
    return loss, torch.autograd.grad(loss, wanted, allow_unused=True)


def assert_same(found, expected, *, bitwise=True, tolerance=1e-12):
    """Every gradient is as expected, to the last bit or relative to its largest number; None where none is."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if bitwise:
            assert torch.equal(a, b)
        else:
            assert (a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1e-30)


class Counted:
    """A step that counts its calls, in a slot: contents of a `__dict__` are put back after a recomputation."""

    __slots__ = ("__weakref__", "calls", "step")

    def __init__(self, step):
        self.step, self.calls = step, 0

    def __call__(self, carry, x):
        self.calls += 1
        return self.step(carry, x)


class LSTM(torch.nn.Module):
    """An LSTM cell as a step."""

    def __init__(self, size, dtype=DOUBLE):
        super().__init__()
        self.gates = torch.nn.Linear(2 * size, 4 * size, dtype=dtype)

    def forward(self, carry, x):
        h, c = carry
        i, f, g, o = self.gates(torch.cat([x, h], -1)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return (h, c), h


def lstm(size=5, batch=3, steps=20, seed=0, dtype=DOUBLE):
    """A cell, a carry and inputs, all of which want gradients."""
    torch.manual_seed(seed)
    cell = LSTM(size, dtype)
    carry = tuple(torch.randn(batch, size, dtype=dtype, requires_grad=True) for _ in range(2))
    xs = torch.randn(steps, batch, size, dtype=dtype, requires_grad=True)
    return cell, carry, xs, [*cell.parameters(), *carry, xs]

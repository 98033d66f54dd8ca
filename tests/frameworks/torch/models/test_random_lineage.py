"""Random blocks with views, writes and shared tensors, of which random results are made again: exact gradients."""

import random

import pytest
import torch
import torch.nn.functional as F

from remat.frameworks.torch.lineage.lineage import run_by_lineage

SIZE = 6
UNARY = (torch.sin, torch.exp, torch.tanh, torch.sigmoid, F.gelu, F.relu, torch.clone)
BINARY = (torch.add, torch.mul, torch.matmul, torch.sub, torch.maximum)
VIEWS = (lambda t: t.t(), lambda t: t.reshape(3, -1).reshape(SIZE, SIZE), lambda t: t[:], lambda t: t.flip(0))


def program(seed):
    """A function of a matrix and a weight, always the same one for a seed."""

    def run(x, w):
        rng = random.Random(seed)
        values = [x * 1, x @ w]
        for _ in range(rng.randint(4, 14)):
            a, b = rng.choice(values), rng.choice(values)
            kind = rng.randrange(9)
            if kind < 3:
                values.append(rng.choice(UNARY)(a) * 0.5)
            elif kind < 5:
                values.append(rng.choice(BINARY)(a, b) * 0.3)
            elif kind == 5:
                values.append(rng.choice(VIEWS)(a))
            elif kind == 6:
                _write(rng, a, b)
            elif kind == 7:
                values.append(F.layer_norm(a, [SIZE]) if rng.random() < 0.5 else F.dropout(a, 0.3))
            else:
                halves = a.chunk(2)
                values.append(torch.cat([halves[1], halves[0]]))
                with torch.no_grad():
                    values.append(b.softmax(-1))
        return sum(value.tanh().sum() for value in values[-3:])

    return run


def _write(rng, a, b):
    how = rng.randrange(4)
    if how == 0:
        a.mul_(0.5)
    elif how == 1:
        a.add_(b.detach())
    elif how == 2:
        a[::2] = b[::2] * 0.5
    else:
        a.relu_()


class Chosen:
    """Random results of operators."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.share = self.rng.choice((0.3, 0.7, 1.0))

    def get(self, key, default=None):
        return tuple(range(4)) if self.rng.random() < self.share else default


def gradients(run, dropped=None):
    torch.manual_seed(0)
    x, w = (torch.randn(SIZE, SIZE, dtype=torch.float64, requires_grad=True) for _ in range(2))
    out = run(x, w) if dropped is None else run_by_lineage(run, (x, w), {}, dropped)
    return torch.autograd.grad(out, (x, w), allow_unused=True)


@pytest.mark.parametrize("seed", range(0, 240, 40))
def test_random_blocks(seed):
    works = 0
    for each in range(seed, seed + 40):
        try:
            expected = gradients(program(each))
        except RuntimeError:  # what was saved is written into; in views, too
            continue
        works += 1
        for choice in range(3):
            found = gradients(program(each), Chosen((each, choice).__hash__()))
            for a, b in zip(found, expected, strict=True):
                assert (a is None) == (b is None), each
                assert a is None or torch.equal(a, b), (each, choice)
    assert works > 10

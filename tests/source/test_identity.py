"""Comparisons by `is` in loops: as in plain Python for what a loop only reads, refused for arrays that it carries."""

import numpy as np
import pytest
from autograd import grad

import remat
from remat.errors import SourceError
from remat.source.run_time.item_assignment import same
from tests.source.corpus import plain

torch = pytest.importorskip("torch")


def differs_from_the_last(x, weights, library):
    for w in weights:
        x = library.tanh(x * w)
        if w is not weights[-1]:
            x = x * 2.0
    return library.sum(x)


def is_the_same_argument(x, weights, library):
    first, other, again = weights[0], weights[1], weights[0]
    k = 0
    while k < 5:
        w = weights[k % 3]
        x = library.tanh(x * first)
        if first is other:
            x = x * 2.0
        if first is again is w:
            x = x * 1.5
        k += 1
    return library.sum(x)


def is_the_same_record(x, weights, library):
    records = [{"w": w} for w in weights]
    start = records[2]
    for k, record in enumerate(records):
        x = library.tanh(x * record["w"])
        if record is start:
            x = x * (k + 1)
    return library.sum(x)


@pytest.mark.parametrize("program", [differs_from_the_last, is_the_same_argument, is_the_same_record])
@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
def test_what_a_loop_only_reads_keeps_its_identity(program, library):
    def gradients(function):
        starts = [0.1 * np.arange(1.0, 4.0) + k for k in range(4)]
        if library is np:
            return grad(lambda weights: function(np.ones(3), list(weights), np))(starts)
        weights = [torch.tensor(start, requires_grad=True) for start in starts]
        function(torch.ones(3, dtype=torch.float64), weights, torch).backward()
        return [np.zeros(3) if w.grad is None else w.grad.numpy() for w in weights]

    kept = gradients(remat.checkpointed(slots=2)(program))
    assert np.array_equal(kept, gradients(program if library is torch else plain(program)))


def compared_in_a_chain(x):
    best = x
    for k in range(4):
        same = [best is x is x]
        x = torch.tanh(x * (2.0 if same[0] else 1.0))
        best = x if k % 2 else best
    return x


def compared_in_a_chain_of_calls(x):
    best = x
    for k in range(4):
        x = torch.tanh(x * (2.0 if 0 < x.ndim is not None and [best][0] is [x, best][0] is x else 1.0))
        best = x if k % 2 else best
    return x


def compared_in_a_comprehension(x):
    best = x
    for k in range(4):
        x = torch.tanh(x * (2.0 if any(best is each for each in (x,)) else 1.0))
        best = x if k % 2 else best
    return x


def compared_in_a_lambda(x):
    best = x
    for k in range(4):
        x = torch.tanh(x * (2.0 if (lambda one, other: one is other)(best, x) else 1.0))
        best = x if k % 2 else best
    return x


def compared_by_choice(x):
    best = x
    for k in range(4):
        x = torch.tanh(x * (2.0 if (best if k < 3 else x) is x else 1.0))
        best = x if k % 2 else best
    return x


def compared_in_a_loop_inside(x):
    best = x
    for k in range(4):
        y = x
        for _ in range(3):
            y = torch.tanh(y * (2.0 if best is x else 1.0))
        x = y
        best = x if k % 2 else best
    return x


def compared_through_other_names(x):
    best = {"x": x}
    for k in range(4):
        (old, *_), new = [best["x"], k], x
        x = torch.tanh(x * (2.0 if old is new else 1.0))
        best = {"x": x if k % 2 else best["x"]}
    return x


@pytest.mark.parametrize(
    "program",
    [
        compared_in_a_chain,
        compared_in_a_chain_of_calls,
        compared_in_a_comprehension,
        compared_in_a_lambda,
        compared_by_choice,
        compared_in_a_loop_inside,
        compared_through_other_names,
    ],
)
def test_the_identity_of_carried_arrays_is_refused_wherever_it_is_asked(program):
    with pytest.raises(SourceError, match="compared by `is`"):
        remat.checkpointed(slots=2)(program)(torch.ones(3, requires_grad=True))


def test_a_chain_of_comparisons_asks_each_side_once():
    asked = []

    def side(value):
        asked.append(value)
        return value

    @remat.checkpointed(slots=5)
    def program(x):
        name, answers = "first", []
        for _ in range(4):
            x = torch.tanh(1.1 * x)
            answers.append(
                float(side(name) is side(name) is not side(None)) + 2.0 * (name is side("no") is side("never"))
            )
        return x, answers

    assert program(torch.ones(3, requires_grad=True))[1] == [1.0] * 4
    assert asked[:4] == ["first", "first", None, "no"]
    assert "never" not in asked


def test_records_that_lead_to_themselves_are_compared():
    def program(x, nodes, root):
        last = None
        for node in nodes:
            x = torch.tanh(x * node["w"])
            if node is not root and last is not root:
                x = x * 2.0
            last = node["name"]
        return x

    root = {"w": torch.tensor(1.0), "name": "root"}
    root["parent"] = root
    chain = root
    for k in range(5000):
        chain = {"w": torch.tensor(0.5), "name": str(k), "parent": chain}
    nodes = [root, *({"w": torch.tensor(0.5), "name": "", "parent": parent} for parent in (root, chain, root))]
    x = torch.linspace(0.1, 0.7, 4, requires_grad=True)
    assert torch.equal(remat.checkpointed(slots=2)(program)(x, nodes, root), program(x, nodes, root))
    with pytest.raises(SourceError, match="compared by `is`"):
        same(nodes[1], root)

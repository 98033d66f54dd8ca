"""Tensors that steps store instead of returning them: no error to keep them, and one to differentiate through them."""

import pytest
import torch

import remat
from tests.frameworks.torch.programs import DOUBLE, plain_scan

BUDGETS = [{"slots": 2}, {"slots": 12}, {"memory": "1 MiB"}, {"memory": 2000}]


class Cell(torch.nn.Module):
    """Stores its loss in a list, in a dict of lists, or in an attribute."""

    def __init__(self, where):
        super().__init__()
        self.w, self.where = torch.nn.Parameter(torch.full((3, 3), 0.3, dtype=DOUBLE)), where
        self.losses, self.by_name, self.last, self.twice = [], {"loss": []}, None, None

    def forward(self, h, x):
        h = torch.tanh(h @ self.w + x)
        if self.where == "list":
            self.losses.append(h.pow(2).sum())
        elif self.where == "dict":
            self.by_name["loss"].append({"value": (h.pow(2).sum(),)})
        elif self.where == "attribute":
            self.last = h.pow(2).sum()
        else:
            self.last = h
        if self.twice is None:
            self.twice = self.w * 2
        return h, None

    def stored(self):
        if self.where == "list":
            return sum(self.losses)
        return sum(entry["value"][0] for entry in self.by_name["loss"]) if self.where == "dict" else self.last.sum()


XS = torch.linspace(-1, 1, 36, dtype=DOUBLE).view(12, 3)
START = torch.zeros(3, dtype=DOUBLE)


@pytest.mark.parametrize("how", BUDGETS, ids=str)
@pytest.mark.parametrize("where", ["list", "dict", "attribute", "carry"])
def test_a_stored_tensor_may_be_looked_at_and_not_differentiated(where, how):
    cell, plain = Cell(where), Cell(where)
    last, _ = remat.scan(cell, START, XS, **how)
    expected, _ = plain_scan(plain, START, XS)
    assert torch.equal(cell.stored(), plain.stored())
    with pytest.raises(remat.StepError, match=r"stored in a list.*Return it from the step as y"):
        (last.sum() + cell.stored()).backward()
    cell.zero_grad()
    remat.scan(cell, START, XS, **how)[0].sum().backward()
    expected.sum().backward()
    assert torch.equal(cell.w.grad, plain.w.grad)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("around", [lambda function, *args: function(*args), remat.checkpoint], ids=["", "checkpoint"])
def test_a_stored_tensor_whose_graph_ends_in_the_carry_is_not_differentiated_by_grad(around, steps):
    w, start = (torch.linspace(-1, 1, 9, dtype=DOUBLE).view(3, 3).requires_grad_() for _ in range(2))
    losses = []

    def step(h, x):
        losses.append(h.pow(2).sum())  # before the step uses w: its graph leads to nothing that `grad` is asked for
        return torch.tanh(h @ w), None

    last = around(lambda h: remat.scan(step, h, length=steps, slots=1)[0], start.tanh())
    for wanted in ([w], [start], [w, start]):
        with pytest.raises(remat.StepError, match=r"stored in a list.*Return it from the step as y"):
            torch.autograd.grad(last.sum() + sum(losses), wanted, retain_graph=True)
    gradient = torch.autograd.grad(last.sum(), [w, start])
    h = start.tanh()
    for _ in range(steps):
        h = torch.tanh(h @ w)
    for a, b in zip(gradient, torch.autograd.grad(h.sum(), [w, start]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=0)


def test_a_stored_function_of_parameters_has_its_whole_gradient():
    cell, plain = Cell("list"), Cell("list")
    last, _ = remat.scan(cell, START, XS, memory="1 MiB")
    expected, _ = plain_scan(plain, START, XS)
    (last.sum() + cell.twice.pow(2).sum()).backward()
    (expected.sum() + plain.twice.pow(2).sum()).backward()
    torch.testing.assert_close(cell.w.grad, plain.w.grad, rtol=1e-13, atol=0)

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


def test_a_stored_function_of_parameters_has_its_whole_gradient():
    cell, plain = Cell("list"), Cell("list")
    last, _ = remat.scan(cell, START, XS, memory="1 MiB")
    expected, _ = plain_scan(plain, START, XS)
    (last.sum() + cell.twice.pow(2).sum()).backward()
    (expected.sum() + plain.twice.pow(2).sum()).backward()
    torch.testing.assert_close(cell.w.grad, plain.w.grad, rtol=1e-13, atol=0)


@pytest.mark.parametrize("budget", [{"slots": 1}, {"slots": 3}, {"memory": "1 MiB"}], ids=str)
def test_what_a_step_stores_for_a_loop_inside_of_it(budget):
    class Cell(torch.nn.Module):
        def forward(self, h, x):
            return torch.tanh(h * self.made + x), None

    def gradient(loop, **budget):
        torch.manual_seed(0)
        w, cell = torch.randn(4, 4, dtype=torch.float64, requires_grad=True), Cell()
        xs = torch.randn(5, 3, 4, dtype=torch.float64)

        def step(h, x):
            cell.made = torch.sigmoid(h @ w)
            return loop(cell, h + x, xs[:2], **budget)[0], None

        h, _ = loop(step, torch.ones(3, 4, dtype=torch.float64), xs, **budget)
        return torch.autograd.grad(h.sum(), w)[0]

    torch.testing.assert_close(gradient(remat.scan, **budget), gradient(plain_scan), rtol=1e-12, atol=0)


@pytest.mark.parametrize("budget", [{"slots": 1}, {"slots": 12}, {"memory": "1 MiB"}], ids=str)
def test_a_gradient_that_does_not_pass_the_graph_of_a_stored_tensor(budget):
    start, w = (
        torch.ones(3, dtype=DOUBLE, requires_grad=True),
        torch.full((3, 3), 0.3, dtype=DOUBLE, requires_grad=True),
    )
    losses, entries = [], {}

    def step(h, x):
        losses.append(h.pow(2).sum())  # depends on the carry alone, whose graph is cut off where a range begins
        entries.setdefault("all", []).append(({"loss": losses[-1]},))
        return torch.tanh(h @ w + x), None

    remat.scan(step, start, XS, **budget)
    for tensor in (start, w):
        for stored in (sum(losses), entries["all"][5][0]["loss"]):
            with pytest.raises(remat.StepError, match="stored in a list"):
                torch.autograd.grad(stored, tensor, allow_unused=True)
    assert losses[-1].requires_grad
    assert losses[0].item() == 3.0


@pytest.mark.parametrize("budget", [{"slots": 1}, {"slots": 3}, {"memory": "1 MiB"}], ids=str)
def test_losses_of_steps_whose_carry_does_not_depend_on_parameters(budget):
    w, losses = torch.ones(3, dtype=DOUBLE, requires_grad=True), []

    def step(h, x):
        losses.append((h * w - x).pow(2).sum())
        return h + 1, None

    remat.scan(step, START, XS, **budget)
    with pytest.raises(remat.StepError, match="stored in a list"):
        sum(losses).backward()


@pytest.mark.parametrize("budget", [{"slots": 1}, {"slots": 3}], ids=str)
def test_what_the_first_step_computes_from_its_carry_for_all_others(budget):
    class Cell(torch.nn.Module):
        cached = None

        def forward(self, h, x):
            if self.cached is None:
                self.cached = torch.sigmoid(h)
            return torch.tanh(h * self.cached + x), None

    start = torch.ones(3, dtype=DOUBLE, requires_grad=True)
    last, _ = remat.scan(Cell(), start, XS, **budget)
    with pytest.raises(remat.StepError, match="Pass it through the carry"):
        torch.autograd.grad(last.sum(), start)


@pytest.mark.parametrize("how", BUDGETS, ids=str)
def test_a_loss_that_is_summed_up_in_a_variable_is_not_lost_silently(how):
    cell, total = torch.nn.Linear(3, 3, dtype=DOUBLE), 0.0

    def step(h, x):
        nonlocal total
        h = torch.tanh(cell(h) + x)
        total = total + h.sum()
        return h, None

    remat.scan(step, START, XS, **how)
    with pytest.raises(remat.StepError, match=r"stored in a list.* a variable or a tensor"):
        total.backward()


@pytest.mark.parametrize("how", BUDGETS, ids=str)
def test_a_stored_tensor_that_depends_on_parameters_alone_is_differentiated(how):
    """Its graph is a part of a tape, which must not be freed when that is pulled back."""

    def run(loop, **how):
        w, stored = torch.linspace(-1, 1, 3, dtype=DOUBLE).requires_grad_(), []

        def step(h, x):
            h = torch.sin(h.detach() * x + w)
            stored[:] = [h.exp().sum()]
            return torch.tanh(h), None

        (loop(step, START, XS[:1], **how)[0].sum() + stored[0]).backward()
        return w.grad

    assert torch.equal(run(remat.scan, **how), run(plain_scan))


@pytest.mark.parametrize("write", ["+=", "add_", "row", "copy_"])
@pytest.mark.parametrize("how", BUDGETS, ids=str)
def test_a_loss_that_is_added_to_a_tensor_of_the_caller_is_not_lost_silently(how, write):
    cell, total, rows, count = torch.nn.Linear(3, 3, dtype=DOUBLE), torch.empty(0), torch.empty(0), 0

    def step(h, x):
        nonlocal total, count
        h = torch.tanh(cell(h) + x)
        if write == "+=":
            total += h.sum()
        elif write == "add_":
            total.add_(h.sum())
        elif write == "row":
            rows[count] = h
        else:
            rows[count].copy_(h)
        count += 1
        return h, None

    def run(loop):
        nonlocal total, rows, count
        total, rows, count = torch.zeros((), dtype=DOUBLE), torch.zeros(len(XS), 3, dtype=DOUBLE), 0
        h, _ = loop(step, START)
        gradient = torch.autograd.grad(h.sum(), cell.weight, retain_graph=True)[0]  # which is none of theirs
        return gradient, total, rows

    expected, found = run(lambda step, h: plain_scan(step, h, XS)), run(lambda step, h: remat.scan(step, h, XS, **how))
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-12, atol=1e-12)
    with pytest.raises(remat.StepError, match="a tensor of the caller's is differentiated"):
        (found[1].sum() + found[2].sum()).backward()


@pytest.mark.parametrize("how", [{"slots": 2}, {"slots": 12}], ids=str)
@pytest.mark.parametrize("size", [3, 200_000])
def test_a_tensor_that_is_written_into_after_the_loop_is_for_the_backward_as_it_was(how, size):
    """The last step, whose tape is held, is not differentiated: PyTorch itself would not see that it was changed."""
    w = torch.linspace(-1, 1, 9, dtype=DOUBLE).reshape(3, 3).requires_grad_()

    def run(*, written, unused):
        scale, log = torch.full((size,), 1.5, dtype=DOUBLE), torch.zeros(size, dtype=DOUBLE)

        def step(h, x):
            if x[0] > 1e9:
                h = h + log[:3]
            return torch.tanh(h @ w * scale[:3] + x), h

        _, ys = remat.scan(step, START, XS, **how)
        if written:
            (log if unused else scale).fill_(0.1)
        return torch.autograd.grad(ys.sum(), w)[0], scale[0]

    expected = run(written=False, unused=False)[0]
    assert torch.equal(run(written=True, unused=True)[0], expected)
    if size > 3:  # there is no copy of it
        with pytest.raises(remat.RematError, match=r"was written into between|not deterministic"):
            run(written=True, unused=False)
    else:
        found, scale = run(written=True, unused=False)
        assert torch.equal(found, expected)
        assert scale == 0.1


def kept_in_an_attribute(x, loop):
    class Square:
        def __call__(self, x):
            self.last = x
            return x * x

    square = Square()
    x = loop(square, x)
    return square.last, x


def kept_in_a_list(x, loop):
    kept = []

    def step(x):
        kept.append(x)
        return torch.sin(x) * len(kept)

    return loop(step, x), kept[-1]


@pytest.mark.parametrize("program", [kept_in_an_attribute, kept_in_a_list], ids=lambda program: program.__name__)
def test_a_carry_that_is_stored_as_it_came_in_raises_if_it_is_differentiated(program):
    """The graph of its range begins there, so its gradient would be cut off; its numbers may be read."""

    def plain(step, x):
        for _ in range(6):
            x = step(x)
        return x

    def ours(step, x):
        return remat.scan(lambda x, _: (step(x), None), x, length=6, slots=3)[0]

    found = []
    for loop in (plain, ours):
        x = torch.linspace(0.1, 0.9, 4, dtype=torch.float64, requires_grad=True)
        results = program(x, loop)
        found.append([result.detach() for result in results])
        if loop is ours:
            with pytest.raises(remat.StepError, match="only returned values have one"):
                sum(result.sum() for result in results).backward()
    assert all(map(torch.equal, *found))

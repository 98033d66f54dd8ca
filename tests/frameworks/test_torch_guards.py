"""Random steps repeat themselves, modules gather once, and what does not repeat itself or cannot be run is named."""

import random

import numpy
import pytest
import torch

import remat
from tests.frameworks.torch_programs import DOUBLE, Counted, assert_same, gradients, lstm, plain_scan, weigh


def start(seed=0):
    torch.manual_seed(seed)
    W = (torch.randn(4, 4, dtype=DOUBLE) * 0.5).requires_grad_()
    return W, torch.randn(6, 4, dtype=DOUBLE), torch.randn(12, 6, 4, dtype=DOUBLE)


def drawing(kind, W):
    private = {"torch private": torch.Generator().manual_seed(3), "numpy private": numpy.random.default_rng(3)}
    rng = private.get(kind, random.Random(3))
    draw = {
        "dropout": lambda h: torch.nn.functional.dropout(h, 0.4),
        "torch": lambda h: h + 0.1 * torch.randn(4, dtype=DOUBLE),
        "numpy": lambda h: h + float(numpy.random.normal()),
        "python": lambda h: h + random.gauss(0.0, 1.0),
        "torch private": lambda h: h * torch.rand(4, dtype=DOUBLE, generator=rng),
        "numpy private": lambda h: h + float(rng.normal()),
        "python private": lambda h: h + rng.random(),
    }[kind]
    return lambda h, x: (draw(torch.tanh(h @ W + x)), h)


KINDS = ["dropout", "torch", "numpy", "python", "torch private", "numpy private", "python private"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 4}, {"memory": "64 KiB"}])
def test_random_steps_are_exact_and_the_streams_go_on_as_in_the_plain_loop(kind, how):
    W, h, xs = start()

    def run(loop, **how):
        torch.manual_seed(7), numpy.random.seed(7), random.seed(7)
        step = drawing(kind, W)
        found = gradients(loop, step, h, xs, [W], **how)
        after = step(h, xs[0])[0], torch.rand(2), numpy.random.rand(), random.random()
        return [found[0], *found[1], *[torch.as_tensor(value) for value in after]]

    assert_same(run(remat.scan, **how), run(plain_scan))


def test_a_generator_in_the_carry_is_replayed():
    W, h, xs = start()

    def step(carry, x):
        h, rng = carry
        return (torch.tanh(h @ W + x) * torch.rand(4, dtype=DOUBLE, generator=rng), rng), None

    def run(loop, **how):
        rng = torch.Generator().manual_seed(5)
        (last, same), _ = loop(step, (h, rng), xs, **how)
        assert same is rng
        return [last, *torch.autograd.grad(weigh(last), [W]), torch.rand(2, generator=rng)]

    assert_same(run(remat.scan, slots=3), run(plain_scan))


def test_a_second_backward_draws_the_same():
    W, h, xs = start()
    loss = weigh(remat.scan(drawing("dropout", W), h, xs, slots=3))
    first = torch.autograd.grad(loss, [W], retain_graph=True)
    torch.rand(5)
    before = torch.get_rng_state()
    assert_same(torch.autograd.grad(loss, [W]), first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 4}, {"memory": "256 KiB"}])
def test_batch_norm_gathers_once_as_in_the_plain_loop(how):
    def run(loop, **how):
        W, h, xs = start()
        norm = torch.nn.BatchNorm1d(4, dtype=DOUBLE)
        wanted = [W, *norm.parameters()]
        found = gradients(loop, lambda h, x: (torch.tanh(norm(h @ W + x)), h), h, xs, wanted, **how)
        return [*found[1], *[buffer.clone() for buffer in norm.buffers()]]

    assert_same(run(remat.scan, **how), run(plain_scan))


def test_spectral_norm_runs_again_from_what_it_was():
    def run(loop, **how):
        _, h, xs = start()
        layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 4, dtype=DOUBLE))
        found = gradients(loop, lambda h, x: (torch.tanh(layer(h) + x), h), h, xs, list(layer.parameters()), **how)
        return [*found[1], *[buffer.clone() for buffer in layer.buffers()]]

    assert_same(run(remat.scan, slots=3), run(plain_scan), bitwise=False)


def test_a_buffer_that_is_replaced_ends_as_in_the_plain_loop():
    class Counter(torch.nn.Module):
        def __init__(self, W):
            super().__init__()
            self.W = W
            self.register_buffer("seen", torch.zeros((), dtype=DOUBLE))

        def forward(self, h, x):
            self.seen = self.seen + 1
            return torch.tanh(h @ self.W + x / self.seen), h

    W, h, xs = start()
    cells = Counter(W), Counter(W)
    assert_same(gradients(remat.scan, cells[0], h, xs, [W], slots=3)[1], gradients(plain_scan, cells[1], h, xs, [W])[1])
    assert cells[0].seen == cells[1].seen == 12


def test_a_step_is_told_when_it_runs_again():
    W, h, xs = start()
    told = []

    def step(h, x):
        told.append(remat.is_recomputing())
        return torch.tanh(h @ W + x), None

    weigh(remat.scan(step, h, xs, slots=3)).backward()
    assert told[:12] == [False] * 12
    assert all(told[12:])
    assert len(told) == remat.plan(remat.Loop(12), slots=3).forward_steps


@pytest.mark.parametrize("slots", [1, 4])
def test_a_step_that_gives_something_else_again_is_named_with_its_leaf(slots):
    W, h, xs = start()
    calls = [0]

    def step(carry, x):
        calls[0] += 1
        shift = 0.01 if calls[0] > 12 else 0.0
        return {"a": torch.tanh(carry["a"] @ W + x), "b": carry["b"] + shift}, None

    loss = weigh(remat.scan(step, {"a": h, "b": h.clone()}, xs, slots=slots))
    with pytest.raises(remat.DeterminismError, match=r"carry\['b'\] .* after step \d+"):
        loss.backward()


def test_an_output_that_changes_is_named():
    W, h, xs = start()
    calls = [0]

    def step(h, x):
        calls[0] += 1
        return torch.tanh(h @ W + x), h * calls[0]

    with pytest.raises(remat.DeterminismError, match="y was another one"):
        weigh(remat.scan(step, h, xs, slots=3)).backward()


def test_check_never_does_not_compare():
    W, h, xs = start()
    calls = [0]

    def step(h, x):
        calls[0] += 1
        return torch.tanh(h @ W + x) + 1e-3 * (calls[0] > 12), None

    weigh(remat.scan(step, h, xs, slots=3, check="never")).backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_as_it_was_and_leaves_no_weights_behind(dtype):
    torch.manual_seed(0)
    cell = torch.nn.Linear(8, 4)
    h, xs = torch.randn(6, 4), torch.randn(12, 6, 4)
    seen = set()

    def step(h, x):
        gate = cell(torch.cat([h, x], 1))
        seen.add(gate.dtype)
        return torch.tanh(gate).float(), None

    def run(loop, **how):
        cell.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            last = loop(step, h, xs, **how)[0]
            loss = (last * cell(torch.cat([last, last], 1))).float().sum()  # the same weights once more, with gradients
        loss.backward()
        return [loss.detach(), *[p.grad.clone() for p in cell.parameters()]]

    found, expected = run(remat.scan, slots=3), run(plain_scan)
    assert seen == {dtype}
    assert torch.equal(found[0], expected[0])
    assert_same(found, expected, bitwise=False, tolerance=0.02)


def test_backward_inside_autocast_recomputes_without_it():
    cell, carry, xs, wanted = lstm(dtype=torch.float32)
    losses = weigh(remat.scan(cell, carry, xs, slots=3)), weigh(plain_scan(cell, carry, xs))
    with torch.autocast("cpu", dtype=torch.bfloat16):  # in which the pullbacks of both run
        found, expected = (torch.autograd.grad(loss, wanted) for loss in losses)
    assert_same(found, expected, bitwise=False, tolerance=1e-5)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda h, x: (h[:3], None), r"carry was float64\[6, 4\] and became float64\[3, 4\] after step 0"),
        (lambda h, x: (h.float(), None), r"carry was float64\[6, 4\] and became float32.*cast it, as in carry.to"),
        (lambda h, x: ((h, h), None), r"carry was .* and became a tuple of 2 after step 0"),
        (lambda h, x: h, r"must return \(carry, y\).*step 0 returned"),
        (lambda h, x: (h, "text"), r"y.*builtins.str: a leaf must be a tensor"),
        (lambda h, x: (h.add_(1), None), r"step 0 writes into what it is given"),
        (lambda h, x: (h + x.add_(1), None), r"writes into what it is given"),
    ],
    ids=["shape", "dtype", "structure", "no pair", "no tensor", "in place", "input in place"],
)
def test_steps_that_cannot_be_run_are_told_why(step, message):
    h, xs = torch.ones(6, 4, dtype=DOUBLE, requires_grad=True), torch.ones(12, 6, 4, dtype=DOUBLE)
    with pytest.raises(remat.StepError, match=message):
        remat.scan(step, h, xs, slots=3)


def test_a_later_step_that_changes_the_shape_is_named():
    h = torch.ones(4, dtype=DOUBLE, requires_grad=True)

    def step(carry, _):
        i, h = carry
        return (i + 1, h * 2 if i < 5 else h[:2]), None

    with pytest.raises(remat.StepError, match=r"carry\[1\] was float64\[4\] and became float64\[2\] after step 5"):
        remat.scan(step, (0, h), length=9, slots=3)


def test_writing_into_a_kept_state_later_on_is_an_error():
    W, h, xs = start()

    def step(carry, x):
        i, h = carry
        if i > 4:
            with torch.no_grad():
                h.mul_(0.5)
        return (i + 1, torch.tanh(h @ W + x)), None

    with pytest.raises(remat.StepError, match="writes into what it is given"):
        weigh(remat.scan(step, (0, h), xs, slots=3)).backward()


def test_budgets_that_are_too_small_name_the_smallest_that_works():
    cell, carry, xs, wanted = lstm()
    with pytest.raises(remat.InfeasibleError, match="the smallest that works is") as caught:
        remat.scan(cell, carry, xs, memory=100)
    gradients(remat.scan, cell, carry, xs, wanted, memory=caught.value.minimum)
    with pytest.raises(remat.InfeasibleError, match="slots"):
        remat.scan(cell, carry, xs, slots=0)


def test_inputs_that_are_changed_before_the_backward_are_an_error():
    cell, carry, xs, _ = lstm()
    loss = weigh(remat.scan(cell, carry, xs, slots=3))
    with torch.no_grad():
        cell.gates.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_errors_of_the_step_say_in_which_step_they_came():
    h = torch.ones(4, dtype=DOUBLE, requires_grad=True)

    def step(carry, _):
        i, h = carry
        if i == 7:
            raise KeyError("mine")
        return (i + 1, h * 2), None

    with pytest.raises(KeyError) as caught:
        remat.scan(step, (0, h), length=9, slots=3)
    assert "in step 7" in caught.value.__notes__[0]


def test_an_adjoint_of_ones_own_is_for_numpy():
    with pytest.raises(remat.StepError, match=r"torch.autograd.Function"):
        remat.scan(lambda h, x: (h, None), torch.ones(3), length=3, slots=1, vjp=lambda *a: a)


def test_gradients_that_begin_to_flow_late_are_an_error_that_says_what_to_do():
    W = torch.ones(3, dtype=DOUBLE, requires_grad=True)

    def step(carry, _):
        i, a, b = carry
        return (i + 1, a * W, b + a if i > 3 else b), None

    with pytest.raises(remat.StepError, match="requires_grad_"):
        weigh(remat.scan(step, (0, W * 1.0, torch.ones(3, dtype=DOUBLE)), length=9, slots=3)).backward()


def test_a_profile_hears_loops_on_tensors():
    cell, carry, xs, wanted = lstm()
    step = Counted(cell)
    with remat.profile(memory=True) as run:
        gradients(remat.scan, step, carry, xs, wanted, slots=3)
    (call,) = run.calls
    assert (call.framework, call.steps, call.status) == ("torch", 20, "done")
    assert call.trace.forward_steps == call.plan.forward_steps == step.calls
    assert call.trace.always["gradients"] == sum(8 * t.numel() for t in (xs, *cell.parameters()))
    assert call.trace.totals.allocated >= call.trace.peak > 0


@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize("memory", ["8 KiB", "16 KiB", "64 KiB"])
def test_steps_that_do_not_repeat_themselves_are_found_out_inside_a_budget_in_bytes(memory, check):
    W, h, _ = start()
    xs = torch.randn(200, 6, 4, dtype=DOUBLE)
    calls = [0]

    def step(h, x):
        calls[0] += not remat.is_recomputing()
        h = torch.tanh(h @ W + x)
        return h * (0.5 if remat.is_recomputing() and calls[0] >= 200 else 1.0), None

    loss = weigh(remat.scan(step, h, xs, memory=memory, check=check))
    with pytest.raises(remat.DeterminismError, match=r"carry .* after step \d+"):
        loss.backward()


def test_chaos_is_no_false_alarm():
    torch.manual_seed(0)
    r = torch.tensor(3.9, dtype=torch.float32, requires_grad=True)
    x = torch.rand(50)

    def step(x, _):  # rounds otherwise when it is recorded
        x = x * (1 + 2e-7) if torch.is_grad_enabled() and remat.is_recomputing() else x
        return r * x * (1 - x), None

    remat.scan(step, x, length=120, memory="8 KiB")[0].sum().backward()
    assert torch.isfinite(r.grad)


def test_buffers_that_a_module_writes_in_eval_are_written_once():
    class Counter(torch.nn.Module):
        def __init__(self, W):
            super().__init__()
            self.W = W
            self.register_buffer("seen", torch.zeros((), dtype=DOUBLE))

        def forward(self, h, x):
            self.seen += 1
            return torch.tanh(h @ self.W + x), None

    W, h, xs = start()
    cell = Counter(W).eval()
    weigh(remat.scan(cell, h, xs, slots=3)).backward()
    assert cell.seen == 12

"""Random steps repeat themselves, modules gather once, and what does not repeat itself or cannot be run is named."""

import itertools

import pytest
import torch

import remat
from tests.frameworks.torch.programs import DOUBLE, Counted, assert_same, gradients, lstm, plain_scan, weigh


def start(seed=0):
    torch.manual_seed(seed)
    W = (torch.randn(4, 4, dtype=DOUBLE) * 0.5).requires_grad_()
    return W, torch.randn(6, 4, dtype=DOUBLE), torch.randn(12, 6, 4, dtype=DOUBLE)


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
    step = lambda h, x: (torch.nn.functional.dropout(torch.tanh(h @ W + x), 0.4), h)  # noqa: E731
    loss = weigh(remat.scan(step, h, xs, slots=3))
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
        (lambda h, x: (h.float(), None), r"carry was float64\[6, 4\] and became float32.*cast it, as in carry.to"),
        (lambda h, x: (h, "text"), r"y.*builtins.str: a leaf must be a tensor"),
        (lambda h, x: (h.add_(1), None), r"step 0 writes into what it is given"),
        (lambda h, x: (h + x.add_(1), None), r"writes into what it is given"),
    ],
    ids=["dtype", "no tensor", "in place", "input in place"],
)
def test_steps_that_cannot_be_run_are_told_why(step, message):
    h, xs = torch.ones(6, 4, dtype=DOUBLE, requires_grad=True), torch.ones(12, 6, 4, dtype=DOUBLE)
    with pytest.raises(remat.StepError, match=message):
        remat.scan(step, h, xs, slots=3)


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


def test_inputs_that_are_changed_before_the_backward_are_an_error():
    cell, carry, xs, _ = lstm()
    loss = weigh(remat.scan(cell, carry, xs, slots=3))
    with torch.no_grad():
        cell.gates.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_adjoint_of_ones_own_is_for_numpy():
    with pytest.raises(remat.StepError, match=r"torch.autograd.Function"):
        remat.scan(lambda h, x: (h, None), torch.ones(3), length=3, slots=1, vjp=lambda *a: a)


def test_gradients_may_begin_to_flow_late():
    W = torch.full((3,), 0.9, dtype=DOUBLE, requires_grad=True)

    def step(carry, _):
        i, a, b = carry
        return (i + 1, a * W, b + a if i > 3 else b), None

    def gradient(loop, **budget):
        _, a, b = loop(step, (0, W * 1.0, torch.ones(3, dtype=DOUBLE)), xs=None, length=9, **budget)[0]
        return torch.autograd.grad((a + 2 * b).sum(), [W])

    assert_same(gradient(remat.scan, slots=3), gradient(plain_scan))


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


def looks_at_grad_mode(h, x):
    """A step that rounds otherwise when it is recorded, in chaos, where that grows to any size; outputs repeat."""
    h = 3.9 * h * (1 - h) + (1e-16 if torch.is_grad_enabled() else 0.0) * h.detach()
    return h, h * x


@pytest.mark.parametrize("planner", ["chunks", "save-points"])
def test_outputs_that_rounding_has_changed_raise_no_alarm(planner):
    h, xs = torch.tensor(0.3, dtype=DOUBLE, requires_grad=True), torch.linspace(1, 2, 100, dtype=DOUBLE)
    plan = remat.plan(remat.Loop(100), slots=4, planner=planner)
    _, ys = remat.scan(looks_at_grad_mode, h, xs, plan=plan)
    ys.sum().backward()


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64", "wide", "number", "nan"])
@pytest.mark.parametrize("planner", ["chunks", "save-points"])
def test_outputs_of_any_kind_repeat(planner, kind):
    """Fingerprints of rows, which are computed for all at once, are those of single outputs."""

    def output(h, x):
        if kind == "int64":
            return h.argmax()
        if kind == "number":
            return 0.1
        if kind == "nan":
            return h * torch.tensor([float("nan"), 1.0, 2.0])
        return h.expand(3_000, 3) * x if kind == "wide" else h.to(getattr(torch, kind))

    w, xs = torch.full((3, 3), 0.4, requires_grad=True), torch.linspace(1, 2, 40)
    plan = remat.plan(remat.Loop(40), slots=3, planner=planner)
    last, _ = remat.scan(lambda h, x: (torch.tanh(h @ w + x), output(h, x)), torch.ones(3), xs, plan=plan)
    last.sum().backward()


@pytest.mark.parametrize("options", [{"slots": 1}, {"slots": 2}, {"slots": 4}], ids=str)
def test_an_output_that_cancels_is_compared_relative_to_what_it_was_computed_from(options):
    # In eval the layer has a fast path for steps without a graph, which rounds otherwise; the mean of a layer norm is
    # nothing but rounding.
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64).eval()
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)

    def step(h, _):
        h = layer(h)
        return h, h.mean()

    h = x
    for _ in range(7):
        h, _ = step(h, None)
    wanted = torch.autograd.grad(h.pow(3).sum(), [x, *layer.parameters()])
    found = torch.autograd.grad(remat.scan(step, x, length=7, **options)[0].pow(3).sum(), [x, *layer.parameters()])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("length", [2, 7])
def test_a_small_output_that_does_not_repeat_is_an_error_beside_a_large_carry(length):
    counter = itertools.count(1)
    x = torch.full((3,), 1e4, dtype=torch.float64, requires_grad=True)

    def step(h, _):
        return h.sin() * 1e4, h.cos().sum() * 1e-3 * next(counter)

    final, ys = remat.scan(step, x, length=length, slots=1)
    with pytest.raises(remat.errors.DeterminismError, match="y had other values"):
        (final.sum() + ys.sum()).backward()


@pytest.mark.parametrize("slots", [1, 4])
def test_steps_that_turn_autocast_on_where_it_was_turned_off(slots):
    """Inside of a block that turns it off, weights that a step has cast stay in the cache for the next one."""

    def gradient(loop, **how):
        w = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()

        def step(h, _):
            with torch.autocast("cpu", torch.bfloat16):
                h = h @ w
            return torch.tanh(h.float()), None

        with torch.autocast("cpu", torch.bfloat16, enabled=False):
            last, _ = loop(step, torch.ones(2, 3), None, length=6, **how)
        return torch.autograd.grad(last.sum(), w)[0]

    torch.testing.assert_close(gradient(remat.scan, slots=slots), gradient(plain_scan), rtol=0.02, atol=0.02)

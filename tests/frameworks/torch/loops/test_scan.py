"""Loops on tensors: gradients are those of the plain loop to the last bit, steps are as many as planned."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import remat
from tests.frameworks.torch.programs import DOUBLE, Counted, assert_same, gradients, lstm, plain_scan, weigh


def test_what_needs_no_gradient_has_none():
    W = torch.randn(3, 3, dtype=DOUBLE, requires_grad=True)
    init, xs = (torch.zeros(3, dtype=DOUBLE), torch.zeros((), dtype=DOUBLE)), torch.ones(5, 3, dtype=DOUBLE)

    def step(carry, x):
        return (torch.tanh(carry[0] @ W + x), carry[1] + 0.1), (carry[0], x * 2)

    (h, t), (y, fixed) = remat.scan(step, init, xs, slots=2)
    assert [v.requires_grad for v in (h, t, y, fixed)] == [True, False, True, False]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_it_is_a_plain_loop(mode):
    cell, carry, xs, _ = lstm()
    step = Counted(cell)
    with mode():
        (h, c), ys = remat.scan(step, carry, xs, memory="64 KiB")
        expected = plain_scan(cell, carry, xs)
    assert step.calls == 20
    assert torch.equal(h, expected[0][0])
    assert torch.equal(ys, expected[1])
    assert not h.requires_grad
    assert (h.is_inference() and c.is_inference()) == (mode is torch.inference_mode)


def test_gradients_come_by_backward_hooks_and_grad_alike():
    cell, carry, xs, wanted = lstm()
    expected = gradients(plain_scan, cell, carry, xs, wanted)[1]
    seen = []
    weight = cell.gates.weight
    weight.register_hook(lambda g: seen.append(g) or g * 2)
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad))
    weigh(remat.scan(cell, carry, xs, slots=3)).backward()
    assert len(seen) == 2
    assert torch.equal(seen[0], expected[0])
    assert torch.equal(weight.grad, expected[0] * 2)
    assert_same([p.grad for p in wanted[1:]], expected[1:])


def test_a_second_backward_sweeps_again_and_gives_the_same():
    cell, carry, xs, wanted = lstm()
    step = Counted(cell)
    loss = weigh(remat.scan(step, carry, xs, slots=3))
    planned = remat.plan(remat.Loop(20), slots=3).forward_steps
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    assert step.calls == planned
    assert_same(torch.autograd.grad(loss, wanted, retain_graph=True), first)
    assert step.calls == 2 * planned
    assert_same(torch.autograd.grad(loss, wanted), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, wanted)


def test_older_names_work_on_tensors():
    W = torch.tensor(0.5, dtype=DOUBLE, requires_grad=True)
    loop = remat.binomial_checkpoint(lambda w, s, x: (s[0], torch.tanh(w * s[1] + x)), 3, 2)
    out = loop(W, ((), torch.zeros(2, dtype=DOUBLE)), torch.ones(3, 2, dtype=DOUBLE))
    assert out.shape == (4, 2)
    out.sum().backward()
    assert W.grad is not None
    x = torch.zeros(1, dtype=DOUBLE, requires_grad=True)
    final, at = remat.checkpointed_loop(lambda x: x + 1, x, 20, 4)
    assert (final.item(), sorted(at)) == (20.0, [4, 8, 12, 16])
    (final + at[8] * 2).sum().backward()
    assert x.grad.item() == 3.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_smaller_dtypes_go_through(dtype):
    torch.manual_seed(0)
    W = (torch.randn(3, 3) * 0.5).to(dtype).requires_grad_()
    h, xs = torch.randn(2, 3).to(dtype).requires_grad_(), torch.randn(8, 2, 3).to(dtype)

    def step(h, x):
        h = (h @ W + x).sin()
        return h, h

    assert_same(gradients(remat.scan, step, h, xs, [W, h], slots=2)[1], gradients(plain_scan, step, h, xs, [W, h])[1])


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (torch.nn.GRUCell, r"def step\(carry, x\): h = cell\(x, carry\); return h, h"),
        (torch.nn.RNNCell, r"nn\.RNNCell takes its input first"),
        (torch.nn.LSTMCell, r"\(h, c\) = cell\(x, carry\); return \(h, c\), h"),
        (torch.nn.LSTM, r"nn\.LSTM already runs over all steps.* nn\.LSTMCell"),
    ],
)
def test_a_recurrent_layer_as_the_step_says_how_to_write_it(layer, said):
    with pytest.raises(remat.StepError, match=said):  # the sizes are such that it would run
        remat.scan(layer(4, 4), torch.zeros(2, 4), torch.ones(5, 2, 4), slots=2)


def test_a_cell_with_a_forward_of_its_own_is_a_step():
    class Step(torch.nn.GRUCell):
        def forward(self, h, x):
            h = super().forward(x, h)
            return h, h

    assert remat.scan(Step(3, 4), torch.zeros(2, 4), torch.ones(5, 2, 3), slots=2)[1].shape == (5, 2, 4)


@pytest.mark.parametrize("how", [{"slots": 2}, {"memory": "1 MiB"}, {"slots": 2, "check": "always"}], ids=str)
@pytest.mark.parametrize("mode", [FakeTensorMode, lambda: torch.device("meta")], ids=["fake", "meta"])
def test_tensors_without_numbers(mode, how):
    with mode():
        w, h = torch.randn(3, 3, requires_grad=True), torch.randn(2, 3)
        last, ys = remat.scan(lambda h, x: (torch.tanh(h @ w + x), h.sum()), h, torch.randn(6, 2, 3), **how)
        _, after = remat.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, torch.tanh(c[1] @ w)), (0, last), slots=2)
        (after.sum() + ys.sum()).backward()
    assert w.grad.shape == w.shape
    assert after.shape == h.shape


def test_a_carry_of_integers_that_becomes_floats_is_to_start_with_floats():
    with pytest.raises(remat.CarryError, match="; start with float32"):
        remat.scan(lambda h, x: (h + 0.5 * x, None), torch.tensor(0), torch.ones(5), slots=2)


@pytest.mark.parametrize("how", [{"slots": 3}, {"memory": "4 MiB"}, {"memory": "1 KiB"}], ids=str)
def test_first_runs_do_not_count_as_recomputations(how):
    first = []

    def step(h, _):
        first.append(not remat.is_recomputing())
        return torch.sin(h), None

    x = torch.ones(4, requires_grad=True)
    remat.scan(step, x, length=10, **how)[0].sum().backward()
    assert sum(first) == 10

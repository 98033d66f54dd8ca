"""Loops on tensors: gradients are those of the plain loop to the last bit, steps are as many as planned."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch

import remat
from tests.frameworks.torch.programs import DOUBLE, Counted, assert_same, gradients, lstm, plain_scan, weigh

Pair = namedtuple("Pair", "h c")


@dataclass
class State:
    h: torch.Tensor
    count: int
    t: float


@pytest.mark.parametrize("slots", [1, 2, 5, 20, 60])
def test_gradients_are_the_plain_loops_bit_for_bit_and_steps_are_as_planned(slots):
    cell, carry, xs, wanted = lstm()
    expected = gradients(plain_scan, cell, carry, xs, wanted)
    step = Counted(cell)
    found = gradients(remat.scan, step, carry, xs, wanted, slots=slots)
    assert torch.equal(found[0], expected[0])
    assert_same(found[1], expected[1])
    assert step.calls == remat.plan(remat.Loop(20), slots=slots).forward_steps


@pytest.mark.parametrize("length", [2, 3, 7])
def test_recorded_ranges_of_several_steps_are_bit_for_bit_too(length):
    cell, carry, xs, wanted = lstm()
    plan = remat.plan(remat.Loop(20, state=1, tape=2), slots=9, planner=remat.planners.Chunks(length))
    step = Counted(cell)
    found = gradients(remat.scan, step, carry, xs, wanted, plan=plan)[1]
    assert_same(found, gradients(plain_scan, cell, carry, xs, wanted)[1])
    assert step.calls == plan.forward_steps


@pytest.mark.parametrize("memory", ["6 KiB", "12 KiB", "64 KiB", "1 MiB"])
def test_a_budget_in_bytes_gives_the_same_gradients(memory):
    cell, carry, xs, wanted = lstm()
    assert_same(
        gradients(remat.scan, cell, carry, xs, wanted, memory=memory)[1],
        gradients(plain_scan, cell, carry, xs, wanted)[1],
    )


def test_weights_that_are_used_more_than_once_are_added_up_in_the_plain_order():
    torch.manual_seed(0)
    W = torch.randn(4, 4, dtype=DOUBLE, requires_grad=True)
    h, xs = torch.randn(2, 4, dtype=DOUBLE), torch.randn(15, 2, 4, dtype=DOUBLE, requires_grad=True)

    def step(h, x):
        h = torch.tanh(h @ W + x @ W + (h * x) @ W.T)
        return h, h

    expected = gradients(plain_scan, step, h, xs, [W, xs])[1]
    for slots in (1, 3, 15):
        assert_same(gradients(remat.scan, step, h, xs, [W, xs], slots=slots)[1], expected)


def carriers():
    x = torch.randn(3, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    yield "tuple", (x, x * 2), lambda c, a: ((torch.sin(c[0] + a), c[1] * 0.9 + c[0]), c[0])
    yield "list", [x, x * 2], lambda c, a: ([torch.sin(c[0] + a), c[1] * 0.9], [c[0], a])
    yield "dict", {"b": x, "a": x * 2}, lambda c, a: ({"b": c["b"] + a * c["a"], "a": torch.sin(c["a"])}, {"y": c["b"]})
    yield "named tuple", Pair(x, x * 2), lambda c, a: (Pair(torch.sin(c.h + c.c), c.c + a), Pair(c.h, None))
    yield (
        "dataclass, Python numbers",
        State(x, 0, 0.0),
        lambda c, a: (State(torch.sin(c.h + a * c.t), c.count + 1, c.t + 0.1), c.h * c.count),
    )
    yield "None", (x, None), lambda c, a: ((torch.sin(c[0] + a), None), None)
    yield "nested", {"s": (x, [x * 3])}, lambda c, a: ({"s": (c["s"][0] * a, [torch.cos(c["s"][1][0])])}, (c, a))
    yield (
        "integers and bools",
        (x, torch.tensor(3), torch.tensor([True, False, True])),
        lambda c, a: ((torch.where(c[2], c[0].sin() + a, c[0] * c[1]), c[1] + 1, ~c[2]), c[1]),
    )
    yield (
        "mixed dtypes",
        (x, x.float(), x.to(torch.complex128)),
        lambda c, a: ((c[0].sin() + c[1], (c[1] * 0.9).float(), c[2] * (0.9 + 0.1j) + c[0] * 1j), c[2]),
    )
    yield "a view", x[:2], lambda c, a: ((c + a[:2]).sin().expand(2), c)
    yield (
        "not contiguous",
        torch.randn(4, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(2)).T,
        lambda c, a: (torch.sin(c * a[:, None]).T.contiguous().T, c.T),
    )
    yield "passed through", (x, x * 2), lambda c, a: ((torch.sin(c[0] * c[1] + a), c[1]), c[0])


@pytest.mark.parametrize(("init", "step"), [c[1:] for c in carriers()], ids=[c[0] for c in carriers()])
@pytest.mark.parametrize("wants", ["carry and inputs", "carry", "inputs"])
@pytest.mark.parametrize("slots", [2, 30])
def test_every_carrier_gives_the_values_and_gradients_of_the_plain_loop(init, step, wants, slots):
    from remat.execute.tree import take_apart

    leaves, tree = take_apart(init)
    flows = [isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()) for leaf in leaves]
    leaves = [
        leaf.detach().clone().requires_grad_("carry" in wants) if flow else leaf
        for leaf, flow in zip(leaves, flows, strict=True)
    ]
    init = tree.build(leaves)
    xs = torch.linspace(0.1, 1.0, 27, dtype=DOUBLE).reshape(9, 3).requires_grad_("inputs" in wants)
    wanted = [t for t in (*leaves, xs) if isinstance(t, torch.Tensor) and t.requires_grad]
    values = remat.scan(step, init, xs, slots=slots), plain_scan(step, init, xs)
    for a, b in zip(*[take_apart(v)[0] for v in values], strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        assert not isinstance(a, torch.Tensor) or a.dtype == b.dtype
    expected = gradients(plain_scan, step, init, xs, wanted)[1]
    assert_same(gradients(remat.scan, step, init, xs, wanted, slots=slots)[1], expected)


def test_what_needs_no_gradient_has_none():
    W = torch.randn(3, 3, dtype=DOUBLE, requires_grad=True)
    init, xs = (torch.zeros(3, dtype=DOUBLE), torch.zeros((), dtype=DOUBLE)), torch.ones(5, 3, dtype=DOUBLE)

    def step(carry, x):
        return (torch.tanh(carry[0] @ W + x), carry[1] + 0.1), (carry[0], x * 2)

    (h, t), (y, fixed) = remat.scan(step, init, xs, slots=2)
    assert [v.requires_grad for v in (h, t, y, fixed)] == [True, False, True, False]


def test_nothing_to_differentiate_is_a_plain_loop():
    step = Counted(lambda h, x: (torch.tanh(h + x), h))
    init, xs = torch.zeros(3), torch.ones(6, 3)
    found = remat.scan(step, init, xs, slots=2)
    assert step.calls == 6
    for a, b in zip(found, plain_scan(step.step, init, xs), strict=True):
        assert torch.equal(a, b)
        assert not a.requires_grad


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


def test_only_some_inputs_may_be_asked_for():
    cell, carry, xs, wanted = lstm()
    expected = gradients(plain_scan, cell, carry, xs, wanted)[1]
    for k in range(len(wanted)):
        loss = weigh(remat.scan(cell, carry, xs, slots=3))
        assert_same(torch.autograd.grad(loss, [wanted[k]]), [expected[k]])


def test_results_and_gradients_of_a_single_step_and_of_unused_results():
    cell, carry, xs, wanted = lstm(steps=1)
    assert_same(
        gradients(remat.scan, cell, carry, xs, wanted, slots=1)[1], gradients(plain_scan, cell, carry, xs, wanted)[1]
    )
    cell, carry, xs, wanted = lstm()
    _, ys = remat.scan(cell, carry, xs, slots=3)
    found = torch.autograd.grad(ys[4].sum(), wanted)
    _, ys = plain_scan(cell, carry, xs)
    assert_same(found, torch.autograd.grad(ys[4].sum(), wanted))


def test_a_loop_in_a_loop():
    cell, carry, xs, wanted = lstm(steps=4)

    def outer(loop):
        return lambda carry, x: (loop(cell, carry, x.expand(3, 3, 5) * 0.5), None)[0]

    expected = gradients(plain_scan, outer(lambda *a: plain_scan(*a)), carry, xs, wanted)[1]
    found = gradients(remat.scan, outer(lambda *a: remat.scan(*a, slots=2)), carry, xs, wanted, slots=2)[1]
    assert_same(found, expected, bitwise=False)


@pytest.mark.parametrize("length", [0, 1, 6, 17])
def test_while_loops_run_as_long_as_the_condition_holds(length):
    W = torch.randn(3, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(0)).requires_grad_()
    x = torch.ones(3, dtype=DOUBLE, requires_grad=True)

    def body(carry):
        i, h = carry
        return i + 1, torch.tanh(h @ W)

    i, h = remat.while_loop(lambda c: c[0] < length, body, (torch.tensor(0), x), slots=3)
    assert i == length
    plain = x
    for _ in range(length):
        plain = torch.tanh(plain @ W)
    assert torch.equal(h, plain)
    if length:
        assert_same(torch.autograd.grad(weigh(h), [W, x]), torch.autograd.grad(weigh(plain), [W, x]))


def test_while_loops_stop_at_max_steps_and_take_memory():
    x = torch.ones(3, dtype=DOUBLE, requires_grad=True)
    found = remat.while_loop(lambda h: True, lambda h: h * 1.1, x, max_steps=12, memory="4 KiB")
    (found.sum()).backward()
    plain = 1.0
    for _ in range(12):
        plain *= 1.1
    assert torch.equal(found, torch.full((3,), plain, dtype=DOUBLE))
    assert torch.allclose(x.grad, torch.full((3,), plain, dtype=DOUBLE), rtol=1e-14)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_smaller_dtypes_go_through(dtype):
    torch.manual_seed(0)
    W = (torch.randn(3, 3) * 0.5).to(dtype).requires_grad_()
    h, xs = torch.randn(2, 3).to(dtype).requires_grad_(), torch.randn(8, 2, 3).to(dtype)

    def step(h, x):
        h = (h @ W + x).sin()
        return h, h

    assert_same(gradients(remat.scan, step, h, xs, [W, h], slots=2)[1], gradients(plain_scan, step, h, xs, [W, h])[1])


def test_outputs_that_are_leaves_of_the_carry_count_once_and_only_where_they_are():
    torch.manual_seed(0)
    w = torch.tensor(0.9, dtype=DOUBLE, requires_grad=True)
    zero, xs = torch.zeros((), dtype=DOUBLE), torch.arange(10, dtype=DOUBLE)

    def twice(c, x):
        h = torch.sin(w * c[0] + x)
        return (h, h), h

    def sometimes(h, x):
        h = torch.sin(w * h + x)
        return h, (h if float(x) < 1 else 2 * h)

    def by_turns(c, x):
        a, b = torch.sin(w * c[0] + x), torch.cos(w * c[1] - x)
        return (a, b), (a if int(x) % 2 == 0 else b)

    def reset(h, x):
        y = torch.sin(w * h + x)
        return (zero * w if int(x) == 5 else y), y

    for step, init in ((twice, (zero, zero)), (sometimes, zero), (by_turns, (zero, zero)), (reset, zero)):
        for slots in (1, 2, 20):
            found = gradients(remat.scan, step, init, xs, [w], slots=slots)[1]
            assert_same(found, gradients(plain_scan, step, init, xs, [w])[1], bitwise=False)


def test_a_container_that_the_step_changes_in_place():
    w = torch.tensor(0.9, dtype=DOUBLE, requires_grad=True)
    xs = torch.arange(9, dtype=DOUBLE)

    def step(c, x):
        c["h"] = torch.sin(w * c["h"] + x)
        return c, None

    def start():
        return {"h": torch.zeros((), dtype=DOUBLE)}

    found = gradients(remat.scan, step, start(), xs, [w], slots=3)[1]
    last = start()
    for x in xs.unbind(0):
        last, _ = step(last, x)
    assert_same(found, torch.autograd.grad(weigh(last), [w]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_mode_goes_along_with_a_plain_loop():
    import torch.autograd.forward_ad as forward

    w = torch.tensor(0.9, dtype=DOUBLE)
    xs = torch.arange(5, dtype=DOUBLE)

    def run(loop, **how):
        with forward.dual_level():
            h = forward.make_dual(torch.tensor(0.3, dtype=DOUBLE), torch.ones((), dtype=DOUBLE))
            v = forward.make_dual(w, torch.ones((), dtype=DOUBLE))
            return forward.unpack_dual(loop(lambda h, x: (torch.sin(v * h + x), None), h, xs, **how)[0]).tangent

    assert torch.equal(run(remat.scan, slots=2), run(plain_scan))


def test_a_condition_is_asked_once_for_each_carry():
    asked = []
    x = torch.ones((), dtype=DOUBLE, requires_grad=True)

    def cond(h):
        asked.append(1)
        return bool(h < 5)

    remat.while_loop(cond, lambda h: h * 2, x, slots=2)
    assert len(asked) == 4

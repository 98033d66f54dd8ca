"""The outputs of older loops: one tensor into which the initial state is written, or rows that are independent."""

import pytest
import torch

import remat

STEPS, DOUBLE = 9, torch.float64


def function(w, state, x):
    return (), torch.tanh(state[1] @ w + x)


@pytest.fixture
def values():
    torch.manual_seed(0)
    w, h = (torch.randn(*shape, dtype=DOUBLE, requires_grad=True) for shape in ((4, 4), (3, 4)))
    return w, h, torch.randn(STEPS, 3, 4, dtype=DOUBLE)


def plain(w, h, xs):
    states = [h]
    for x in xs:
        states.append(torch.tanh(states[-1] @ w + x))
    return torch.stack(states)


def ours(w, h, xs):
    return remat.binomial_checkpoint(function, STEPS, 3)(w, ((), h), xs)


def test_nothing_is_copied(values, monkeypatch):
    expected, shapes, cat = plain(*values), [], torch.cat

    def watched(tensors, *args, **kwargs):
        shapes.extend(tensor.shape for tensor in tensors)
        return cat(tensors, *args, **kwargs)

    monkeypatch.setattr(torch, "cat", watched)  # by which rows would be joined
    for out in (ours(*values), ours(*(value.detach() for value in values))):
        assert torch.equal(out, expected)
        assert out.untyped_storage().nbytes() == out.nbytes
        assert not out._is_view()
        assert (STEPS, 3, 4) not in shapes


def test_derivatives_of_both_orders(values):
    w, h, xs = values
    seed = torch.randn(STEPS + 1, 3, 4, dtype=DOUBLE)
    first, second = [], []
    for loop in (ours, plain):
        gradients = torch.autograd.grad((loop(w, h, xs) ** 3 * seed).sum(), (w, h), create_graph=True)
        first.append(gradients)
        second.append(torch.autograd.grad(sum((each**2).sum() for each in gradients), (w, h)))
    torch.testing.assert_close(first[0], first[1], rtol=0, atol=0)
    torch.testing.assert_close(second[0], second[1], rtol=1e-13, atol=0)


def test_the_states_may_be_written_into(values):
    w, h, xs = values
    out = ours(w, h, xs)
    out.mul_(2)
    out[0] = 0.0
    found = torch.autograd.grad(out.sum(), (w, h))
    expected = torch.autograd.grad(2 * plain(w, h, xs)[1:].sum(), (w, h))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def test_under_torch_func_the_rows_are_joined(values):
    w, h, xs = (value.detach() for value in values)
    found = torch.func.grad(lambda w: (ours(w, h, xs) ** 2).sum())(w)
    torch.testing.assert_close(found, torch.func.grad(lambda w: (plain(w, h, xs) ** 2).sum())(w), rtol=1e-13, atol=0)
    many = torch.stack([h, 2 * h])
    assert torch.equal(torch.func.vmap(lambda h: ours(w, h, xs))(many)[1], plain(w, 2 * h, xs))


def test_a_checkpoint_may_be_written_into_while_another_one_is_needed(values):
    w, h, _ = values
    _, found = remat.checkpointed_loop(lambda h: torch.tanh(h @ w), h, 9)
    loss = (found[4] ** 2).sum()
    found[2].mul_(3)
    assert found[2]._version != found[4]._version
    assert found[4].untyped_storage().data_ptr() == found[6].untyped_storage().data_ptr()  # no copies were made
    gradients = torch.autograd.grad(loss + found[2].sum(), (w, h))
    states = [h]
    for _ in range(9):
        states.append(torch.tanh(states[-1] @ w))
    expected = torch.autograd.grad((states[4] ** 2).sum() + 3 * states[2].sum(), (w, h))
    torch.testing.assert_close(gradients, expected, rtol=1e-13, atol=0)

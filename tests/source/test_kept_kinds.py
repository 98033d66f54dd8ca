"""What a loop appends, records and carries keeps its kind: numbers of Python and NumPy beside tensors, identity."""

import enum
import sys
import tracemalloc

import numpy as np
import pytest
from autograd import grad

import remat
from remat.errors import SourceError
from tests.source.corpus import plain, programs_of

torch = pytest.importorskip("torch")


class Kind(enum.Enum):
    FIRST = "first"
    OTHER = "other"


def losses_as_numbers(x):
    losses = []
    for _ in range(8):
        x = torch.tanh(1.1 * x)
        losses.append(x.sum().item())
    return x, losses


def times(x):
    t, ts = 0.0, []
    for _ in range(8):
        x = torch.tanh(1.1 * x)
        ts.append(t)
        t += 0.1
    return x * ts[3], ts


def a_number_at_first(x):
    loss, losses = 0.0, []
    for _ in range(8):
        losses.append(loss)
        x = torch.tanh(1.1 * x)
        loss = loss + x.sum()
    return sum(losses[1:]) + x, losses[0]


def numbers_of_two_kinds(x):
    found = []
    for k in range(8):
        x = torch.tanh(1.1 * x)
        found.append(k / 3 if k % 2 else k)
    return x, found


def numbers_of_python_first(x):
    found = []
    for k in range(8):
        x = torch.tanh(1.1 * x)
        y = 0.0
        if k > 1:
            y = [np.float64(k / 3), np.float32(k / 7), np.int64(k), np.array(k / 3), k, k / 7][k - 2]
        found.append(y)
    return x * found[2], found


def numbers_of_python_first_in_an_array(x):
    found = torch.zeros(8)
    for k in range(8):
        x = torch.tanh(1.1 * x)
        y = 0.5
        if k > 1:
            y = np.float64(k / 3) if k % 2 else x.sum()
        found[k] = y
    return x * found.sum(), found.tolist()


def numbers_or_tensors(x):
    found = []
    for k in range(8):
        x = torch.tanh(1.1 * x)
        found.append(x.sum() if k % 2 else 0.5)
    return sum(found) + x, [type(each) for each in found]


def records(x):
    found = []
    for k in range(8):
        x = torch.tanh(1.1 * x)
        found.append({"loss": x.sum().item(), "name": f"step {k}", "mean": x.detach().numpy().mean()})
    return x, found


def a_record_by_number(x):
    record = {}
    for k in range(8):
        x = torch.tanh(1.1 * x)
        record[k] = x.sum().item()
    return x, record


def arrays_of_numpy(x):
    found = []
    for _ in range(8):
        x = torch.tanh(1.1 * x)
        found.append(x.detach().numpy().copy())
    found[0] += 1
    return x * float(found[3].sum()), [each.tolist() for each in found]


def one_array_of_numpy(x):
    table, found = np.arange(4.0), []
    for _ in range(8):
        x = torch.tanh(1.1 * x)
        found.append(table)
    return x, (len(set(map(id, found))), found[0] is table)


def equal_arrays_of_numpy(x):
    found = []
    for k in range(8):
        x = torch.tanh(1.1 * x)
        found.append(np.ones(4)[::2] if k else np.array(1.0))
    found[1] += 1
    return x, (len(set(map(id, found))), [each.tolist() for each in found])


def numbers_in_a_tensor(x):
    times = torch.zeros(8, dtype=torch.float64)
    for k in range(8):
        x = torch.tanh(1.1 * x)
        times[k] = k * 0.1
    return x * times[3], times.tolist()


def numbers_in_an_array(x):
    norms = np.zeros(8)
    for k in range(8):
        x = torch.tanh(1.1 * x)
        norms[k] = x.detach().numpy().mean() + k * 0.1
    return x * norms[3], norms.tolist()


def an_array_of_numpy_is_carried(x):
    moments, mean = np.zeros(3), np.float32(0)
    for k in range(8):
        x = torch.tanh(1.1 * x)
        moments = 0.9 * moments + np.array([1.0, k, k * k])
        mean = mean + x.detach().numpy().mean()
    return x * moments[1], (moments.tolist(), mean)


def an_array_of_numpy_in_a_state(x):
    state = {"x": x, "seen": np.zeros(4, dtype=np.int64)}
    for k in range(8):
        seen = state["seen"].copy()
        seen[k % 4] += k
        state = {"x": torch.tanh(1.1 * state["x"]) * float(seen.sum()), "seen": seen}
    return state["x"], state["seen"].tolist()


def an_array_that_becomes_a_tensor(x):
    mean = np.zeros(4, dtype=np.float32)
    for k in range(8):
        x = torch.tanh(1.1 * x)
        mean = x if k > 3 else mean
    return mean + x, None


PROGRAMS = [*programs_of(sys.modules[__name__]).values()]


@pytest.mark.parametrize("budget", [{"slots": 2}, {"memory": "1 MiB"}], ids=str)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_kinds_on_pytorch(fn, budget):
    """Lists, records, arrays and variables hold exactly what a plain loop leaves there."""
    found = []
    for each in (fn, remat.checkpointed(**budget)(fn)):
        x = torch.linspace(0.1, 0.7, 4, requires_grad=True)
        y, rest = each(x)
        y.sum().backward()
        found.append((y.detach(), x.grad, repr(rest)))
    assert found[0][2] == found[1][2]
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-6, atol=0)


def test_numbers_go_into_an_array_of_the_caller():
    @remat.checkpointed(slots=2)
    def program(x, out):
        for k in range(6):
            x = np.tanh(1.1 * x)
            out[k] = k * 2.0
        return np.sum(x)

    out = np.zeros(6)
    grad(program)(np.ones(3), out)
    assert out.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_numbers_in_a_list_are_those_of_python():
    @remat.checkpointed(slots=2)
    def program(x):
        t, times = 0.0, []
        for _ in range(6):
            x = np.tanh(1.1 * x)
            times.append(t)
            t += 0.1
        assert {type(each) for each in times} == {float}
        return np.sum(x) * times[4]

    assert grad(program)(np.ones(3)).shape == (3,)


@pytest.mark.parametrize("library", [np, torch], ids=["numpy", "torch"])
def test_the_identity_of_carried_arrays_is_refused(library):
    def program(x):
        start = x
        for _ in range(4):
            x = library.tanh(1.1 * x) * (2.0 if x is start else 1.0)
        return library.sum(x)

    checkpointed = remat.checkpointed(slots=2)(program)
    with pytest.raises(SourceError, match="compared by `is`") as caught:
        grad(checkpointed)(np.ones(3)) if library is np else checkpointed(torch.ones(3, requires_grad=True))
    assert caught.value.line == program.__code__.co_firstlineno + 3


def test_other_objects_may_be_compared_by_identity():
    def program(x):
        kind, best, seen = Kind.FIRST, None, 0
        for k in range(6):
            x = np.tanh(1.1 * x)
            seen += (kind is Kind.FIRST) + (best is None) + (type(k) is not int)
            kind = Kind.FIRST if k % 2 else Kind.OTHER
            best = best if best is not None else "first"
        return np.sum(x) * seen

    assert np.array_equal(grad(remat.checkpointed(slots=2)(program))(np.ones(3)), grad(plain(program))(np.ones(3)))


def test_arrays_of_numpy_in_a_list_take_two_copies_at_most():
    @remat.checkpointed(slots=2)
    def program(x, table):
        found = []
        for k in range(40):
            x = torch.tanh(1.1 * x)
            found.append(table + k)
        return x, found

    tracemalloc.start()
    try:
        program(torch.ones(3, requires_grad=True), np.ones(1 << 14))
        assert tracemalloc.get_traced_memory()[1] < 2.3 * 40 * (1 << 17)
    finally:
        tracemalloc.stop()

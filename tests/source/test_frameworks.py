"""The same on PyTorch and JAX: gradients of plain loops, item assignment, lists, ends, random numbers, refusals."""

import inspect
import traceback

import autograd.numpy as autograd_numpy
import numpy as np
import pytest
from autograd import grad

import remat
from remat.errors import SourceError
from remat.execute.stop import STOP, until_stopped

torch = pytest.importorskip("torch")
rng = np.random.default_rng(0)
INPUTS = rng.standard_normal(4) * 0.5, rng.standard_normal((4, 4)) * 0.4, rng.standard_normal(4) * 0.3


def recurrence(xp, x, W, b):
    for i in range(30):
        x = xp.tanh(x @ W + b * i / 30)
    return xp.sum(x)


def rows(xp, x, W, b):
    X = xp.outer(xp.linspace(0.0, 1.0, 6), x)
    loss = 0
    for k, row in enumerate(X):
        b = xp.tanh(b @ W + row * k)
        loss += xp.sum(b**2)
    return loss + xp.sum(row)


def outputs(xp, x, W, b):
    ys = [x]
    for i in range(8):
        ys.append(xp.tanh(ys[-1] @ W + b))
    return xp.sum(ys[2] * ys[7]) + len(ys)


def filled(xp, x, W, b):
    out = xp.zeros((8, 4))
    for i in range(8):
        x = xp.tanh(x @ W + b)
        out[i] = x * i
    return xp.sum(out**2)


def nest(xp, x, W, b):
    for i in range(3):
        keep = x
        for j in range(4):
            x = xp.tanh(x @ W + b * j)
        x = x + 0.1 * keep
    return xp.sum(x) * j


def late(xp, x, W, b):
    best = None
    for i in range(9):
        x = xp.tanh(x @ W + b)
        if i == 5:
            best = x * 2
    return xp.sum(best) + xp.sum(x)


def until(xp, x, W, b):
    n = 0
    while xp.sum(x**2) < 20.0:
        x = 1.1 * x + 0.02 * b
        n += 1
    return xp.sum(x) * n


def ends(xp, x, W, b):
    for i in range(100):
        x = 1.1 * x + 0.02 * b
        if xp.sum(x**2) > 5.0:
            break
    else:
        x = x * 100
    return xp.sum(x) * i


PROGRAMS = [recurrence, rows, outputs, filled, nest, late, until, ends]


class Torch:
    tanh, sum, outer = torch.tanh, torch.sum, torch.outer

    @staticmethod
    def zeros(shape):
        return torch.zeros(shape, dtype=torch.float64)

    @staticmethod
    def linspace(start, stop, count):
        return torch.linspace(start, stop, count, dtype=torch.float64)


def torch_gradients(program):
    inputs = [torch.tensor(each, requires_grad=True) for each in INPUTS]
    value = program(Torch, *inputs)
    return [value.detach(), *torch.autograd.grad(value, inputs, allow_unused=True)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_torch(program):
    marked = remat.checkpointed(slots=3)(program)
    for ours, plain in zip(torch_gradients(marked), torch_gradients(program), strict=True):
        assert (ours is None) == (plain is None)
        if ours is not None:
            torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-12)


def test_draws_of_torch_are_replayed_in_the_turn_that_ends_the_loop():
    def walk(x):
        for i in range(50):
            x = 1.05 * x + 0.3 * torch.randn((), dtype=torch.float64)
            if x > 3.0:
                break
            x = x + 0.01 * torch.tanh(x)
        return x

    def run(fn):
        torch.manual_seed(1)
        x = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        value = fn(x)
        return value.item(), torch.autograd.grad(value, x)[0].item(), torch.rand(()).item()

    assert run(remat.checkpointed(slots=3)(walk)) == pytest.approx(run(walk), rel=1e-12)


def test_two_names_of_a_tensor_that_is_changed_are_refused():
    def alias(x):
        count = torch.zeros(2)
        same = count
        for i in range(5):
            count += 1
            x = torch.tanh(x + same.sum())
        return x

    with pytest.raises(SourceError, match="changes count in place, and same"):
        remat.checkpointed(slots=2)(alias)(torch.tensor(0.3, requires_grad=True))


def test_a_loop_over_an_array_of_numpy_gives_its_numbers():
    def visited(xp, x, W, b):
        for k, row in zip(np.array([3, 1, 0]), W, strict=False):
            x = xp.tanh(x + b[k] * row * float(type(k) is np.int64))
        for k in np.array([2, 1]):
            x = x * xp.tanh(x[k])
        return xp.sum(x)

    test_torch(visited)


def test_an_item_of_a_cloned_tensor_may_be_assigned_an_item_of_another():
    def ends_are_kept(xp, x, W, b):
        u = x.clone()
        for _ in range(5):
            before = u.clone()
            u[1:-1] = before[1:-1] + 0.1 * (before[2:] - before[:-2])
            u[0] = b[0]
        return xp.sum(u**2)

    test_torch(ends_are_kept)


def test_a_list_that_holds_a_tensor_which_is_changed_is_refused():
    def held(x):
        states, h = [None] * 3, x * 1.0
        for i in range(3):
            states[i] = h
            h += 0.1
        return states[0].sum()

    with pytest.raises(SourceError, match="states holds what is put into it") as caught:
        remat.checkpointed(slots=2)(held)(torch.ones(3, requires_grad=True))
    assert caught.value.line == held.__code__.co_firstlineno + 2


def test_without_gradients_a_loop_runs_as_it_is():
    fn = remat.checkpointed(slots=3)(recurrence)
    with torch.no_grad(), remat.profile() as run:
        fn(Torch, *map(torch.tensor, INPUTS))
    assert not run.calls


@pytest.mark.full
@pytest.mark.parametrize("program", PROGRAMS)
def test_jax(program):
    check_jax(program)


def test_a_plain_loop_of_jax():
    check_jax(recurrence)


@pytest.mark.full
def test_a_plain_loop_inside_of_jit():
    jax = pytest.importorskip("jax")
    inputs = [jax.numpy.asarray(each, jax.numpy.float32) for each in INPUTS]
    ours, plain = (
        jax.jit(jax.grad(lambda *a, fn=fn: fn(jax.numpy, *a), (0, 1, 2)))(*inputs)
        for fn in (remat.checkpointed(slots=3)(recurrence), recurrence)
    )
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)


def check_jax(program):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    inputs = [jnp.asarray(each, jnp.float32) for each in INPUTS]
    marked = remat.checkpointed(slots=3)(program)
    ours = jax.value_and_grad(lambda *a: marked(jnp, *a), (0, 1, 2))
    if program is ends:  # inside of jit this is JAX's own kind of error, in the line of the user's
        with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
            jax.jit(ours)(*inputs)
        lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "if xp.sum(x**2) > 5.0:" in lines
    if program is filled:  # which plain JAX refuses

        def program(xp, x, W, b):
            rows = []
            for i in range(8):
                x = xp.tanh(x @ W + b)
                rows.append(x * i)
            return xp.sum(xp.stack(rows) ** 2)

    plain = jax.value_and_grad(lambda *a: program(jnp, *a), (0, 1, 2))(*inputs)
    for one, other in zip(jax.tree.leaves(ours(*inputs)), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)


def test_a_loop_of_the_library_ends_where_its_step_says():
    from autograd import grad

    def total(x):
        def body(carry):
            k, x = carry
            x = x * 1.5
            return STOP if x > 10.0 else (k + 1, x)

        k, x = remat.while_loop(until_stopped, body, (0, x), slots=3)
        return x * k

    assert grad(total)(1.0) == pytest.approx(1.5**5 * 5)


def test_rows_of_an_array_have_one_gradient():
    from autograd import grad

    from remat.frameworks.numpy import unstack

    rows = rng.standard_normal((5, 3))
    cubes = grad(lambda rows: sum((row**3).sum() for row in unstack(rows)[1:]))
    np.testing.assert_allclose(cubes(rows), 3 * rows**2 * (np.arange(5) > 0)[:, None])
    second = grad(lambda rows: (grad(lambda rows: sum((r**3).sum() for r in unstack(rows)))(rows) ** 2).sum())
    np.testing.assert_allclose(second(rows), 36 * rows**3)


def changed(w, acc):
    h = torch.zeros(4, dtype=torch.float64)
    for i in range(12):
        h = torch.tanh(h @ w + acc.sum() * 0.01)
        acc += h.square().sum()
    return h.sum()


def assigned(w, acc):
    h = torch.zeros(4, dtype=torch.float64)
    acc[3] = 2.0
    for i in range(12):
        for _ in range(3):
            h = torch.tanh(h @ w + 0.1)
            acc[0] = acc[1] + h.sum()
        acc[1] += 1.0
        last = h * 2
    return h.sum() + last.sum()


def rows_given(w, acc):
    h, out = torch.zeros(4, dtype=torch.float64), acc[1:]
    for i in range(3):
        h = torch.tanh(h @ w + 0.1)
        out[i] = h.sum()
    return h.sum()


@pytest.mark.parametrize("program", [changed, assigned, rows_given])
@pytest.mark.parametrize("follows", [False, True])
def test_a_tensor_of_the_caller_is_changed_as_in_a_plain_loop(program, follows):
    """The caller sees the new values, and their gradient; also where it had made the tensor from parameters."""
    ran = []
    for function in (program, remat.checkpointed(slots=3)(program)):
        w = torch.tensor(INPUTS[1], requires_grad=True)
        acc = torch.zeros(4, dtype=torch.float64) + (w.sum() if follows else 0)
        loss = function(w, acc) + acc.square().sum()
        ran.append([loss, acc, *torch.autograd.grad(loss, w)])
    for expected, found in zip(*ran, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_an_array_of_numpy_that_jax_records_into_is_refused():
    jax = pytest.importorskip("jax")

    @remat.checkpointed(slots=3)
    def total(w, acc):
        for i in range(6):
            w = jax.numpy.tanh(w)
            acc += w
        return w + acc

    with pytest.raises(SourceError, match="changes acc in place, an array of NumPy"):
        jax.grad(lambda w: total(w, np.zeros(())))(0.3)
    assert jax.grad(lambda w: total(w, jax.numpy.zeros(())))(0.3) > 0


class Recorder:
    """An object that keeps what it is given, as loggers of users do."""

    def __init__(self):
        self.rows = []

    def record(self, row):
        self.rows.append(row)


class Clock:
    """A counter that no search finds."""

    __slots__ = ("ticks",)

    def __init__(self):
        self.ticks = 0

    def tick(self):
        self.ticks += 1
        return 0.1 * self.ticks


def recorded(x, sin):
    recorder = Recorder()
    for i in range(20):
        x = sin(x)
        recorder.record(x)
    return (x + recorder.rows[3]).sum()


def timed(x, sin, clock):
    for i in range(20):
        x = sin(x) * clock.tick()
    return x.sum()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("fn", [recorded, timed], ids=lambda fn: fn.__name__)
def test_errors_of_the_backward_name_the_line_of_the_loop(library, fn):
    """Where the loop itself is no longer on the stack, the message has its place."""
    line = inspect.getsourcelines(fn)[1] + (2 if fn is recorded else 1)
    more = (Clock(),) if fn is timed else ()
    with pytest.raises((remat.StepError, remat.DeterminismError), match=f"test_frameworks.py, line {line}: "):
        if library == "numpy":
            grad(remat.checkpointed(slots=3)(fn))(np.ones(3), autograd_numpy.sin, *more)
        else:
            x = torch.ones(3, dtype=torch.float64, requires_grad=True)
            remat.checkpointed(slots=3)(fn)(x, torch.sin, *more).backward()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_errors_of_the_backward_of_a_scan_name_the_line_of_the_step(library):
    """The same for steps that the user has written."""
    clock = Clock()

    def step(x, _):
        return x * clock.tick(), None

    def loss(x):
        return remat.scan(step, x, length=20, slots=3)[0].sum()

    place = f"test_frameworks.py, line {step.__code__.co_firstlineno}: "
    with pytest.raises(remat.DeterminismError, match=place):
        if library == "numpy":
            grad(loss)(np.ones(3))
        else:
            loss(torch.ones(3, dtype=torch.float64, requires_grad=True)).backward()


def numbers_beside_tensors(x):
    seen = np.zeros(6)
    for i in range(6):
        x = torch.sin(x)
        seen[i] = 2.0 * i
    return x.sum() * float(seen.sum())


def rows_of_another_dtype(x):
    out = torch.zeros((6, 4), dtype=torch.float32)
    for i in range(6):
        x = torch.sin(x)
        out[i] = x
    return out.sum()


def rows_with_one_more_axis(x):
    out = torch.zeros((6, 4), dtype=torch.float64)
    for i in range(6):
        x = torch.sin(x)
        out[i] = x[None, :]
    return (out**2).sum()


def counted_in_an_array_from_outside(x):
    seen = SEEN
    for i in range(6):
        x = torch.sin(x)
        seen[i] = i + 1.0
    return x.sum()


def number_beside_a_shared_tensor(x):
    state, h = {"a": x, "n": 0}, x
    for i in range(6):
        h = torch.sin(h)
        state["a"] = torch.cos(state["a"] + h)
        state["n"] += i
    return (state["a"] * h * state["n"]).sum()


SEEN = torch.zeros(6)


@pytest.mark.parametrize(
    "fn",
    [
        numbers_beside_tensors,
        rows_of_another_dtype,
        rows_with_one_more_axis,
        counted_in_an_array_from_outside,
        number_beside_a_shared_tensor,
    ],
    ids=lambda fn: fn.__name__,
)
def test_arrays_that_are_filled_on_pytorch(fn):
    """Assignments cast and broadcast as PyTorch does, and arrays from outside have what a plain loop leaves there."""
    found = []
    for each in (fn, remat.checkpointed(slots=2)(fn)):
        x = torch.linspace(0.1, 0.7, 4, dtype=torch.float64, requires_grad=True)
        SEEN.zero_()
        each(x).backward()
        found.append((x.grad, SEEN.clone()))
    assert all(map(torch.equal, *found))

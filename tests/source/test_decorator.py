"""What the decorator offers besides gradients: budgets, marked loops, explain, source, errors, places in the file."""

import functools
import traceback
import tracemalloc

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import grad

import remat
from remat.errors import CarryError, DeterminismError, ProblemError, SourceError, StepError
from tests.source.corpus import plain

rng = np.random.default_rng(0)
x0, W0, b0 = rng.standard_normal(4) * 0.5, rng.standard_normal((4, 4)) * 0.4, rng.standard_normal(4) * 0.3


def recurrence(x, W, b):
    state = x
    for i in range(1000):
        state = np.tanh(state @ W + b)
    return state


def short(x, W, b):
    state = x
    for i in range(100):
        state = np.tanh(state @ W + b)
    return state


def nest(x, W, b):
    for i in range(4):
        x = x + b
        for j in range(5):
            x = np.tanh(x @ W)
    return np.sum(x)


def perfect(x, W, b):
    for i in range(4):
        for j in range(5):
            x = np.tanh(x @ W + b * i)
    return np.sum(x)


def counted(fn):
    with remat.profile() as run:
        grad(lambda x: anp.sum(fn(x, W0, b0)))(x0)
    return run.calls


def test_the_number_of_evaluations_is_the_plans():
    [call] = counted(remat.checkpointed(slots=10)(short))
    assert call.trace.forward_steps == call.plan.forward_steps == 322


def test_evaluations_of_a_loop_that_ends_from_inside_are_the_plans():
    @remat.checkpointed(slots=5)
    def until(x, W, b):
        for i in range(100):
            x = 1.1 * x + 0.01 * b
            if np.sum(x**2) > 30.0:
                break
        return x

    [call] = counted(until)
    assert call.trace.forward_steps == call.plan.forward_steps
    remat.verify(call.plan.schedule, call.plan.problem, call.plan.memory)


@pytest.mark.full
def test_memory_of_the_example_falls_at_least_twenty_times():
    size = 64
    x, W, b = rng.standard_normal(size), rng.standard_normal((size, size)) / 8, rng.standard_normal(size) * 0.1

    def plain(x, W, b):
        for _ in range(1000):
            x = anp.tanh(x @ W + b)
        return anp.sum(x)

    def peak(gradient):
        gradient()
        tracemalloc.start()
        gradient()
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used - 3 * W.nbytes  # the gradient of W, which is summed up

    ours = remat.checkpointed(slots=31)(recurrence)
    marked = peak(lambda: grad(lambda *a: anp.sum(ours(*a)), (0, 1, 2))(x, W, b))
    assert peak(lambda: grad(plain, (0, 1, 2))(x, W, b)) > 20 * marked


def test_a_budget_in_bytes():
    fn = remat.checkpointed(memory="12 KiB")(short)
    ours = grad(lambda x: anp.sum(fn(x, W0, b0)))(x0)
    np.testing.assert_allclose(ours, remat.grad(short)(x0, W0, b0), rtol=1e-10, atol=1e-300)
    [call] = counted(fn)
    assert call.trace.peak <= 12 * 1024
    with pytest.raises(remat.InfeasibleError):
        grad(lambda x: anp.sum(remat.checkpointed(memory=100)(short)(x, W0, b0)))(x0)


def test_budgets_that_make_no_sense_are_refused_at_once():
    with pytest.raises(ProblemError, match="not both"):
        remat.checkpointed(slots=3, memory="1 MiB")
    with pytest.raises(ProblemError, match="on_unsupported"):
        remat.checkpointed(slots=3, on_unsupported="maybe")
    with pytest.raises(ProblemError):
        remat.checkpointed(slots=-3)


def test_loops_without_any_budget_are_an_error():
    def loop(x):
        for _ in range(9):
            x = np.tanh(x)
        return x

    for decorator in (remat.checkpointed, remat.checkpointed()):
        with pytest.raises(ProblemError, match=r"give the loops of .*loop a budget"):
            decorator(loop)
    assert remat.grad(loop)(0.0) == 1.0

    @remat.checkpointed
    def double(x):
        return 2 * x

    assert double(3) == 6


def test_a_marked_loop_has_settings_of_its_own():
    @remat.checkpointed
    def two(x, W, b):
        for i in remat.range(20, slots=3):
            x = np.tanh(x @ W + b)
        for j in range(5):
            x = x * 0.9
        return x

    [call] = counted(two)
    assert call.plan.problem.steps == 20
    assert call.plan.memory.device.slots == 3
    assert "none: the function has no budget" in two.explain()
    assert repr(remat.range(2, 9, slots=4)) == "remat.range(2, 9, slots=4)"
    assert [*remat.range(2, 9, 3)] == [2, 5, 8]
    assert (len(remat.range(5)), remat.range(5)[-1], 3 in remat.range(5)) == (5, 4, True)
    with pytest.raises(TypeError, match="budget"):
        remat.range(5, budget=3)


def test_settings_of_a_call_win():
    with remat.profile() as run:
        remat.grad_with_checkpointing(remat.checkpointed(slots=31)(short), num_checkpoints=7)(x0, W0, b0)
    assert run.calls[0].plan.memory.device.slots == 7
    with remat.profile() as run:
        remat.grad_with_checkpointing(short)(x0, W0, b0)
    assert run.calls[0].plan.memory.device.slots == 10


@functools.cache
def fewest_evaluations(turns, slots):
    """Of all ways to keep a state behind some turns, to pull back what is behind it, and then what is before it."""
    if turns == 1 or slots == 1:
        return turns * (turns + 1) // 2
    ways = range(1, turns)
    return min(k + fewest_evaluations(turns - k, slots - 1) + fewest_evaluations(k, slots) for k in ways)


def test_explain_says_what_was_done():
    fn = remat.checkpointed(slots=10)(short)
    assert "made when the loop is differentiated" in fn.explain()
    counted(fn)
    text = fn.explain()
    line = short.__code__.co_firstlineno + 2
    assert text.startswith(f"line {line}: for i in range(100):")
    assert "carry: state; captured: W, b; locals: i" in text
    least = fewest_evaluations(100, 10)
    assert f"100 iterations, {least} step evaluations ({least - 100} recomputed), binomial, optimal" in text
    assert "a perfect nest: one loop with the loop in line" in remat.checkpointed(slots=3)(perfect).explain()
    assert "no perfect nest: the loops in lines" in remat.checkpointed(slots=3)(nest).explain()
    assert "def _step" in fn.source


@pytest.mark.parametrize("megabytes", [3.5, pytest.param(6, marks=pytest.mark.full)])
def test_nested_loops_keep_within_one_budget(megabytes):
    """The peak of the inner plan is part of the outer tape; with 3.5 MiB the inner loop needs more than its half."""

    def model(x, w):
        for _ in range(14):
            y = np.sin(x)
            for _ in range(12):
                y = np.tanh(w * y + 0.1)
                y = y + np.cos(y) * 0.01
            x = x + 0.1 * y
        return np.sum(x)

    x, w = np.linspace(0, 1, 25_000), np.linspace(0.9, 1.1, 25_000)
    marked = remat.checkpointed(memory=f"{megabytes} MiB")(model)
    slopes = grad(marked, (0, 1))
    slopes(x, w)
    tracemalloc.start()
    ours = slopes(x, w)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 1.05 * megabytes * 2**20
    for one, other in zip(ours, grad(plain(model), (0, 1))(x, w), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert "whose peak is part of this loop's tape" in marked.explain()
    assert f"budget: 1/2 of memory='{megabytes} MiB', or the least that it needs" in marked.explain()


def test_a_perfect_nest_is_one_loop():
    [call] = counted(remat.checkpointed(slots=3)(perfect))
    assert call.plan.problem.steps == 20


def test_unsupported_loops_are_kept_only_where_that_is_asked_for():
    def log(x):
        seen = []
        for i in range(5):
            x = np.tanh(x)
            if i % 2:
                seen.append(x)
        return np.sum(x) + len(seen)

    with pytest.raises(SourceError, match="append"):
        remat.checkpointed(slots=2)(log)
    kept = remat.checkpointed(slots=2, on_unsupported="keep")(log)
    assert "kept as it is, with all its memory" in kept.explain()
    assert grad(kept)(0.3) == pytest.approx(remat.grad(log)(0.3), rel=1e-12)


def test_printing_happens_once_a_turn(capsys):
    @remat.checkpointed(slots=2)
    def chatty(x):
        total = 0
        for i in range(6):
            x = np.tanh(1.1 * x)
            total = total + x * np.ones(2)
            print("turn", i)
        return np.sum(total)

    grad(chatty)(0.3)
    assert capsys.readouterr().out.split("\n")[:-1] == [f"turn {i}" for i in range(6)]


def test_errors_have_the_users_names():
    @remat.checkpointed(slots=2)
    def grows(x):
        path = x
        for i in range(9):
            path = np.concatenate([path, x])
        return np.sum(path)

    with pytest.raises(SourceError, match=r"path was float64\[\d\] and became float64\[\d+\]") as caught:
        grad(grows)(np.ones(2))
    assert "carry" not in str(caught.value).replace("a loop carries", "")
    count = [0]

    def noisy():
        count[0] += 1.0 if count[0] < 30 else 0.5
        return float(np.random.default_rng().standard_normal())

    @remat.checkpointed(slots=2)
    def random(x):
        momentum = x * 1.0
        for i in range(9):
            momentum = np.tanh(momentum + noisy())
        return np.sum(momentum)

    with pytest.raises(DeterminismError, match="momentum"):
        grad(random)(np.ones(2))


def test_errors_of_loops_that_end_early_have_the_users_names():
    @remat.checkpointed(slots=2)
    def grows(x):
        length, path, turn = x, x, 0
        while turn < 9:
            length, path, turn = length * 0.5, np.concatenate([path, x]), turn + 1
        return np.sum(path) + np.sum(length)

    with pytest.raises(SourceError, match=r"since path was float64\[\d+\] and became float64\[\d+\]"):
        grad(grows)(np.ones(2))

    @remat.checkpointed(slots=2)
    def grows_up_to_a_break(x):
        seen, ys = {}, []
        for i in range(9):
            if i == 4:
                break
            x = np.tanh(x)
            seen[f"{i}"] = len(seen)
            ys.append(x)
        return np.sum(x) + len(seen) + np.sum(ys[-1])

    with pytest.raises(SourceError, match="since seen was a dict with 0, 1, 2 and became a dict with 0, 1, 2, 3"):
        grad(grows_up_to_a_break)(np.ones(2))


def test_a_mismatch_of_the_carry_is_typed():
    with pytest.raises(CarryError) as caught:
        remat.scan(lambda c, i: ((c[0], anp.ones(3)), None), (x0, np.ones(2)), np.arange(3), slots=2)
    assert (caught.value.step, caught.value.leaf) == (0, "carry[1]")
    assert isinstance(caught.value, StepError)
    with pytest.raises(CarryError, match="structure"):
        remat.scan(lambda c, i: ((c[0],), None), (x0, x0), np.arange(3), slots=2)


def test_tracebacks_lead_to_the_users_line():
    @remat.checkpointed(slots=2)
    def fails(x):
        for i in range(9):
            x = np.tanh(x)
            if i == 4:
                raise ZeroDivisionError(i)
        return x

    with pytest.raises(ZeroDivisionError) as caught:
        grad(fails)(0.3)
    frames = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename == __file__]
    assert frames[-1].line == "raise ZeroDivisionError(i)"
    assert frames[-1].colno == 16


def test_names_of_generated_code_cannot_collide():
    @remat.checkpointed(slots=2)
    def same(x):
        _carry, _remat, _step, _put1, remat_ = x, 0.5, 2.0, 1.0, 3.0
        for _x in range(6):
            _carry = np.tanh(_carry * _remat * _step) + _put1 * remat_
        return _carry

    assert grad(same)(0.3) == pytest.approx(remat.grad(same.remat_original)(0.3), rel=1e-12)


def wraps(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)

    return wrapper


def test_what_has_no_text_of_its_own_is_refused():
    with pytest.raises(SourceError, match="below"):

        @remat.checkpointed(slots=2)
        @wraps
        def lost(x):
            return x

    with pytest.raises(SourceError, match="no source of <lambda>"):
        remat.checkpointed(slots=2)(eval("lambda x: x"))
    with pytest.raises(SourceError, match="is not a plain function"):
        remat.checkpointed(slots=2)(np.tanh)
    with pytest.raises(SourceError, match=r"@remat.checkpointed\(slots=5\)"):
        remat.checkpointed(5)

    async def later(x):
        return x

    with pytest.raises(SourceError, match="async"):
        remat.checkpointed(slots=2)(later)

    def gives(x):
        for i in range(3):
            yield x

    with pytest.raises(SourceError, match="generator"):
        remat.checkpointed(slots=2)(gives)


def test_defaults_and_the_name_stay():
    def original(x, *, scale=0.5, power: int = 2) -> float:
        """What it does."""
        for i in range(4):
            x = np.tanh(scale * x**power)
        return x

    marked = remat.checkpointed(slots=2)(original)
    assert (marked.__name__, marked.__doc__, marked.__kwdefaults__) == (
        "original",
        "What it does.",
        original.__kwdefaults__,
    )
    assert marked.__code__.co_name == "original"
    assert marked(0.3) == original(0.3)


def helper(a):
    return np.tanh(a)


def test_helpers_in_plain_numpy():
    def calls(x):
        for i in range(4):
            x = helper(x)
        return x

    def decay(x):
        for i in range(4):
            x = anp.tanh(x)
        return x

    assert grad(remat.checkpointed(slots=2)(calls))(0.3) == pytest.approx(grad(decay)(0.3), rel=1e-12)
    assert remat.grad(helper)(0.3) == pytest.approx(1 - np.tanh(0.3) ** 2)


def test_an_array_of_the_caller_that_autograd_records_into_is_refused():
    """NumPy's arrays cannot hold what is recorded; numbers are written back, and arrays of the function's own work."""

    @remat.checkpointed(slots=2)
    def total(x, acc):
        for i in range(6):
            x = np.tanh(x)
            acc += np.sum(x)  # ours are new arrays; the caller's would stay as it was
        return x

    @remat.checkpointed(slots=2)
    def count(x, acc):
        for i in range(6):
            x = np.tanh(x)
            acc[0] += 1
        return x

    with pytest.raises(SourceError, match="changes acc in place, an array of NumPy that the function was given"):
        grad(total)(0.3, np.zeros(1))
    counts = np.zeros(1, int)
    grad(count)(0.3, counts)
    assert counts == [6]
    assert grad(lambda x: total(x, np.zeros(1) + 0 * x))(0.3) == pytest.approx(grad(lambda x: count(x, counts))(0.3))

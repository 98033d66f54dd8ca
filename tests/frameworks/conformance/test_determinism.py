"""Steps that do not repeat themselves are found out, random ones repeat, and nothing else raises an alarm."""

import random

import numpy
import pytest

import remat
from remat.planners import Chunks

from .adapter import Counter, Log
from .comparison import assert_same, scan_loss
from .frameworks import FRAMEWORKS, on_jax, where_python_runs_each_step
from .programs import random as random_array


def gradient(framework, step, x=0.3, steps=20, dtype="float64", **how):
    """The gradient of the last carry of a loop by its first one."""

    def loss(x):
        return framework.np.sum(remat.scan(step, x, length=steps, **({"slots": 3} | how))[0])

    return framework.gradient(loss, framework.array(x, dtype))[0]


@where_python_runs_each_step
@pytest.mark.parametrize("slots", [1, 3, 50])
def test_a_step_that_counts_its_calls_is_an_error(framework, slots):
    counter = Counter()

    def step(x, _):
        counter.calls += 1
        return x * 0.9 + 0.001 * counter.calls * x, None

    with pytest.raises(remat.DeterminismError, match=r"carry .* after step \d+"):
        gradient(framework, step, slots=slots)


@where_python_runs_each_step
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_the_leaf_that_changed_is_named(framework, slots):
    counter = Counter()

    def step(state, _):
        counter.calls += 1
        shift = 0.01 if counter.calls > 9 else 0.0
        return {"good": framework.np.tanh(state["good"]), "bad": [state["bad"][0] + shift]}, None

    def loss(x):
        return framework.weigh(remat.scan(step, {"good": x, "bad": [x * 2]}, length=9, slots=slots)[0])

    with pytest.raises(remat.DeterminismError, match=r"carry\['bad'\]\[0\] .* after step \d+"):
        framework.gradient(loss, framework.array(0.3))


@where_python_runs_each_step
def test_an_output_that_changes_is_an_error(framework):
    counter = Counter()

    def step(x, _):
        counter.calls += 1
        return framework.np.tanh(x), x * counter.calls

    with pytest.raises(remat.DeterminismError, match="y had other values"):
        framework.gradient(lambda x: framework.np.sum(remat.scan(step, x, length=9, slots=2)[1]), framework.array(0.3))


@where_python_runs_each_step
@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize("times", [1, 2, 8])
def test_changes_are_found_inside_a_budget_in_bytes(framework, times, check):
    w, h, xs = (random_array(framework, k, *shape) for k, shape in enumerate([(4, 4), (6, 4), (100, 6, 4)]))
    counter = Counter()

    def step(w, h, x):
        counter.calls += not remat.is_recomputing()
        h = framework.np.tanh(framework.np.dot(h, w) + x)
        return h * (0.5 if remat.is_recomputing() and counter.calls >= 100 else 1.0), None

    with pytest.raises(remat.InfeasibleError) as caught:
        framework.gradient(scan_loss(framework, step, remat.scan, memory=10), w, h, xs)
    counter = Counter()
    loss = scan_loss(framework, step, remat.scan, memory=times * caught.value.minimum, check=check)
    with pytest.raises(remat.DeterminismError, match=r"carry .* after step \d+"):
        framework.gradient(loss, w, h, xs)


@where_python_runs_each_step
def test_never_does_not_compare(framework):
    counter = Counter()

    def step(x, _):
        counter.calls += 1
        return x * counter.calls, None

    assert gradient(framework, step, check="never") > 0


@where_python_runs_each_step
@pytest.mark.parametrize("check", ["first", "always"])
def test_first_compares_in_the_first_sweep_of_a_call_and_always_in_each(framework, check):
    wrong = Counter()  # whose slots are not put back, as the contents of a list would be

    def step(x, _):
        return framework.np.tanh(x) + (wrong.calls * 0.1 * random.SystemRandom().random()), None

    x = framework.array([0.3, 0.4])
    pull = framework.vjp(lambda x: remat.scan(step, x, length=9, slots=2, check=check)[0], x)
    pull(x)
    wrong.calls = 1
    if check == "always":
        with pytest.raises(remat.DeterminismError):
            pull(x)
    else:
        pull(x)


@where_python_runs_each_step
def test_a_loop_whose_tapes_all_fit_is_compared_when_it_is_pulled_back_again(framework):
    """Nothing is recomputed the first time, so that nothing could be compared."""
    counter = Counter()

    def step(x, _):
        counter.calls += 1
        return framework.np.tanh(x) * (1 + 0.1 * counter.calls), None

    x, plan = framework.array([0.3, 0.4]), remat.plan(remat.Loop(6), memory=12)
    assert plan.forward_steps == 6
    pull = framework.vjp(lambda x: remat.scan(step, x, length=6, plan=plan)[0], x)
    pull(x)
    with pytest.raises(remat.DeterminismError, match="after step 5"):
        pull(x)


@where_python_runs_each_step
def test_long_loops_are_compared_in_some_places_only(framework):
    counter = Counter()

    def step(x, _):
        counter.calls += 1
        return x + (counter.calls > 10_000), None

    with pytest.raises(remat.DeterminismError):
        gradient(framework, step, steps=9_000, slots=200)


@where_python_runs_each_step
@pytest.mark.parametrize("filler", [numpy.nan, numpy.inf, -numpy.inf])
def test_numbers_that_are_not_finite_hide_no_change_beside_them(framework, filler):
    counter = Counter()

    def step(h, _):
        counter.calls += 1
        return framework.np.concatenate([h[:1] * counter.calls, framework.array([filler, filler])]), None

    with numpy.errstate(all="ignore"), pytest.raises(remat.DeterminismError):
        framework.gradient(
            lambda w: remat.scan(step, framework.array([1e3, 0.0, 0.0]) * w, length=5, slots=2)[0][0],
            framework.array(1.0),
        )


@where_python_runs_each_step
def test_changes_of_numbers_that_are_too_large_to_be_summed_up(framework):
    counter = Counter()

    def step(h, _):
        counter.calls += 1
        return h * framework.array(1 + 0.01 * counter.calls, "float32"), None

    with numpy.errstate(all="ignore"), pytest.raises(remat.DeterminismError):
        gradient(framework, step, numpy.full(100, 1e37), steps=5, dtype="float32")


@where_python_runs_each_step
@pytest.mark.parametrize(("planner", "slots"), [("binomial", 5), ("chunks", 4), ("save-points", 3)])
def test_outputs_are_compared_inside_of_recorded_ranges(framework, planner, slots):
    plan = remat.plan(remat.Loop(100), slots=slots, planner=planner)
    counter = Counter()

    def step(h, i):
        counter.calls += 1
        h = framework.np.sin(0.9 * h) + 0.5
        return h, h * (counter.calls if int(i) % 25 == 7 else 1.0)

    def loss(h):
        return framework.np.sum(remat.scan(step, h, framework.array(numpy.arange(100), "int64"), plan=plan)[1])

    with pytest.raises(remat.DeterminismError, match=r"y .* after step \d+"):
        framework.gradient(loss, framework.array(1.0))


# What raises no alarm.


def test_carries_that_are_not_finite_are_no_reason_to_complain(framework):
    with numpy.errstate(all="ignore"):
        found = gradient(framework, lambda x, _: (x * 1e30, None), 1.0, steps=30)
    assert found == numpy.inf


@pytest.mark.parametrize("how", [{"memory": "1 MiB", "slots": None}, {"slots": 5}], ids=str)
def test_chaos_is_no_reason_to_complain(framework, how):
    assert numpy.isfinite(gradient(framework, lambda x, _: (4 * x - 4 * x**2, None), steps=300, **how))


@pytest.mark.parametrize("length", [1, 5, 40, 69, 100])
def test_chaos_over_recorded_ranges_of_any_length_is_no_reason_to_complain(framework, length):
    plan = remat.plan(remat.Loop(300), slots=9, planner=Chunks(length))
    step = lambda x, _: (4 * x - 4 * x**2, None)  # noqa: E731
    assert numpy.isfinite(gradient(framework, step, steps=300, slots=None, plan=plan))


def test_chaos_of_a_captured_parameter_is_no_reason_to_complain(framework):
    """Steps that are recorded may round otherwise than others: carries must come out the same again."""
    start = framework.array(0.3)

    def loss(a):
        return remat.scan(lambda x, _: (a * x - a * x**2, None), start, length=200, slots=4)[0]

    assert numpy.isfinite(framework.gradient(loss, framework.array(3.999))[0])


@where_python_runs_each_step
def test_a_step_is_told_when_it_runs_again(framework):
    log = Log()

    def step(x, _):
        log.add(remat.is_recomputing())
        return framework.np.sin(x), None

    gradient(framework, step, slots=3)
    told = log.entries
    assert told[:20] == (False,) * 20
    assert all(told[20:])
    assert len(told) == remat.plan(remat.Loop(20), slots=3).forward_steps
    assert not remat.is_recomputing()


# Random numbers.


def seed(value):
    random.seed(value)
    numpy.random.seed(value)
    torch = pytest.importorskip("torch")
    torch.manual_seed(value)


def drawn():
    """The next numbers of the global generators."""
    import torch

    return (
        random.random(),
        random.gauss(0, 1),
        numpy.random.randn(),
        numpy.random.rand(),
        float(torch.rand((), dtype=torch.float64)),
    )


@pytest.mark.parametrize(
    ("framework", "kind"),
    [(FRAMEWORKS[name], kind) for name in FRAMEWORKS for kind in FRAMEWORKS[name].generators],
    indirect=["framework"],
    ids=[f"{name}-{kind}" for name in FRAMEWORKS for kind in FRAMEWORKS[name].generators],
)
@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 4}, {"memory": "256 KiB"}], ids=str)
def test_random_numbers_are_replayed_and_the_streams_go_on_as_in_the_plain_loop(framework, kind, how):
    args = random_array(framework, 0, 4, 4), random_array(framework, 1, 2, 4), random_array(framework, 2, 12, 2, 4)

    def run(loop, **how):
        seed(7)
        draw = framework.generators[kind]()

        def step(w, h, x):
            noise = draw()
            return framework.np.tanh(framework.np.dot(h, w) + x) + 0.3 * noise, noise * h

        value, found = framework.value_and_gradient(scan_loss(framework, step, loop, **how), *args)
        return [value, *found, framework.to_numpy(draw()), numpy.array(drawn())]

    assert_same(run(remat.scan, **how), run(framework.plain_scan), 0.0 if framework.name == "torch" else 1e-13)


@where_python_runs_each_step
def test_draws_that_begin_late_are_replayed(framework):
    def loss(loop, x, **how):
        def step(x, i):
            return framework.np.tanh(x + (random.random() if i > 12 else 0.0)), None

        return loop(step, x, framework.array(numpy.arange(20), "int64"), **how)[0]

    seed(1)
    expected = framework.gradient(lambda x: loss(framework.plain_scan, x), framework.array(0.3))
    seed(1)
    assert_same(framework.gradient(lambda x: loss(remat.scan, x, slots=3), framework.array(0.3)), expected)


@where_python_runs_each_step
def test_a_cached_gaussian_is_replayed(framework):
    xs = framework.array(numpy.linspace(0.1, 1, 8))

    def loss(loop, w, **how):
        def step(h, x):
            return framework.np.tanh(h * x + (float(numpy.random.randn()) if x < 0.15 else 0.0)), None

        return loop(step, w, xs, **how)[0]

    found = []
    for loop, how in ((framework.plain_scan, {}), (remat.scan, {"slots": 3})):
        numpy.random.seed(0)
        numpy.random.randn()
        found.append(framework.gradient(lambda w, loop=loop, how=how: loss(loop, w, **how), framework.array(0.3)))
    assert_same(*found)


@where_python_runs_each_step
def test_a_second_reverse_sweep_draws_the_same_and_touches_no_stream(framework):
    def step(x, _):
        return x * float(numpy.random.rand()) + framework.np.sin(x), None

    x = framework.array([0.1, 0.2, 0.3])
    seed(3)
    expected = framework.to_numpy(framework.jacobian(lambda x: framework.plain_scan(step, x, length=9)[0], x))
    seed(3)
    pull = framework.vjp(lambda x: remat.scan(step, x, length=9, slots=2)[0], x)
    before, state = drawn(), random.getstate()
    for _ in range(2):
        rows = [framework.to_numpy(pull(framework.array(row))) for row in numpy.eye(3)]
        numpy.testing.assert_allclose(numpy.stack(rows), expected, rtol=1e-12)
    assert random.getstate() == state
    seed(3)
    framework.plain_scan(step, x, length=9)
    assert drawn() == before


@where_python_runs_each_step
def test_a_private_generator_that_is_hidden_is_an_error_that_says_what_to_do(framework):
    draw = (lambda made: lambda: next(made))(iter(numpy.random.default_rng().normal(size=1000).tolist()))
    with pytest.raises(remat.DeterminismError, match="pass it in xs"):
        gradient(framework, lambda x, _: (framework.np.tanh(x + 0.1 * draw()), None))


@on_jax
def test_keys_give_the_same_numbers_again(framework):
    """Keys in the carry, in the inputs and in the closure."""
    import jax

    keys = jax.random.split(jax.random.key(3), 12)

    def loss(loop, w, **how):
        def step(carry, x):
            key, h = carry
            key, own = jax.random.split(key)
            used = own, x["key"], jax.random.fold_in(keys[0], x["i"])
            noise = sum(jax.random.uniform(key, h.shape) for key in used)
            return (key, framework.np.tanh(h * w + 0.3 * noise)), noise * h

        xs = {"key": keys, "i": framework.np.arange(12)}
        (_, h), ys = loop(step, (keys[0], framework.array([0.1, 0.2])), xs, **how)
        return framework.weigh((h, ys))

    w = framework.array([0.9, 1.1])
    expected = framework.value_and_gradient(lambda w: loss(framework.plain_scan, w), w, compiled=True)
    found = framework.value_and_gradient(lambda w: loss(remat.scan, w, slots=3), w)
    assert_same([found[0], *found[1]], [expected[0], *expected[1]])

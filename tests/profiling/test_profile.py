"""The profiler: every call in its block and no other, with what was planned and what was done."""

import asyncio
import threading

import autograd.numpy as np
import numpy
import pytest
from autograd import grad
from tests.frameworks.conformance.adapter import Counter

import remat
from remat.profiling import profiler


def slope(x=0.3, length=10, slots=3):
    return grad(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=length, slots=slots)[0])(x)


def test_planned_and_measured_steps_bytes_and_seconds():
    with remat.profile() as run:
        slope()
    (call,) = run.calls
    assert (call.what, call.framework, call.steps, call.status) == ("scan", "numpy", 10, "done")
    assert call.plan.forward_steps == call.trace.forward_steps == 25
    assert call.trace.peak > 0
    assert call.trace.complete
    assert call.total_seconds >= call.trace.seconds > 0
    assert call.site.function == "<lambda>"
    assert call.site.file == call.step.file == __file__


def test_every_kind_of_call_is_recorded():
    from remat import ag_tuple

    with remat.profile() as run:
        slope()
        remat.scan(lambda x, _: (x + 1, None), 0.0, length=7, slots=2)
        grad(lambda x: remat.while_loop(lambda x: x > 1.0, lambda x: x / 2.0, x, slots=3))(100.0)
        remat.while_loop(lambda x: x > 1.0, lambda x: x / 2.0, 100.0, slots=3)
        grad(lambda x: remat.checkpointed_loop(np.sin, x, 9, 3)[0])(0.5)
        loop = remat.binomial_checkpoint(lambda p, s, x: (ag_tuple(()), np.tanh(p * s[1] + x)), 5, 2)
        grad(lambda p: np.sum(loop(p, (ag_tuple(()), numpy.zeros(2)), numpy.ones((5, 2)))))(0.5)
    assert [call.what for call in run.calls] == [
        *("scan", "scan", "while_loop", "while_loop", "checkpointed_loop", "binomial_checkpoint"),
    ]
    assert [call.steps for call in run.calls] == [10, 7, 7, 7, 9, 5]
    assert [call.status for call in run.calls] == ["done", "no gradient", "done", "no gradient", "done", "done"]
    assert run.calls[2].trace.forward_steps == run.calls[2].plan.forward_steps
    assert run.calls[1].trace is None


def test_outputs_that_hold_kept_states_are_no_part_of_a_tape():
    """The first states of `binomial_checkpoint` are rows of its outputs, whose whole array a tape's row refers to."""
    loop = remat.binomial_checkpoint(lambda p, s, x: (remat.legacy.ag_tuple(()), np.tanh(p * s[1] + x)), 100, 5)
    with remat.profile() as run:
        grad(lambda p: np.sum(loop(p, (remat.legacy.ag_tuple(()), numpy.zeros(1000)), numpy.ones(100))))(0.5)
    assert run.calls[0].trace.peak < 20 * 8000  # of 101 states


def test_nothing_is_recorded_outside_and_nothing_is_measured_then(monkeypatch):
    with remat.profile() as run:
        pass

    def never(*args, **kwargs):
        raise AssertionError("a recorder was made though nobody profiles")

    monkeypatch.setattr("remat.profiling.call_record.TraceRecorder", never)
    slope()
    assert len(run) == 0
    assert str(run) == "no remat calls were made"


def test_profiles_nest():
    with remat.profile() as outer:
        slope()
        with remat.profile() as inner:
            slope()
        slope()
    assert (len(outer), len(inner)) == (3, 1)
    assert inner.calls[0] is outer.calls[1]


def test_a_profile_of_the_main_thread_hears_the_others():
    with remat.profile() as run:
        threads = [threading.Thread(target=lambda: [slope() for _ in range(5)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(run) == 20
    assert all(call.status == "done" and call.trace.forward_steps == 25 for call in run.calls)


def test_a_profile_of_another_thread_hears_its_own():
    found = {}
    ready = threading.Barrier(3)

    def work(name, count):
        with remat.profile() as run:
            ready.wait()
            for _ in range(count):
                slope()
            ready.wait()
        found[name] = len(run)

    threads = [threading.Thread(target=work, args=(name, name)) for name in (1, 2, 3)]
    with remat.profile() as run:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {1: 1, 2: 2, 3: 3}
    assert len(run) == 6


def test_tasks_hear_their_own():
    async def work(count):
        with remat.profile() as run:
            for _ in range(count):
                slope()
                await asyncio.sleep(0)
        return len(run)

    async def both():
        return await asyncio.gather(work(2), work(3))

    found = []
    thread = threading.Thread(target=lambda: found.extend(asyncio.run(both())))  # a browser's driver may hold this one
    thread.start()
    thread.join()
    assert found == [2, 3]


def test_what_is_reversed_after_the_block_is_still_recorded():
    from autograd import make_vjp

    with remat.profile() as run:
        vjp, _ = make_vjp(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=10, slots=3)[0])(0.3)
    assert run.calls[0].status == "forward only"
    assert not run.calls[0].trace.complete
    vjp(1.0)
    assert run.calls[0].status == "done"
    vjp(1.0)
    assert len(run.calls[0].runs) == 2


def test_an_interrupted_run_is_reported(tmp_path):
    counter = Counter()

    def step(x, _):
        counter.calls += 1
        if counter.calls == 40:
            raise KeyboardInterrupt
        return np.sin(x), None

    with pytest.raises(KeyboardInterrupt), remat.profile() as run:
        grad(lambda x: remat.scan(step, x, length=30, slots=4)[0])(0.3)
    (call,) = run.calls
    assert call.status == "stopped by KeyboardInterrupt"
    assert 0 < call.trace.totals.ops < len(call.plan.schedule.ops())
    assert "stopped by KeyboardInterrupt" in str(run)
    text = run.report(tmp_path / "partial.txt").read_text()
    assert "not complete" in text
    assert "What is the peak?" in text
    run.report(tmp_path / "partial.html")
    run.save(tmp_path / "partial.json")
    assert remat.Profile.load(tmp_path / "partial.json").calls[0].status == call.status


def test_the_table_is_by_call_site_and_80_columns_wide():
    with remat.profile() as run:
        for _ in range(3):
            slope()
        grad(lambda x: remat.while_loop(lambda x: x > 1.0, lambda x: x / 2.0, x, slots=3))(100.0)
    text = str(run)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "scan at test_profile.py" in text
    assert "75" in text
    assert "while_loop" in text
    assert "optimal" in text


def test_events_are_held_for_a_few_calls_of_a_site_and_totals_for_all(monkeypatch):
    monkeypatch.setattr(profiler, "MOST_TRACES", 2)
    with remat.profile() as run:
        for _ in range(5):
            slope()
    assert [len(list(call.trace)) > 0 for call in run.calls] == [True, True, False, False, False]
    assert {call.trace.forward_steps for call in run.calls} == {25}


def test_a_profile_is_saved_and_loaded(tmp_path):
    with remat.profile() as run:
        slope()
        remat.scan(lambda x, _: (x + 1, None), 0.0, length=7, slots=2)
    run.save(tmp_path / "run.json")
    loaded = remat.Profile.load(tmp_path / "run.json")
    assert str(loaded) == str(run)
    assert [e.op for e in loaded.calls[0].trace] == [e.op for e in run.calls[0].trace]
    assert loaded.to_dict() == run.to_dict()
    assert loaded.report(tmp_path / "a.txt").read_text() == run.report(tmp_path / "b.txt").read_text()


def test_the_allocator_is_asked_if_that_is_wanted():
    import tracemalloc

    w = numpy.random.default_rng(0).normal(size=(48, 48)) / 7

    def loss(w):
        zeros = numpy.ones((64, 48))
        step = lambda h, _: (np.tanh(np.dot(h, w)), None)  # noqa: E731
        return np.sum(remat.scan(step, zeros, length=200, memory="4 MiB")[0])

    with remat.profile(memory=True) as run:
        grad(loss)(w)
    assert not tracemalloc.is_tracing()
    trace = run.calls[0].trace
    assert trace.totals.allocated == max(event.allocated for event in trace)
    assert trace.totals.allocated <= 4 * 2**20 + 3 * w.nbytes
    assert trace.always["parameters and what else is captured"] >= w.nbytes
    assert run.calls[0].plan.simulate().peak == pytest.approx(trace.peak, rel=0.05)
    assert trace.peak == pytest.approx(trace.totals.allocated, rel=0.2)
    with remat.profile() as run:
        grad(loss)(w)
    assert run.calls[0].trace.totals.allocated is None


def test_a_call_site_is_the_line_of_the_user_also_in_a_step():
    def inner(x, _):
        return remat.scan(lambda x, _: (np.sin(x), None), x, length=3, slots=2)[0], None

    with remat.profile() as run:
        grad(lambda x: remat.scan(inner, x, length=4, slots=2)[0])(0.3)
    names = {call.site.function for call in run.calls}
    assert names == {"<lambda>", "inner"}


def test_an_op_that_is_cut_off_is_part_of_the_trace(tmp_path):
    """A loop that is recorded as one range, and interrupted in its middle."""
    from remat.planners import SavePoints

    count, w = [0], numpy.eye(20) / 2

    def step(h, _):
        count[0] += 1
        if count[0] == 31:
            raise KeyboardInterrupt
        return np.tanh(np.dot(h, w)), None

    plan = remat.plan(remat.Loop(100), slots=0, planner=SavePoints(()))
    with pytest.raises(KeyboardInterrupt), remat.profile() as run:
        grad(lambda h: np.sum(remat.scan(step, h, length=100, plan=plan)[0]))(numpy.ones((50, 20)))
    trace = run.calls[0].trace
    assert [event.op for event in trace] == [remat.Record(0, 30)]
    assert trace.peak > 30 * 50 * 20 * 8
    assert trace.seconds > 0
    assert trace.at_peak[0][0] == "tape 0..29"
    page = run.report(tmp_path / "cut.html").read_text()
    assert "The run is not complete: stopped by KeyboardInterrupt after 1 op." in page
    assert "30 steps had run of 100" in page
    assert "Predicted and measured" not in page  # half an op is not what was predicted


def test_a_device_of_another_name_is_weighed_too():
    slopes, peaks = [], []
    for name in ("ram", "gpu"):
        plan = remat.plan(remat.Loop(20), remat.Memory(levels=[remat.Level(name, slots=3)]))
        with remat.profile() as run:
            slopes.append(
                grad(lambda x, plan=plan: remat.scan(lambda x, _: (np.sin(x), None), x, plan=plan, length=20)[0])(0.3)
            )
        peaks.append(run.calls[0].trace.peak)
        assert run.calls[0].trace.device == name
    assert slopes[0] == slopes[1]
    assert peaks[0] == peaks[1]


def test_many_kept_states_are_profiled_in_time_that_grows_with_their_number(monkeypatch):
    from remat.schedule.machine import Machine

    made, holders = [0], Machine.holders

    def counted(self):
        made[0] += 1
        return holders(self)

    monkeypatch.setattr(Machine, "holders", counted)
    with remat.profile() as run:
        slope(length=300, slots=300)
    assert made[0] == 0  # they are found when somebody asks
    assert len(run.calls[0].trace.at_peak) > 250
    assert made[0] == 1


def test_saving_keeps_the_numbers_of_all_runs(tmp_path, monkeypatch):
    from autograd import make_vjp

    monkeypatch.setattr(profiler, "MOST_TRACES", 2)
    with remat.profile() as run:
        for _ in range(4):
            slope()
        vjp, _ = make_vjp(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=10, slots=3)[0])(0.3)
        for _ in range(3):
            vjp(1.0)
    run.save(tmp_path / "run.json")
    loaded = remat.Profile.load(tmp_path / "run.json")
    assert str(loaded) == str(run)
    assert sum(place.steps for place in loaded.places()) == 7 * 25
    with pytest.raises(remat.ReportError, match="not stored"):
        remat.report(run.calls[3], tmp_path / "x.html")


def test_the_allocator_is_left_alone_after_the_block():
    import tracemalloc

    from autograd import make_vjp

    with remat.profile(memory=True) as run:
        vjp, _ = make_vjp(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=10, slots=3)[0])(0.3)
    assert not tracemalloc.is_tracing()
    vjp(1.0)
    vjp(1.0)
    assert not tracemalloc.is_tracing()
    assert len(list(run.calls[0].trace)) > 10


def test_blocks_may_end_in_any_order():
    def opened():
        with remat.profile() as run:
            yield run

    first, second = opened(), opened()
    one, two = next(first), next(second)
    slope()
    first.close()
    slope()
    second.close()
    slope()
    assert (len(one), len(two)) == (1, 2)


def test_the_allocator_is_asked_before_values_are_weighed():
    import gc
    import tracemalloc

    w = numpy.random.default_rng(0).normal(size=(32, 32)) / 6

    def loss(w):
        step = lambda h, _: (np.tanh(np.dot(np.sin(h), w)), None)  # noqa: E731
        return np.sum(remat.scan(step, numpy.ones((16, 32)), length=200, memory="2 MiB")[0])

    grad(loss)(w)
    gc.collect()
    tracemalloc.start()
    grad(loss)(w)
    plain = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    with remat.profile(memory=True) as run:
        grad(loss)(w)
    # Asked at the ends of ops, the allocator does not tell the peak inside of a pullback: some percent less.
    assert run.calls[0].trace.totals.allocated == pytest.approx(plain, rel=0.08)


def test_a_block_that_ends_in_another_thread_is_closed():
    def opened():
        with remat.profile() as run:
            yield run

    block = opened()
    run = next(block)
    thread = threading.Thread(target=block.close)
    thread.start()
    thread.join()
    slope()
    assert len(run) == 0


def test_planned_and_run_are_counted_alike():
    def inner(x, _):
        return remat.scan(lambda x, _: (np.sin(x), None), x, length=3, slots=2)[0], None

    with remat.profile() as run:
        grad(lambda x: remat.scan(inner, x, length=4, slots=2)[0])(0.3)
        grad(grad(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=9, slots=2)[0]))(0.3)
    for place in run.places():
        assert place.planned == place.steps


def test_a_budget_in_a_level_of_another_name_is_the_same_with_a_profile():
    memory = remat.Memory(levels=[remat.Level("hbm", capacity=300_000)])

    def loss(x):
        return np.sum(remat.scan(lambda h, _: (np.tanh(1.1 * h + 0.1), None), x, length=100, memory=memory)[0])

    plain = grad(loss)(numpy.full(1000, 0.3))
    with remat.profile() as run:
        profiled = grad(loss)(numpy.full(1000, 0.3))
    assert numpy.array_equal(plain, profiled)
    assert run.calls[0].trace.complete

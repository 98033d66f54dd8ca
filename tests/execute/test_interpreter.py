"""The interpreter alone, with a backend of Python numbers: no framework is needed to run a schedule."""

import math
import weakref

import numpy as np
import pytest
from hypothesis import given, settings

import remat
from remat.execute import Interpreter
from remat.execute.determinism import DeterminismCheck
from remat.execute.state_store import RamStore
from remat.profiling import CallRecord
from remat.profiling.source_location import SourceLocation
from remat.testing import loops, memories

ALIVE = weakref.WeakSet()


class Number:
    """A state that can be referred to weakly."""

    def __init__(self, value):
        self.value = value
        ALIVE.add(self)


class Numbers:
    """x → sin x, with the adjoint by hand."""

    def __init__(self):
        self.evaluations, self.most = 0, 0

    def _step(self, state):
        self.evaluations += 1
        after = Number(math.sin(state.value))
        self.most = max(self.most, len(ALIVE))
        return after

    def advance(self, state, start, stop):
        for _ in range(start, stop):
            state = self._step(state)
        return state

    def record(self, state, start, stop):
        tape = []
        for _ in range(start, stop):
            tape.append(state.value)
            state = self._step(state)
        return state, tape

    def pull_back(self, tape, cotangent):
        for x in reversed(tape):
            cotangent *= math.cos(x)
        return cotangent

    def copy(self, state):
        return Number(state.value)

    def seal(self, state):
        return None

    def size(self, value):
        return 8 * len(value) if isinstance(value, list) else 8

    replayable_states = ()

    def persistent_bytes(self, gradients):
        return {}

    def failed_at(self):
        return 0, 0

    def meter(self):
        return None

    def fingerprint(self, state):
        return [state.value]

    def mismatch(self, state, fingerprint, *, recorded):
        return None if state.value == fingerprint[0] else "state had other values"

    def recorded_at_first(self, start, stop):
        return 0


def run_through(schedule, units, determinism=None, **options):
    backend = Numbers()
    run = Interpreter(backend, Number(1.0), units, determinism=determinism, **options)
    assert run.play(schedule)
    result = run.state.value
    return result, run.reverse(1.0), backend


def recorded(schedule, units, backend=None, call=None, restartable=False):
    backend, call = backend or Numbers(), call or CallRecord("test", SourceLocation("", 0, ""))
    state = Number(1.0)
    recorder = call.recorder(backend, state, restartable=restartable)
    run = Interpreter(backend, state, units, observer=recorder, restartable=restartable)
    del recorder
    del state
    run.play(schedule)
    run.reverse(1.0)
    return call


def expected(units):
    x, slope = 1.0, 1.0
    for _ in range(units):
        x, slope = math.sin(x), slope * math.cos(x)
    return x, slope


@given(loops(most_steps=40), memories(most_levels=1))
@settings(max_examples=80, deadline=None)
def test_any_plan_in_one_level_gives_the_derivative_with_the_steps_it_says(loop, memory):
    try:
        plan = remat.plan(loop, memory)
    except remat.InfeasibleError:
        return
    check = DeterminismCheck(loop.units)
    result, slope, backend = run_through(plan.schedule, loop.units, check, restartable=loop.restartable)
    x, by_hand = expected(loop.units)
    assert result == x
    assert slope == pytest.approx(by_hand, rel=1e-12, abs=1e-300)
    assert backend.evaluations == plan.forward_steps


def test_levels_are_kept_apart():
    memory = remat.Memory(levels=[remat.Level("ram", slots=2), remat.Level("disk", slots=3, read=1, write=1)])
    plan = remat.plan(remat.Loop(30), memory)
    result, slope, backend = run_through(plan.schedule, 30)
    assert (result, slope) == pytest.approx(expected(30))
    assert backend.evaluations == plan.forward_steps


RESTARTING = remat.Loop(20, state=8, tape=16, restartable=True)


def test_states_are_fetched_from_tapes_that_hold_them():
    plan = remat.plan(RESTARTING, slots=3, planner="mixed")
    assert any(isinstance(op, remat.Fetch) and op.level == "tape" for op in plan.schedule)
    result, slope, backend = run_through(plan.schedule, 20, DeterminismCheck(20), restartable=True)
    assert (result, slope) == pytest.approx(expected(20), rel=1e-12)
    assert backend.evaluations == plan.forward_steps


def test_a_tape_that_holds_its_output_is_as_large_as_both():
    plan = remat.plan(RESTARTING, slots=3, planner="mixed")
    trace, simulated = recorded(plan.schedule, 20, restartable=True).trace, plan.simulate()
    assert [(e.op, e.live) for e in trace] == [(e.op, e.live) for e in simulated]
    assert trace.at_peak == simulated.at_peak


def test_what_tapes_held_is_free_in_the_end():
    ALIVE.clear()
    run_through(remat.plan(RESTARTING, slots=3, planner="mixed").schedule, 20, restartable=True)
    assert not ALIVE


def test_tapes_that_hold_no_outputs_are_not_fetched_from():
    plan = remat.plan(RESTARTING, slots=3, planner="mixed")
    with pytest.raises(remat.IllegalError, match=r"not legal at 'fetch \d+ tape', rule R4 .*restartable is False"):
        run_through(plan.schedule, 20)


class CountingStore(RamStore):
    """A store that counts what is put, fetched and dropped."""

    def __init__(self):
        super().__init__()
        self.puts = self.gets = self.drops = 0

    def put(self, number, state):
        self.puts += 1
        super().put(number, state)

    def get(self, number):
        self.gets += 1
        return super().get(number)

    def drop(self, number):
        self.drops += 1
        super().drop(number)


def test_every_level_has_its_store():
    memory = remat.Memory(levels=[remat.Level("ram", slots=2), remat.Level("disk", slots=3, read=1, write=1)])
    plan, stores = remat.plan(remat.Loop(30), memory), {"ram": CountingStore(), "disk": CountingStore()}
    _, slope, _ = run_through(plan.schedule, 30, stores=stores)
    assert slope == pytest.approx(expected(30)[1])
    simulated = plan.simulate()
    for level, store in stores.items():
        assert store.puts == store.drops == simulated.keeps[level] > 0
        assert store.gets == simulated.fetches[level]


def test_a_level_without_a_store_keeps_its_states_in_ram():
    memory = remat.Memory(levels=[remat.Level("ram", slots=2), remat.Level("disk", slots=3, read=1, write=1)])
    disk = CountingStore()
    _, slope, _ = run_through(remat.plan(remat.Loop(30), memory).schedule, 30, stores={"disk": disk})
    assert slope == pytest.approx(expected(30)[1])
    assert disk.puts == disk.drops > 0


@pytest.mark.parametrize(
    ("text", "rule"),
    [("advance 1 2", "R2"), ("record 0 1; advance 0 1", "R2"), ("fetch 0 ram", "R4"), ("keep 0 ram; keep 0 ram", "R3")],
)
def test_an_illegal_op_is_not_run_and_the_rule_is_named(text, rule):
    with pytest.raises(remat.IllegalError, match=f"rule {rule} "):
        run_through(remat.Schedule.parse(text), 2)


def test_a_schedule_that_ends_too_early_is_an_error():
    backend = Numbers()
    run = Interpreter(backend, Number(1.0), 2)
    assert run.play(remat.Schedule.parse("keep 0 ram; advance 0 1; record 1 2; turn; pullback 2 1"))
    with pytest.raises(remat.IllegalError, match=r"units 0..0 are not pulled back"):
        run.reverse(1.0)


@pytest.mark.parametrize("slots", [1, 2, 5, 9])
def test_what_is_dropped_is_free(slots):
    ALIVE.clear()
    _, _, backend = run_through(remat.plan(remat.Loop(100), slots=slots).schedule, 100)
    assert backend.most <= slots + 2  # and a step's input and output
    assert not ALIVE


def test_the_trace_is_that_of_the_simulation():
    plan = remat.plan(remat.Loop(20, state=8, tape=8), slots=3)
    trace = recorded(plan.schedule, 20).trace
    simulated = plan.simulate()
    assert [(e.op, e.live) for e in trace] == [(e.op, e.live) for e in simulated]
    assert trace.peak == simulated.peak
    assert trace.at_peak == simulated.at_peak
    assert (trace.keeps, trace.totals.written, trace.totals.read) == (
        simulated.keeps,
        simulated.totals.written,
        simulated.totals.read,
    )
    assert trace.complete
    assert trace.measured
    assert trace.recomputed == plan.recomputed


def test_a_run_that_is_interrupted_leaves_a_trace_of_what_was_done():
    class Interrupted(Numbers):
        def record(self, state, start, stop):
            if self.evaluations > 15:
                raise KeyboardInterrupt
            return super().record(state, start, stop)

    plan = remat.plan(remat.Loop(10), slots=3)
    call = CallRecord("test", SourceLocation("", 0, ""))
    with pytest.raises(KeyboardInterrupt):
        recorded(plan.schedule, 10, Interrupted(), call)
    trace = call.trace
    assert not trace.complete
    assert call.status == "stopped by KeyboardInterrupt"
    ops = [event.op for event in trace]
    assert tuple(ops) == plan.schedule.ops()[: len(ops)]
    assert 0 < len(ops) < len(plan.schedule.ops())
    assert trace.recomputed == trace.forward_steps - 10
    assert "early" in str(trace)


def test_a_loop_of_a_million_steps_needs_no_recursion():
    class Count(Numbers):
        def advance(self, state, start, stop):
            self.evaluations += stop - start
            return Number(state.value)

        def record(self, state, start, stop):
            self.evaluations += stop - start
            return Number(state.value), []

    backend, plan = Count(), remat.plan(remat.Loop(20_000), slots=3)
    run = Interpreter(backend, Number(1.0), 20_000)
    run.play(plan.schedule)
    run.reverse(1.0)
    assert backend.evaluations == plan.forward_steps


def test_the_determinism_check_thins_out_what_it_records_of_a_loop_of_unknown_length():
    determinism, backend = DeterminismCheck(None), Numbers()
    for position in range(1, 100_001):
        determinism.record(position, backend, Number(float(position)))
    assert len(determinism._numbers) <= 2 * 1024
    assert determinism.stride == 64
    determinism.compare(64 * 1234, backend, Number(64.0 * 1234), recorded=0)
    with pytest.raises(remat.DeterminismError):
        determinism.compare(64 * 1234, backend, Number(5.0), recorded=0)


def test_what_is_no_op_is_an_error_that_says_so():
    with pytest.raises(remat.IllegalError, match="None is not an op of a schedule"):
        run_through([None], 1)


def test_numbers_of_numpy_are_numbers_of_units():
    ops = [remat.ops.Record(np.int64(0), np.int64(2)), remat.ops.Turn(), remat.ops.Pullback(np.int64(2), np.int64(0))]
    assert run_through(ops, 2)[1] == pytest.approx(expected(2)[1])
    assert remat.verify(ops, remat.Loop(2), remat.Memory(slots=0))
    assert not remat.verify([remat.ops.Record(False, True)], remat.Loop(1), remat.Memory(slots=0))

"""The interpreter alone, with verbs of Python numbers: no framework is needed to run a schedule."""

import math
import weakref

import pytest
from hypothesis import given, settings

import remat
from remat.execute import Call, Run
from remat.execute.guard import Guard
from remat.execute.sites import Site
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

    def size(self, value):
        return 8 * len(value) if isinstance(value, list) else 8

    sources = ()

    def always(self):
        return {}

    def partly(self):
        return 0, 0

    def meter(self):
        return None

    def summary(self, state):
        return [state.value]

    def differ(self, state, summary, *, recorded):
        return None if state.value == summary[0] else "state was another one"


def run_through(schedule, units, guard=None):
    verbs = Numbers()
    run = Run(verbs, Number(1.0), units, guard=guard)
    assert run.play(schedule)
    result = run.state.value
    return result, run.reverse(1.0), verbs


def recorded(schedule, units, verbs=None, call=None):
    verbs, call = verbs or Numbers(), call or Call("test", Site("", 0, ""))
    state = Number(1.0)
    run = Run(verbs, state, units, recorder=call.recorder(verbs, state))
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
    loop = remat.Loop(**{**loop.to_dict(), "restartable": False})
    try:
        plan = remat.plan(loop, memory)
    except remat.InfeasibleError:
        return
    result, slope, verbs = run_through(plan.schedule, loop.units, Guard(loop.units))
    x, by_hand = expected(loop.units)
    assert result == x
    assert slope == pytest.approx(by_hand, rel=1e-12, abs=1e-300)
    assert verbs.evaluations == plan.forward_steps


def test_levels_are_kept_apart():
    memory = remat.Memory(levels=[remat.Level("ram", slots=2), remat.Level("disk", slots=3, read=1, write=1)])
    plan = remat.plan(remat.Loop(30), memory)
    result, slope, verbs = run_through(plan.schedule, 30)
    assert (result, slope) == pytest.approx(expected(30))
    assert verbs.evaluations == plan.forward_steps


@pytest.mark.parametrize("slots", [1, 2, 5, 9])
def test_what_is_dropped_is_free(slots):
    ALIVE.clear()
    _, _, verbs = run_through(remat.plan(remat.Loop(100), slots=slots).schedule, 100)
    assert verbs.most <= slots + 2  # and a step's input and output
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
    call = Call("test", Site("", 0, ""))
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

    verbs, plan = Count(), remat.plan(remat.Loop(20_000), slots=3)
    run = Run(verbs, Number(1.0), 20_000)
    run.play(plan.schedule)
    run.reverse(1.0)
    assert verbs.evaluations == plan.forward_steps


def test_the_guard_thins_out_what_it_notes_of_a_loop_of_unknown_length():
    guard, verbs = Guard(None), Numbers()
    for position in range(1, 100_001):
        guard.note(position, verbs, Number(float(position)))
    assert len(guard._numbers) <= 2 * 1024
    assert guard.stride == 64
    guard.compare(64 * 1234, verbs, Number(64.0 * 1234), recorded=0)
    with pytest.raises(remat.DeterminismError):
        guard.compare(64 * 1234, verbs, Number(5.0), recorded=0)

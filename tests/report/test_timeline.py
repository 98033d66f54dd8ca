"""The timeline: plain numbers of any trace, without a browser."""

import autograd.numpy as np
import numpy
import pytest
from autograd import grad
from hypothesis import given

import remat
from remat.reporting import timeline as module
from remat.reporting.timeline import PHASES, Timeline
from remat.schedule import Keep
from remat.testing import loops, memories


def of(plan):
    return Timeline.of(plan.simulate())


@given(loops(most_steps=30), memories())
def test_it_agrees_with_the_trace(loop, memory):
    try:
        plan = remat.plan(loop, memory)
    except remat.InfeasibleError:
        return
    trace = plan.simulate()
    timeline = Timeline.of(trace)
    rows = timeline.rows
    events = list(trace)
    assert len(rows) == len(events)
    assert [rows.total(i) for i in range(len(rows))] == [event.live.total() for event in events]
    assert timeline.peak.size == trace.peak == sum(timeline.at_peak.values())
    assert timeline.peak.index == trace.totals.peak_index
    assert sum(timeline.seconds.values()) == pytest.approx(trace.seconds)
    assert sum(units for units in timeline.histogram.values()) == loop.units
    assert sum(times * units for times, units in timeline.histogram.items()) == trace.forward_steps
    assert len(timeline.kept) == sum(isinstance(event.op, Keep) for event in events)
    for level, column in rows.elsewhere.items():
        assert column == [event.live.total(level) for event in events]


@given(loops(most_steps=30), memories(most_levels=1))
def test_an_envelope_loses_no_peak_and_adds_none(loop, memory):
    try:
        timeline = of(remat.plan(loop, memory))
    except remat.InfeasibleError:
        return
    for bins in (1, 7, 100):
        assert max(map(sum, timeline.envelope(bins))) == timeline.peak.size
        assert len(timeline.doing(bins)) == bins


def test_phases_are_forward_recompute_backward():
    timeline = of(remat.plan(remat.Loop(10), slots=3))
    phases = [PHASES[phase] for phase in timeline.rows.phase]
    turn = timeline.turn
    assert "recompute" not in phases[:turn]
    assert "forward" not in phases[turn:]
    assert timeline.seconds == {"forward": 10.0, "recompute": 15.0, "backward": 20.0, "move": 0.0}


def test_the_tape_of_a_range_grows_and_falls():
    timeline = of(remat.plan(remat.Loop(100, state=1, tape=10), 2000))
    sizes = [sum(part) for part in timeline.envelope(30)]
    assert sizes[:10] == sorted(sizes[:10])
    assert sizes[11:] == sorted(sizes[11:], reverse=True)
    assert sizes[0] < max(sizes) / 5
    assert max(sizes) == 1002


def test_a_long_trace_is_put_together_in_groups_without_losing_its_peak(monkeypatch):
    monkeypatch.setattr(module, "MOST_EVENTS", 500)
    monkeypatch.setattr(module, "GROUPS", 100)
    monkeypatch.setattr(module, "MOST_KEPT", 20)
    memory = remat.Memory(levels=[remat.Level("ram", slots=4), remat.Level("disk", slots=9, read=1, write=1)])
    trace = remat.plan(remat.Loop(400), memory).simulate()
    timeline, events = Timeline.of(trace), list(trace)
    with monkeypatch.context() as whole:
        whole.setattr(module, "MOST_EVENTS", 10**6)
        phases = Timeline.of(trace).rows.phase
    assert timeline.group == -(-len(events) // 100)
    assert len(timeline.rows) <= 100
    rows = timeline.rows
    for row in range(len(rows)):
        group = events[row * timeline.group : (row + 1) * timeline.group]
        assert rows.total(row) == max(event.live.total() for event in group)
        assert rows.elsewhere["disk"][row] == max(event.live.total("disk") for event in group)
        assert rows.seconds[row] == pytest.approx(sum(event.seconds for event in group))
        assert rows.start[row] == pytest.approx(group[0].start)
        assert rows.index[row] in [event.index for event in group]
    found = dict.fromkeys(PHASES, 0.0)
    for row in range(len(rows)):
        found[PHASES[rows.phase[row]]] += rows.seconds[row]
    assert found["recompute"] > found["forward"]
    assert sum(found.values()) == pytest.approx(sum(timeline.seconds.values()))
    for row in range(len(rows)):  # a group does what takes most of its time
        shares = dict.fromkeys(range(4), 0.0)
        for event in events[row * timeline.group : (row + 1) * timeline.group]:
            shares[phases[event.index]] += event.seconds
        assert shares[rows.phase[row]] == max(shares.values())
    assert timeline.peak.size == trace.peak
    assert max(map(sum, timeline.envelope(10))) == trace.peak
    assert len(timeline.kept) == 20 < sum(trace.keeps.values())
    assert sum(times * units for times, units in timeline.histogram.items()) == trace.forward_steps


def test_a_loop_that_takes_no_time_is_drawn_by_ops():
    timeline = of(remat.plan(remat.Loop(10, forward=0, record=0, backward=0), slots=3))
    assert timeline.span == 0
    assert max(map(sum, timeline.envelope(9))) == timeline.peak.size


def test_nothing_at_all():
    timeline = of(remat.plan(remat.Loop(0), slots=3))
    assert timeline.histogram == {}
    assert len(timeline.rows) == 1  # the turn


@pytest.mark.parametrize("budget", [{"slots": 5}, {"memory": "2 MiB"}, {"memory": "8 MiB"}])
def test_a_measured_timeline_has_the_shape_of_the_simulated_one(budget):
    rng = numpy.random.default_rng(0)
    w, xs = rng.normal(size=(40, 40)) / 6, rng.normal(size=(80, 32, 40))

    def loss(w):
        def step(state, x):
            h, c = state
            c = c * np.tanh(np.dot(h, w) + x) + np.sin(h)
            return (np.tanh(c), c), None

        zeros = numpy.zeros((32, 40))
        return np.sum(remat.scan(step, (zeros, zeros), xs, **budget)[0][0])

    with remat.profile() as run:
        grad(loss)(w)
    from remat.reporting.report_subject import subjects_of

    (subject,) = subjects_of(run)
    measured, simulated = Timeline.of(subject.trace), Timeline.of(subject.predicted)
    assert measured.rows.op == simulated.rows.op
    assert measured.rows.phase == simulated.rows.phase
    assert measured.kept == simulated.kept
    assert measured.runs == simulated.runs
    assert measured.rows.state == pytest.approx(simulated.rows.state, rel=0.02)
    assert measured.peak.size == pytest.approx(simulated.peak.size, rel=0.05)

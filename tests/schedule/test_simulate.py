"""What the simulator says of a schedule, by hand and by adding up its events."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat import Chain, IllegalError, Level, Loop, Memory, Schedule, Stage, plan, simulate

TEXT = """
keep 0 ram
advance 0 2
keep 2 disk
record 2 3
turn
pullback 3 2
fetch 0 ram
advance 0 1
record 1 2
pullback 2 1
drop 2 disk
fetch 0 ram
drop 0 ram
record 0 1
pullback 1 0
""".strip()
LOOP = Loop(3, state=2, tape=5, forward=1, record=1.5, backward=4, per_range=0.25)
MEMORY = Memory(levels=[Level("ram", slots=3), Level("disk", slots=3, read=0.5, write=10)])


def test_totals_are_those_worked_out_by_hand():
    trace = simulate(Schedule.parse(TEXT), LOOP, MEMORY)
    assert (trace.advances, trace.records, trace.forward_steps, trace.recomputed) == (3, 3, 6, 3)
    assert (trace.keeps, trace.fetches) == ({"ram": 1, "disk": 1}, {"ram": 2})
    # 3 advances, 3 records and ranges, 3 pullbacks, one state of 2 bytes written to disk
    assert trace.seconds == 3 * 1 + 3 * 1.75 + 3 * 4 + 2 * 10
    # while unit 1 is recorded: state 0, its input and output, its tape, a cotangent
    assert trace.peak == 2 + 4 + 5 + 2
    assert trace.peaks == {"ram": 13, "disk": 2}
    assert set(trace.at_peak) == {
        ("state 0", "ram", 2),
        ("state 2", "disk", 2),
        ("tape 1", "ram", 5),
        ("working state", "ram", 4),
        ("cotangent", "ram", 2),
    }


def test_events_say_what_is_live_by_level_and_kind():
    events = list(simulate(Schedule.parse(TEXT), LOOP, MEMORY))
    assert [event.index for event in events] == list(range(15))
    record = events[8]
    assert record.live.size("ram", "state") == 6
    assert record.live.size("ram", "tape") == 5
    assert record.live.size("ram", "cotangent") == 2
    assert record.live.size("disk", "state") == 2
    assert record.live.size("disk", "tape") == 0
    assert record.live.total() == 13
    assert record.live.total("disk") == 2
    assert record.seconds == 1.75


@given(st.integers(0, 60), st.integers(1, 6))
def test_totals_are_sums_and_maxima_of_the_events(n, slots):
    trace = simulate(plan(Loop(n, 3, 4), slots=slots).schedule, Loop(n, 3, 4))
    events = list(trace)
    assert events == list(trace.events)
    assert sum(event.seconds for event in events) == pytest.approx(trace.seconds)
    assert max(event.live.total() for event in events) == trace.peak
    assert sum(size for _, level, size in trace.at_peak if level == "ram") == trace.peak
    assert all(b.start == pytest.approx(a.start + a.seconds) for a, b in pairwise(events))


def test_an_illegal_schedule_is_refused_with_its_rule():
    with pytest.raises(IllegalError, match="R2"):
        simulate(Schedule.parse("advance 1 2"), Loop(3))


def test_the_only_level_is_the_device_whatever_its_name():
    found = plan(Loop(100, tape=50), Memory(levels=[Level("gpu", 80)]), planner="binomial")
    assert simulate(found.schedule, found.problem).peak == found.peak == found.simulate().peak == 80


def test_a_chain_has_workspace_and_unequal_sizes():
    chain = Chain([Stage(1, 2, 3, 10, 100, 1000, 0), Stage(4, 5, 6, 20, 200, 0, 5000)], input=1)
    trace = simulate(Schedule.parse("record 0 1\nrecord 1 2\nturn\npullback 2 1\npullback 1 0"), chain)
    live = [event.live.total() for event in trace]
    assert live == [
        1 + 10 + 100 + 1000,  # input, output, tape, workspace
        1 + 10 + 20 + 300,  # the input of stage 0 is held by its tape
        1 + 10 + 20 + 300,
        1 + 10 + 20 + 300 + (10 + 20) + 5000,  # both cotangents and the workspace
        1 + 10 + 100 + (1 + 10),
    ]
    assert trace.seconds == 3 + 6 + 5 + 2


def test_the_text_of_a_trace_names_what_is_live_at_the_peak():
    assert "at peak  tape 1 (5 B)" in str(simulate(Schedule.parse(TEXT), LOOP, MEMORY))

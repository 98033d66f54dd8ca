"""Every rule has a schedule that breaks it, and the verdict says where and why."""

import tracemalloc

import pytest

from remat import (
    Advance,
    Chain,
    Keep,
    Level,
    Loop,
    Memory,
    ProblemError,
    Schedule,
    ScheduleError,
    Stage,
    plan,
    simulate,
    sweep,
    verify,
)

GOOD = """
keep 0 ram
advance 0 2
record 2 3
turn
pullback 3 2
fetch 0 ram
drop 0 ram
record 0 2
pullback 2 0
""".strip()


def verdict(text, loop=None, memory=None):
    return verify(Schedule.parse(text), loop or Loop(3), memory or Memory(slots=9))


def test_a_legal_schedule_is_legal():
    assert verdict(GOOD)
    assert str(verdict(GOOD)) == "legal"
    assert verdict(GOOD, memory=Memory(slots=1))


@pytest.mark.parametrize(
    ("text", "rule", "index", "fact"),
    [
        ("advance 0 4", 1, 0, "no range of units inside 0..3"),
        ("advance 2 2", 1, 0, "no range"),
        ("fetch 4 ram", 1, 0, "no state 4"),
        ("advance 1 2", 2, 0, "it is 0"),
        ("keep 1 ram", 2, 0, "not the working state"),
        ("record 0 3\nturn\nadvance 0 1", 2, 2, "there is none"),
        ("keep 0 ram\nkeep 0 ram", 3, 1, "already"),
        ("keep 0 tape", 3, 0, "cannot be kept"),
        ("fetch 0 ram", 4, 0, "not kept"),
        ("keep 0 ram\ndrop 0 disk", 4, 1, "not kept in disk"),
        ("record 0 1\nfetch 1 tape", 4, 1, "restartable"),
        ("turn", 5, 0, "the result is state 3"),
        ("record 0 3\nturn\nturn", 5, 2, "already"),
        ("record 0 3\npullback 3 0", 6, 1, "before turn"),
        ("record 0 2\nrecord 2 3\nturn\npullback 2 0", 6, 3, "of state 3"),
        ("record 0 3\nturn\npullback 3 2", 7, 2, "exactly units 2..2"),
        ("record 0 2\nrecord 2 3\nturn\npullback 3 0", 7, 3, "exactly units 0..2"),
        ("keep 0 ram\nrecord 0 2\nfetch 0 ram\nrecord 0 1", 8, 3, "0..1 is held"),
        ("keep 0 ram\nrecord 0 3\nturn\npullback 3 0\nfetch 0 ram\nrecord 0 1", 8, 5, "pulled back already"),
        ("keep 0 disk", 3, 0, "no level 'disk'"),
        ("", 10, 0, "before turn"),
        ("record 0 3\nturn", 10, 2, "units 0..2 are not pulled back"),
        ("keep 0 ram\nrecord 0 3\nturn\npullback 3 0", 10, 4, "still held: state 0 in ram"),
        ("\n".join(GOOD.splitlines()[:-1]), 10, 8, "not pulled back"),
    ],
)  # fmt: skip
def test_the_first_broken_rule_is_named(text, rule, index, fact):
    found = verdict(text)
    assert not found
    assert (found.rule, found.index) == (rule, index)
    assert fact in found.fact
    assert found.live.startswith("working state")
    assert found.hint
    assert f"R{rule}" in str(found)


def test_units_and_states_are_whole_numbers():
    for op in (Advance(0, 0.5), Advance(0, True), Advance("a", "b"), Keep(0.0, "ram"), Keep(False, "ram")):
        assert verify([op], Loop(2), Memory(slots=3)).rule == 1


def test_slots_count_states_and_held_tapes_but_not_the_one_pulled_back_at_once():
    loop = Loop(3, state=2, tape=3)
    held = "record 0 1\nrecord 1 2\nrecord 2 3\nturn\npullback 3 2\npullback 2 1\npullback 1 0"
    assert verdict(held, loop, Memory(slots=3))
    assert verdict(held, loop, Memory(slots=2)).rule == 9
    assert verdict("record 0 3\nturn\npullback 3 0", loop, Memory(slots=0))


def test_bytes_bound_the_whole_peak_of_the_device():
    loop = Loop(3, state=2, tape=3)
    peak = simulate(Schedule.parse(GOOD), loop).peak
    assert verdict(GOOD, loop, Memory(peak))
    assert verify(Schedule.parse(GOOD), loop, peak)
    short = verdict(GOOD, loop, Memory(peak - 1))
    assert short.rule == 9
    assert f"{peak} bytes" in short.fact


def test_other_levels_hold_kept_states_only():
    text = GOOD.replace("ram", "disk")
    levels = [Level("ram", slots=0), Level("disk", 2)]
    assert verdict(text, Loop(3, state=2), Memory(levels=levels))
    assert verdict(text, Loop(3, state=3), Memory(levels=levels)).rule == 9


def test_a_state_can_be_taken_from_a_held_tape():
    text = (
        "record 0 1\nadvance 1 2\nrecord 2 3\nturn\npullback 3 2\nfetch 1 tape\nrecord 1 2\npullback 2 1\npullback 1 0"
    )
    assert verdict(text, Loop(3, restartable=True))
    assert verdict(text).rule == 4
    assert "no held tape ends at state 2" in verdict("record 0 1\nfetch 2 tape", Loop(3, restartable=True)).fact


def test_no_steps_need_only_the_turn():
    assert verdict("turn", Loop(0), Memory(slots=0))


def test_what_is_no_op_is_refused():
    with pytest.raises(ScheduleError, match="item 1"):
        verify([*Schedule.parse("advance 0 1"), "advance 1 2"], Loop(3), Memory(slots=1))


def test_slots_make_no_sense_for_unequal_stages():
    with pytest.raises(ProblemError, match="in bytes"):
        verdict("turn", Chain([]), Memory(slots=1))
    assert verdict("record 0 1\nturn\npullback 1 0", Chain([Stage()]), Memory(9))


def test_an_unknown_length_cannot_be_verified():
    with pytest.raises(ProblemError, match="not known"):
        verdict("turn", Loop(None))


@pytest.mark.parametrize("look", [verify, simulate])
def test_checking_takes_memory_that_does_not_grow_with_the_length(look):
    def peak(n):
        loop = Loop(n)
        schedule, memory = plan(loop, slots=20).schedule, Memory(slots=20)
        look(plan(Loop(50), slots=20).schedule, Loop(50), memory)
        tracemalloc.start()
        look(schedule, loop, memory)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(5_000) < 2 * peak(500) + 50_000


def test_a_problem_before_its_schedule_gets_the_call_that_was_meant():
    schedule = Schedule.parse("record 0 1; turn; pullback 1 0")
    with pytest.raises(ScheduleError, match=r"write remat\.verify\(schedule, problem, memory\)"):
        verify(Loop(1), schedule, Memory(slots=0))
    with pytest.raises(ScheduleError, match=r"write remat\.simulate\(schedule, problem\)"):
        simulate(Loop(1), schedule)
    with pytest.raises(ProblemError, match=r"write remat\.sweep\(problem, memory='1 MiB'\)"):
        sweep("1 MiB", Loop(1))

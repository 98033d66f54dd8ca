"""Schedules as values, and their text form."""

import itertools
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat import Advance, Drop, Fetch, FileError, Keep, Loop, Pullback, Record, Schedule, ScheduleError, Turn, plan
from remat.schedule.notation import parse_lines

TEXT = """keep 0 ram
advance 0 2
record 2 3
turn
pullback 3 2
fetch 0 ram
drop 0 ram
record 0 2
pullback 2 0"""

numbers = st.integers(0, 10**18 - 1)
levels = st.sampled_from(["ram", "disk", "tape", "gpu:0"])
ops = st.one_of(
    st.builds(Advance, numbers, numbers),
    st.builds(Record, numbers, numbers),
    st.builds(Pullback, numbers, numbers),
    st.builds(Keep, numbers, levels),
    st.builds(Fetch, numbers, levels),
    st.builds(Drop, numbers, levels),
    st.just(Turn()),
)


@given(st.lists(ops))
def test_text_is_printed_and_parsed_exactly(listed):
    schedule = Schedule(listed)
    assert Schedule.parse(str(schedule)) == schedule
    assert str(Schedule.parse(str(schedule))) == str(schedule)


def test_the_text_form_is_the_documented_one():
    assert str(Schedule.parse(TEXT)) == TEXT
    assert Schedule.parse("advance 3 9; turn;").ops() == (Advance(3, 9), Turn())
    assert Schedule.parse("pullback 12 9").ops() == (Pullback(12, 9),)


def test_a_schedule_is_a_value():
    streamed, held = plan(Loop(30), slots=3).schedule, Schedule(plan(Loop(30), slots=3).schedule.ops())
    assert list(streamed) == list(streamed)
    assert streamed == held
    assert hash(streamed) == hash(held)
    assert streamed != plan(Loop(30), slots=4).schedule
    assert streamed != plan(Loop(31), slots=3).schedule
    assert streamed != Schedule(held.ops()[:-1])
    assert streamed != "text"
    assert len({streamed, held}) == 1


def test_a_one_shot_iterator_becomes_re_iterable():
    schedule = Schedule(iter([Record(0, 1), Turn(), Pullback(1, 0)]))
    assert list(schedule) == list(schedule) != []


def test_a_list_that_changes_later_does_not_change_the_schedule():
    for kind in (list, deque):
        listed = kind([Turn()])
        schedule = Schedule(listed)
        listed.append(Turn())
        assert schedule.ops() == (Turn(),)


def test_repr_is_short_and_str_is_whole():
    schedule = plan(Loop(10**9), slots=5).schedule
    assert len(repr(schedule)) < 400
    assert repr(schedule).endswith("…')")


def test_ops_can_be_compared_hashed_and_not_changed():
    assert Advance(1, 2) == Advance(1, 2) != Record(1, 2)
    assert len({Keep(1, "ram"), Keep(1, "ram"), Keep(1, "disk")}) == 2
    with pytest.raises(AttributeError):
        Advance(1, 2).start = 3


def test_files_keep_the_schedule(tmp_path):
    schedule = plan(Loop(50), slots=4).schedule
    schedule.save(tmp_path / "ops.txt")
    assert Schedule.load(tmp_path / "ops.txt") == schedule
    assert (tmp_path / "ops.txt").read_text().startswith("# remat schedule 1\nkeep 0 ram\n")


def test_comments_and_blank_lines_are_passed_over():
    assert Schedule.parse("# a note\n\n  turn  \n").ops() == (Turn(),)


@pytest.mark.parametrize(
    "line",
    ["advance 1", "advance 1 2 3", "advance a b", "advance -1 2", "advance 1.0 2", "turn 3", "leap 1 2", "Advance 1 2",
     "keep x ram", "keep 3", "advance ١ ٢", "advance 1 " + "9" * 30, "turn; leap"],
)  # fmt: skip
def test_a_line_that_is_no_op_is_named(line):
    with pytest.raises(ScheduleError, match="line 2"):
        Schedule.parse(f"turn\n{line}\n")


def test_another_version_is_refused():
    for text in ("# remat schedule 2\nturn\n", "\n# remat schedule 2\nturn\n"):
        with pytest.raises(FileError, match="version 2"):
            Schedule.parse(text)


def test_an_endless_line_is_refused_at_once(tmp_path):
    (tmp_path / "long.txt").write_text("advance 0 1\n" + "9" * 5_000_000)
    with pytest.raises(ScheduleError, match="line 2 is longer than 200"):
        Schedule.load(tmp_path / "long.txt")


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "blob").write_bytes(b"\xff\xfe\x00\x01" * 100)
    with pytest.raises(ScheduleError, match="not text"):
        Schedule.load(tmp_path / "blob")


def test_lines_are_read_one_by_one():
    endless = itertools.chain(["turn"], itertools.repeat("advance 0 1"))
    assert list(itertools.islice(parse_lines(endless), 3)) == [Turn(), Advance(0, 1), Advance(0, 1)]


def test_text_is_not_taken_for_ops():
    with pytest.raises(ScheduleError, match=r"Schedule\.parse"):
        Schedule("turn")

"""A trace is saved and loaded whole, and a damaged file is one clear error."""

import json

import pytest

import remat
from remat.schedule.trace_columns import Columns


@pytest.fixture
def trace():
    memory = remat.Memory(levels=[remat.Level("ram", slots=2), remat.Level("disk", slots=3, read=1, write=1)])
    return remat.plan(remat.Loop(30, state=5, tape=7), memory).simulate()


def test_what_is_loaded_is_what_was_saved(trace, tmp_path):
    trace.save(tmp_path / "trace.json")
    loaded = remat.Trace.load(tmp_path / "trace.json")
    assert [(e.op, e.live) for e in loaded] == [(e.op, e.live) for e in trace]
    assert [e.start for e in loaded] == pytest.approx([e.start for e in trace])
    assert loaded.totals == trace.totals
    assert (loaded.peak, loaded.at_peak, loaded.memory) == (trace.peak, trace.at_peak, trace.memory)
    assert (loaded.recomputed, loaded.seconds) == (trace.recomputed, trace.seconds)
    assert str(loaded) == str(trace)


def test_columns_are_small(trace):
    plan = remat.plan(remat.Loop(5000), slots=20)
    columns = Columns("ram")
    for event in plan.simulate():
        columns.append(event.op, event.seconds, event.live)
    assert columns.nbytes < 80 * len(columns)


@pytest.mark.parametrize(
    "damage",
    [
        {"ops": None},
        {"ops": ["advance 0"]},
        {"ops": []},
        {"seconds": [1.0]},
        {"seconds": "x"},
        {"tape": {}},
        {"state": []},
        {"state": {"ram": [0]}},
        {"units": -1},
        {"units": "many"},
        {"at_peak": [["state", "ram", "large"]]},
        {"written": 3},
        {"memory": {}},
        {"version": 9},
        {"remat": "plan"},
        {"device": 7, "always": None},
    ],
    ids=str,
)
def test_a_damaged_file_is_one_clear_error(trace, damage):
    data = trace.envelope() | damage
    with pytest.raises(remat.FileError):
        remat.Trace.from_json(json.dumps(data))


def test_numbers_that_cannot_be_are_refused(trace):
    data = trace.envelope()
    for value in (-1.0, float("nan"), float("inf"), "1", True, 10**30):
        seconds = [value, *data["seconds"][1:]]
        with pytest.raises(remat.FileError):
            remat.Trace.from_json(json.dumps(data | {"seconds": seconds}))

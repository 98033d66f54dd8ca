"""Problems and memories: values that are compared, hashed, saved and checked."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat import Chain, FileError, Level, Loop, Memory, Option, ProblemError, Stage, plan, simulate
from remat.testing import loops, memories


@given(loops())
def test_a_loop_comes_back_from_json(loop):
    assert Loop.from_json(loop.to_json()) == loop
    assert hash(Loop.from_json(loop.to_json())) == hash(loop)


@given(memories())
def test_a_memory_comes_back_from_json(memory):
    assert Memory.from_json(memory.to_json()) == memory


def test_a_chain_comes_back_from_a_file(tmp_path):
    stages = [Stage(1, 2, None, "1 KiB", "4 KiB", 5, 6, "läyer"), Stage(0.5, 1, 0.75, 8, 9)]
    stages += [Stage(options=[Option(7, 1, 2, 9, 17, name="all"), Option(0, holds_input=False)])]
    chain = Chain(stages, input="2 KiB")
    chain.save(tmp_path / "chain.json")
    assert Chain.load(tmp_path / "chain.json") == chain
    assert {chain: 1}[Chain(stages, input=2048)] == 1


def test_values_cannot_be_changed():
    for value, name in ((Loop(3), "steps"), (Memory(5), "levels"), (Stage(), "tape"), (Chain([]), "input")):
        with pytest.raises(AttributeError):
            setattr(value, name, 9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Loop(-1),
        lambda: Loop(2.5),
        lambda: Loop("10"),
        lambda: Loop(3, state=0),
        lambda: Loop(3, state="huge"),
        lambda: Loop(3, tape=-1),
        lambda: Loop(3, forward=-1.0),
        lambda: Loop(3, backward=float("nan")),
        lambda: Loop(3, restartable="yes"),
        lambda: Loop(10**400),
        lambda: Loop(3, forward=1e308),
        lambda: Stage(holds_input="yes"),
        lambda: Stage(options=[]),
        lambda: Stage(options=[3]),
        lambda: Stage(output=4, options=[Option(tape=3, record_peak=6)]),
        lambda: Option(tape=3, pullback_peak=2),
        lambda: Loop(3, state=2, tape=1, restartable=True),
        lambda: Chain([1, 2]),
        lambda: Memory(),
        lambda: Memory(5, slots=3),
        lambda: Memory(slots=-1),
        lambda: Memory(levels=[]),
        lambda: Memory(levels=[Level("a", 1), Level("a", 2)]),
        lambda: Memory(levels=["ram"]),
        lambda: Memory(5, levels=[Level("a", 1)]),
        lambda: Level("tape", 3),
        lambda: Level("two words", 3),
        lambda: Level("", 3),
        lambda: Level("ram", 3, slots=3),
        lambda: Level("ram", 3, read=-1),
        lambda: Memory.of(None, None),
        lambda: Memory.of(5, 3),
        lambda: Memory.of(0.25),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(ProblemError):
        make()


def test_an_unknown_length_says_what_to_do():
    with pytest.raises(ProblemError, match="online"):
        _ = Loop(None).units


def as_chain(loop):
    holds = {"holds_input": False, "holds_output": False}
    stage = Stage(loop.forward, loop.backward, loop.record, loop.state, loop.tape, **holds)
    return Chain([stage] * loop.units, input=loop.state)


@given(st.integers(1, 40), st.integers(1, 6))
def test_a_loop_as_a_chain_takes_the_same_time_and_its_shared_states_count_once(n, slots):
    loop = Loop(n, state=3, tape=5, forward=1.5, record=2, backward=4)
    schedule = plan(loop, slots=slots).schedule
    one, other = simulate(schedule, loop), simulate(schedule, as_chain(loop))
    assert (one.advances, one.seconds) == pytest.approx((other.advances, other.seconds))
    assert other.peak <= one.peak


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data.pop("remat"), "not a saved remat value"),
        (lambda data: data.update(remat="memory"), "not a loop"),
        (lambda data: data.update(version=2), "version 2"),
        (lambda data: data.update(version=True), "version True"),
        (lambda data: data.pop("version"), "version None"),
        (lambda data: data.pop("state") and data.pop("steps"), "lacks a field"),
        (lambda data: data.update(surprise=1), "lacks a field or has a wrong one"),
        (lambda data: data.update(steps=-3), "makes no sense"),
    ],
)
def test_a_damaged_file_says_what_is_wrong(damage, said):
    data = json.loads(Loop(5).to_json())
    damage(data)
    with pytest.raises(FileError, match=said):
        Loop.from_json(json.dumps(data))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "[" * 100_000, '{"remat":' * 50_000, "\x00", b"\xff\xfe", "7" * 5000]
)
def test_hostile_text_is_one_clear_error(text):
    with pytest.raises(FileError):
        Loop.from_json(text)


def test_a_problem_describes_itself():
    loop, chain = Loop(1000, "1 MiB", "9 MiB"), Chain([Stage(output=4, tape=7), Stage(output=2)], input=8)
    assert (loop.title, Loop(None).title, chain.title) == ("1,000 steps", "steps of unknown number", "2 stages")
    assert loop.describe() == [("step", "state 1 MiB, tape 9 MiB")]
    assert chain.describe(times=True) == [
        ("stages", "states up to 8 B, tapes up to 7 B"),
        ("all times", "not given: forward counts 1, backward 2"),
    ]
    for words in ("largest tape (7 B)", "state (8 B)", "workspace of a pullback (16 B)"):
        assert words in chain.shrink_advice()
    assert "largest tape (0 B)" in Chain([]).shrink_advice()
    assert "graph" not in repr(chain)  # thousands of operations would hide the rest
    assert Chain([]).describe() == [("stages", "states up to 1 B, tapes up to 0 B")]


def test_a_chain_is_printed_as_a_table_of_its_stages():
    stages = [Stage(2.5, 5, 3, "1 MiB", "4 MiB", name="0 Embedding"), *(Stage(name=f"{i} Block") for i in range(1, 9))]
    stages += [Stage(output=8, options=[Option(24), Option(0, backward=3, name="keep nothing")])]
    lines = [line.split() for line in str(Chain(stages, input="2 KiB")).splitlines()]
    assert lines[0] == ["chain", "of", "10", "stages,", "input", "2", "KiB"]
    assert lines[1] == ["stage", "forward", "record", "backward", "output", "tape"]
    assert lines[2] == ["0", "Embedding", "2.5", "3", "5", "1", "MiB", "4", "MiB"]
    assert lines[3] == ["1", "Block", "to", "8", "1", "1", "2", "1", "B", "1", "B"]
    assert lines[5] == ["or", "keep", "nothing", "1", "3", "0", "B"]
    assert lines[6][:4] == ["all", "11.5", "12", "23"]
    many = str(Chain([Stage(output=size) for size in range(1, 400)]))
    assert "and 339 more" in many
    assert max(map(len, many.splitlines())) < 80


def test_a_damaged_file_is_named(tmp_path):
    Chain([Stage()]).save(tmp_path / "chain.json")
    with pytest.raises(FileError, match=r"chain\.json: this is a saved 'chain', not a loop"):
        Loop.load(tmp_path / "chain.json")

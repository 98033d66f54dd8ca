"""A plan as people read it and files hold it."""

import json
import pickle

import pytest

from remat import Chain, FileError, InfeasibleError, Loop, Memory, Plan, PlannerError, Stage, plan
from remat.planners import PLANNERS, Claim


def test_the_table_says_everything_that_matters():
    text = str(plan(Loop(1000, "1 MiB", "9 MiB"), "64 MiB"))
    for part in (
        "1,000 steps in ram 64 MiB",
        "state 1 MiB, tape 9 MiB",
        "mixed: ",
        "optimal within",
        "2,818",
        "peak",
        "time",
    ):
        assert part in text
    assert all(len(line) <= 110 for line in text.splitlines())


@pytest.mark.parametrize(
    "name", [name for name, planner in PLANNERS.items() if planner.problem_type is Loop and name != "exhaustive"]
)
def test_a_plan_comes_back_from_its_file(name, tmp_path):
    found = plan(Loop(40, 2, 3, 0.1, 0.2, 0.3), Memory(slots=60), planner=name)
    found.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == found
    assert loaded.to_json() == found.to_json() == Plan.from_json(found.to_json()).to_json()
    assert json.loads((tmp_path / "plan.json").read_text())["version"] == 1


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data["ops"].pop(), "R10"),
        (lambda data: data["ops"].reverse(), "illegal at op 0"),
        (lambda data: data["ops"].insert(3, "jump 1 2"), "op 4"),
        (lambda data: data["ops"].insert(3, 7), "no list of lines"),
        (lambda data: data.update(ops=5), "no list of lines"),
        (lambda data: data.update(version=9), "version 9"),
        (lambda data: data["memory"]["levels"][0].update(slots=1), "R9"),
        (lambda data: data["prediction"].update(advances=1), "its ops cost"),
        (lambda data: data["prediction"].update(seconds="soon"), "wrong"),
        (lambda data: data["claim"].update(factor="best"), "not a factor"),
        (lambda data: data["claim"].update(factor=10**400), "too large"),
        (lambda data: data["prediction"].update(seconds=10**400), "too large"),
        (lambda data: data["problem"].update(remat="memory"), "not a loop"),
        (lambda data: data.pop("problem"), "problem"),
    ],
)
def test_a_damaged_plan_is_refused(damage, said):
    data = json.loads(plan(Loop(20), slots=3).to_json())
    damage(data)
    with pytest.raises(FileError, match=said):
        Plan.from_json(json.dumps(data))


def test_a_plan_that_was_cut_off_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    plan(Loop(20), slots=3).save(path)
    path.write_text(path.read_text()[:400])
    with pytest.raises(FileError, match="cut off"):
        Plan.load(path)


def test_a_file_too_large_is_not_read(tmp_path):
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(FileError, match="at most"):
        Plan.load(tmp_path / "huge.json")


def test_an_unknown_length_has_no_schedule_until_it_ended(tmp_path):
    open_plan = plan(Loop(None), slots=3)
    for look in (lambda: open_plan.schedule, lambda: open_plan.forward_steps, lambda: open_plan.save(tmp_path / "p")):
        with pytest.raises(PlannerError, match=r"not known|driver"):
            look()
    assert not (tmp_path / "p").exists()
    assert "unknown" in str(open_plan)
    driver = open_plan.start()
    with pytest.raises(PlannerError, match="not ended"):
        driver.plan()
    driver.last()
    assert driver.plan().forward_steps == 1
    for again in (driver.advance, driver.last, driver.ended):
        with pytest.raises(PlannerError, match="fresh driver"):
            again()
    with pytest.raises(PlannerError, match="iterate"):
        driver.plan().start()


def test_a_claim_is_rounded_up_so_that_it_stays_true():
    assert str(Claim(1.00049)) == str(Claim(1.0000001)) == "at most 1.001x the bound"
    assert str(Claim(2.5, "x")) == "at most 2.5x the bound within x"
    assert Claim(1.0).optimal
    assert not Claim(1.5).optimal
    assert not Claim(None).optimal


@pytest.mark.parametrize(
    "name", [name for name, planner in PLANNERS.items() if planner.problem_type is Loop and name != "exhaustive"]
)
def test_plans_can_be_pickled(name):
    found = plan(Loop(50, tape=3), slots=200, planner=name)
    assert pickle.loads(pickle.dumps(found)) == found


def test_too_little_memory_says_what_takes_it_and_what_to_do_as_data():
    with pytest.raises(InfeasibleError) as error:
        plan(Chain([Stage(output=8, tape=20, name="wide")] * 2), memory=4)
    for found in (error.value, pickle.loads(pickle.dumps(error.value))):
        assert "'wide'" in found.why
        assert found.advice.startswith("make the largest tape")
        assert f"({found.why}). Give at least that, or {found.advice}" in str(found)
        assert found.minimum == error.value.minimum


def test_a_plan_for_an_unknown_length_can_be_pickled_and_driven():
    driver = pickle.loads(pickle.dumps(plan(Loop(None), slots=3))).start()
    driver.advance()
    driver.last()
    assert driver.plan().forward_steps == 3

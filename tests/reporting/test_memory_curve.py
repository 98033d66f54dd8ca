"""The memory curve of a report: computed where it is asked for, or costs nothing; a page by itself plans nothing."""

import sys
from pathlib import Path

import autograd.numpy as np
import pytest
from autograd import grad

import remat
from remat.planners import PLANNERS, memory_curve
from remat.planners.memory_curve import memory_curve_of
from remat.reporting import text_report

HOW_TO = "a report with tradeoff=True"
DRAWN = "What more memory would buy"


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch):
    monkeypatch.setattr(memory_curve, "_cache", {})


@pytest.fixture
def plan():
    return remat.plan(remat.Loop(100, state="1 MiB", tape="9 MiB"), "64 MiB")


def run_of_300_steps():
    with remat.profile() as run:
        grad(
            lambda x: np.sum(remat.scan(lambda c, _: (np.tanh(1.01 * c + 0.1), None), x, length=300, memory="1 MiB")[0])
        )(np.ones((40, 40)))
    return run


def refuse(*args, **kwargs):
    raise AssertionError("a report planned")


def refuse_all_planning(monkeypatch):
    for planner in PLANNERS.values():
        monkeypatch.setattr(planner, "plan", refuse)
    for name in ("remat.planners.plan", "remat.planners.find_planner", "remat.planners.registry.find_planner"):
        monkeypatch.setattr(name, refuse)
    monkeypatch.setattr("remat.planners.memory_curve.plan_within", refuse)
    monkeypatch.setattr("remat.planners.measured_budget.cached_plan", refuse)


def test_a_page_of_a_300_step_run_takes_under_10_000_calls(tmp_path):
    run, calls, root = run_of_300_steps(), 0, str(Path(remat.__file__).parent)

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(root)

    sys.setprofile(count)
    try:
        run.report(tmp_path / "run.html")
    finally:
        sys.setprofile(None)
    assert 0 < calls < 10_000


@pytest.mark.parametrize("form", ["html", "txt", "json", "svg", "chrome.json"])
@pytest.mark.parametrize("tradeoff", [None, False])
def test_a_report_plans_nothing(plan, form, tradeoff, tmp_path, monkeypatch):
    subjects = (plan, plan.simulate(), run_of_300_steps())
    refuse_all_planning(monkeypatch)
    for subject in subjects:
        subject.report(tmp_path / f"x.{form}", tradeoff=tradeoff)
        assert subject._repr_html_() is not None


def test_planning_is_refused_in_the_tests_above(plan, tmp_path, monkeypatch):
    refuse_all_planning(monkeypatch)
    with pytest.raises(AssertionError, match="a report planned"):
        plan.report(tmp_path / "x.html", tradeoff=True)


def test_bytes_are_compared_on_request_and_once(plan, tmp_path):
    page = tmp_path / "x.html"
    assert HOW_TO in plan.report(page).read_text()
    assert DRAWN not in page.read_text()
    assert DRAWN in plan.report(page, tradeoff=True).read_text()
    assert HOW_TO not in page.read_text()
    assert HOW_TO in plan.report(page).read_text()  # whatever is in the cache
    assert DRAWN not in plan.report(page, tradeoff=False).read_text()
    assert HOW_TO in page.read_text()
    assert memory_curve_of(plan) is memory_curve_of(plan)


def test_slots_of_a_binomial_plan_are_always_compared(tmp_path):
    plan = remat.plan(remat.Loop(60, state=10, tape=30), slots=5)
    assert DRAWN in plan.report(tmp_path / "x.html").read_text()
    assert DRAWN not in plan.report(tmp_path / "x.html", tradeoff=False).read_text()


def test_a_run_in_bytes_says_how_to_compare(tmp_path):
    run = run_of_300_steps()
    assert HOW_TO in run.report(tmp_path / "x.html").read_text()
    assert DRAWN in run.report(tmp_path / "x.html", tradeoff=True).read_text()
    assert "tip: " in text_report(run, tradeoff=True)


def test_where_nothing_is_recomputed_more_memory_buys_nothing():
    plan = remat.plan(remat.Loop(10, state=1, tape=2), 1000)
    text = " ".join(text_report(plan, tradeoff=False).split())
    assert "What would more memory buy? nothing; no step is recomputed; a report with tradeoff=True" in text


def test_the_cache_forgets_the_oldest(monkeypatch):
    monkeypatch.setattr(memory_curve, "MOST_CACHED", 2)
    plans = [remat.plan(remat.Loop(20, state=10, tape=30), slots=slots) for slots in (3, 4, 5)]
    first = memory_curve_of(plans[0])
    assert memory_curve_of(plans[0]) is first
    for plan in plans[1:]:
        memory_curve_of(plan)
    again = memory_curve_of(plans[0])
    assert again is not first
    assert again == first

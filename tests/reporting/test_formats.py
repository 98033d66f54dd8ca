"""The forms of a report: each says the same numbers, escapes what users call things, and is written whole or not."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import autograd.numpy as np
import pytest
from autograd import grad

import remat
from remat.planners import SavePoints
from remat.planners.claim import Claim
from remat.reporting import formats, text_report
from remat.reporting.formats import curve_for
from remat.reporting.headline import Headline, headline_of
from remat.reporting.report_subject import subjects_of
from remat.reporting.summary import summarise
from remat.reporting.svg import standalone
from remat.reporting.svg_liveness import liveness_svg
from remat.units import bytes_text

EVIL = "</script><img src=x onerror=alert(1)>\"'&"
FORMS = ("html", "txt", "json", "svg", "png", "chrome.json")


@pytest.fixture
def plan():
    return remat.plan(remat.Loop(100, state="1 MiB", tape="9 MiB"), "64 MiB")


@pytest.fixture
def run():
    with remat.profile() as run:
        grad(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=40, slots=4)[0])(0.3)
    return run


def summary_of(value):
    """The summary of one subject, with its memory curve."""
    (subject,) = subjects_of(value)
    return summarise(subject, curve_for(subject, tradeoff=True))


class Reader(HTMLParser):
    """What a browser makes of the tags and texts of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.attributes = [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_every_subject(plan, run, form, tmp_path):
    subjects = {
        "plan": plan,
        "trace": plan.simulate(),
        "profile": run,
        "call": run.calls[0],
        "measured": run.calls[0].trace,
    }
    for name, subject in subjects.items():
        path = remat.report(subject, tmp_path / f"{name}.{form}")
        assert path.stat().st_size > 500
    assert plan.report(tmp_path / f"again.{form}") == tmp_path / f"again.{form}"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"{n}.{form}" for n in [*subjects, "again"])


def test_the_page_says_what_the_trace_says(plan, tmp_path):
    page = plan.report(tmp_path / "plan.html").read_text()
    read = Reader(page)
    trace = plan.simulate()
    assert f"{trace.recomputed:,} steps" in read.text
    assert bytes_text(trace.peak) in read.text
    assert "What would more memory buy?" in read.text
    assert "http://" not in page
    assert "https://" not in page
    assert not {"link", "img", "iframe", "object", "base"} & set(read.tags)
    assert not [value for name, value in read.attributes if name in ("src", "href") or name.startswith("on")]
    assert "default-src 'none'" in page
    data = json.loads(re.search(r'id="remat-data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["views"][0]["peak"]["size"] == trace.peak
    assert data["views"][0]["budget"] == 64 * 2**20


@pytest.mark.parametrize("form", ["html", "svg", "txt", "json", "chrome.json"])
def test_names_from_user_code_are_only_text(plan, tmp_path, form):
    chain = remat.Chain([remat.Stage(name=EVIL), remat.Stage(name="b")])
    schedule = remat.Schedule.parse("record 0 2; turn; pullback 2 0")
    trace = remat.simulate(schedule, chain)
    assert EVIL in trace.at_peak[0][0]
    page = remat.report(trace, tmp_path / f"evil.{form}", title=EVIL, labels=[EVIL]).read_text()
    if form == "html":
        read = Reader(page)
        assert "img" not in read.tags
        assert not any(name.startswith("on") for name, _ in read.attributes)
        assert page.count("</script>") == 2  # the data's and the code's
        assert EVIL in read.text
    elif form == "svg":
        assert "img" not in {element.tag for element in ET.fromstring(page).iter()}
    elif "json" in form:
        json.loads(page)
    assert "<img" not in trace._repr_html_()
    assert ET.fromstring(trace._repr_svg_().partition("\n")[2]) is not None


def test_text_is_80_columns_wide_and_answers_the_questions(plan, run):
    for subject in (plan, plan.simulate(), run):
        text = text_report(subject)
        assert all(len(line) <= 80 for line in text.splitlines())
        for word in (
            "What is the peak?",
            "When?",
            "Who holds it?",
            "How much is recomputed?",
            "What would more memory",
        ):
            assert word in text
    assert "tip: " in text_report(plan, tradeoff=True)
    assert "Predicted and measured" in text_report(run)


def test_json_is_versioned_and_plain(plan, tmp_path):
    data = json.loads(plan.report(tmp_path / "plan.json").read_text())
    assert (data["remat"], data["version"]) == ("report", 1)
    (subject,) = data["subjects"]
    assert subject["peak"] == plan.peak
    assert subject["recomputed"] == plan.recomputed
    assert len(subject["rows"]["op"]) == subject["events"] == len(plan.schedule.ops())
    assert sum(subject["runs"].values()) == 100


def test_a_chrome_trace_has_every_op_and_a_counter(plan, tmp_path):
    data = json.loads(plan.report(tmp_path / "plan.chrome.json").read_text())
    ops = [event for event in data["traceEvents"] if event["ph"] == "X"]
    counters = [event for event in data["traceEvents"] if event["ph"] == "C"]
    assert len(ops) == len(plan.schedule.ops())
    assert max(sum(event["args"].values()) for event in counters) == plan.peak
    assert all(a["ts"] <= b["ts"] for a, b in pairwise(ops))
    assert plan.report(tmp_path / "x.json", form="chrome").read_text() == (tmp_path / "plan.chrome.json").read_text()


def test_pictures_are_well_formed_and_have_no_scripts(plan, tmp_path):
    svg = plan.report(tmp_path / "plan.svg").read_text()
    tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(svg.partition("\n")[2]).iter()}
    assert "script" not in tags
    assert f"peak {bytes_text(plan.peak)}" in svg
    assert plan.report(tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert "var(" not in standalone(liveness_svg(summarise(subjects_of(plan)[0])), plain=True)
    both = remat.report(plan, plan, tmp_path / "both.svg").read_text()
    assert both.count("<svg") == 3
    assert ET.fromstring(both.partition("\n")[2]) is not None
    html = plan._repr_html_()
    assert "<script" not in html
    assert "<svg" in html
    assert remat.plan(remat.Loop(10**6), slots=100)._repr_html_() is None  # a notebook prints the text instead
    assert remat.plan(remat.Loop(None), slots=3)._repr_svg_() is None


def test_a_comparison_has_one_scale_and_ratios(plan, tmp_path):
    less = remat.plan(remat.Loop(100, state="1 MiB", tape="9 MiB"), "32 MiB")
    page = remat.report(plan, less, tmp_path / "two.html", labels=("much", "little")).read_text()
    text = Reader(page).text
    assert "Live memory, on one scale" in text
    assert len(set(re.findall(r">(\d+ MiB)</text><path", page))) >= 4
    assert "Side by side" in text
    assert f"({plan.peak / less.peak:.3g} times less)" in text
    same = text_report(plan, plan)
    assert "(1)" in same
    assert "(2)" in same


def test_anonymous_reports_have_no_names(run, tmp_path):
    memory = remat.Memory(
        levels=[remat.Level("secret", "64 MiB"), remat.Level("vault", "1 GiB", read=1e-9, write=1e-9)]
    )
    hidden = remat.plan(remat.Loop(60, state="1 MiB", tape="9 MiB"), memory)
    for form in ("html", "txt", "json", "chrome.json", "svg"):
        for subject in (hidden, run):
            if form != "svg" or subject is hidden:
                text = subject.report(tmp_path / f"x.{form}", anonymous=True).read_text()
                for word in (
                    ("secret", "vault", "test_formats", "/", "lambda") if form == "txt" else ("secret", "test_formats")
                ):
                    assert word not in text.replace("GB/s", ""), (form, word)


def test_tips_say_what_more_memory_buys(plan):
    summary = summary_of(plan)
    assert any("more would remove" in tip for tip in summary.tips)
    chosen = summary.curve.chosen
    assert (chosen.budget, chosen.forward_steps) == (64 * 2**20, plan.forward_steps)
    steps = [point.forward_steps for point in summary.curve.points]
    assert steps[-1] == 100
    assert steps == sorted(steps, reverse=True) or max(b / a for a, b in pairwise(steps)) < 1.05
    more = re.search(r"^(.*) more would remove (\d+)%", summary.tips[0])
    better = next(p for p in summary.curve.points if summary.curve.text(p.budget - chosen.budget) == more[1])
    share = (chosen.forward_steps - better.forward_steps) / plan.recomputed
    assert f"{share:.0%}" == f"{more[2]}%"


@pytest.mark.parametrize("planner", ["binomial", "mixed", "chunks", "save-points", "keep-all"])
def test_every_planner_has_a_tradeoff(planner):
    found = remat.plan(remat.Loop(60, state=10, tape=30), slots=200 if planner == "keep-all" else 5, planner=planner)
    summary = summary_of(found)
    assert summary.curve.chosen.forward_steps == found.forward_steps
    assert len(summary.curve.points) > 3


def test_what_cannot_be_shown_says_so(plan, run, tmp_path):
    with pytest.raises(remat.ReportError, match=r"\.html"):
        plan.report(tmp_path / "plan.doc")
    with pytest.raises(remat.ReportError, match="no form"):
        plan.report(tmp_path / "plan.html", form="doc")
    with pytest.raises(remat.ReportError, match="path"):
        remat.report(plan)
    with pytest.raises(remat.ReportError, match="Plan"):
        remat.report(3, tmp_path / "x.html")
    with pytest.raises(remat.ReportError, match="labels"):
        remat.report(plan, tmp_path / "x.html", labels=["a", "b"])
    with pytest.raises(remat.ReportError, match="folder"):
        plan.report(tmp_path / "no" / "plan.html")
    with remat.profile() as empty:
        pass
    with pytest.raises(remat.ReportError, match="no run to show"):
        empty.report(tmp_path / "x.html")
    with pytest.raises(remat.PlannerError, match="length"):
        remat.plan(remat.Loop(None), slots=3).report(tmp_path / "x.html")
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_fails_leaves_what_was_there(plan, tmp_path, monkeypatch):
    path = plan.report(tmp_path / "plan.html")
    before = path.read_bytes()

    def broken(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", broken)
    with pytest.raises(KeyboardInterrupt):
        plan.report(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["plan.html"]


def test_png_needs_its_package(plan, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(remat.ReportError, match="pip install resvg_py"):
        plan.report(tmp_path / "plan.png")


def test_a_hundred_thousand_events_fit_into_400_kb(tmp_path):
    plan = remat.plan(remat.Loop(16_700, state=4096, tape=30_000), slots=100)
    trace = plan.simulate()
    assert 90_000 < trace.totals.ops <= 100_000
    page = trace.report(tmp_path / "long.html")
    assert page.stat().st_size < 400_000
    assert "groups of" not in page.read_text()


def test_noisy_times_and_sizes_fit_too(tmp_path):
    """A measured run has no two times alike, and a chain has states of many sizes."""
    import random

    from remat.schedule import Trace
    from remat.schedule.events import Live, Totals
    from remat.schedule.trace_columns import Columns

    rng = random.Random(0)
    columns = Columns("ram")
    for event in remat.plan(remat.Loop(16_700), slots=100).simulate():
        live = Live("ram", {"ram": rng.randrange(10**9)}, rng.randrange(10**9), rng.randrange(10**6))
        columns.append(event.op, rng.lognormvariate(-7, 1), live, rng.randrange(3 * 10**9))
    totals = Totals.of(columns)
    trace = Trace(16_700, "ram", totals, columns, lambda _: (), measured=True)
    page = trace.report(tmp_path / "noisy.html")
    assert page.stat().st_size < 400_000
    data = json.loads(re.search(r'id="remat-data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    assert data["views"][0]["peak"]["size"] == trace.peak


def test_more_events_than_that_are_put_together_and_the_page_says_so(tmp_path):
    trace = remat.plan(remat.Loop(20_000), slots=100).simulate()
    assert trace.totals.ops > 100_000
    page = trace.report(tmp_path / "longer.html")
    assert page.stat().st_size < 400_000
    assert "are drawn in groups of" in page.read_text()


def test_progress_is_told(plan, tmp_path):
    told = []

    class Bar:
        def update(self, done, total):
            told.append((done, total))

    remat.report(plan, tmp_path / "plan.html", progress=Bar())
    assert told


def test_tips_of_a_run_hold_for_the_budget_one_asks_for():
    def recomputed(memory):
        with remat.profile() as run:
            grad(lambda h: np.sum(remat.scan(lambda h, _: (np.tanh(h), None), h, length=60, memory=memory)[0]))(
                np.ones(2000)
            )
        return run

    run = recomputed(2**20)
    summary = summary_of(run)
    trace, curve = summary.subject.trace, summary.curve
    assert trace.recomputed > 0
    assert curve.chosen.budget == summary.requested_bytes == 2**20
    for point in curve.points[1 :: max(1, len(curve.points) // 4)]:  # the least may not be enough when measured again
        assert recomputed(point.budget).calls[0].trace.forward_steps == point.forward_steps
    assert curve.points[-1].forward_steps == 60
    assert f"{headline_of(summary).short} = " in text_report(run).replace(";", " =")
    assert "of 1 MiB" in headline_of(summary).short


def test_one_headline_number_and_its_parts_everywhere(plan, tmp_path):
    mebibyte = 2**20
    parts = (("states and tapes", int(3.26 * mebibyte)), ("running", int(0.58 * mebibyte)))
    headline = Headline(sum(size for _, size in parts), 4 * mebibyte, parts)
    assert str(headline) == "3.84 of 4 MiB = 3.26 states and tapes + 0.58 running"
    assert str(Headline(5 * mebibyte, 4 * mebibyte, ())) == "5 MiB, over the limit of 4 MiB"
    words = str(headline_of(summary_of(plan)))
    assert words in Reader(plan.report(tmp_path / "plan.html").read_text()).text
    assert words.partition(" = ")[0] in text_report(plan)
    assert words in plan.report(tmp_path / "plan.svg").read_text()
    assert words in plan._repr_html_()


def test_every_number_has_its_unit(tmp_path):
    memory = remat.Memory(
        levels=[remat.Level("gpu", slots=6), remat.Level("host", "1 GiB", read="25 GB/s", write=1e-9)]
    )
    loop = remat.Loop(2000, state="1 MiB", tape="9 MiB", forward="2 ms", backward="4 ms")
    for planned in (remat.plan(loop, memory), remat.plan(loop, "64 MiB"), remat.plan(remat.Loop(2000), slots=40)):
        for text in (text_report(planned, tradeoff=True), str(planned)):
            assert not re.search(r"\de[+-]\d|time units|unit of the", text)
    assert "(read 25 GB/s, write 1 GB/s)" in text_report(remat.plan(loop, memory))
    assert "forward 2 ms, record 2 ms, backward 4 ms" in text_report(remat.plan(loop, memory))
    assert "step times (a step forward is 1)" in str(remat.plan(remat.Loop(2000), slots=40))


def test_what_is_compared_shares_the_limit_of_those_that_have_one(tmp_path):
    loop = remat.Loop(50, state="1 MiB", tape="9 MiB")
    inside, plain = remat.plan(loop, "64 MiB"), remat.plan(loop, slots=0, planner=SavePoints(()))
    assert remat.report(inside, plain, tmp_path / "x.svg").read_text().count("limit 64 MiB<") == 2
    assert remat.report(plain, plain, tmp_path / "x.svg", limit="9 MiB").read_text().count("limit 9 MiB<") == 2
    assert remat.report(plain, tmp_path / "x.svg").read_text().count("limit") == 0


def test_levels_below_the_device_are_drawn(tmp_path):
    memory = remat.Memory(levels=[remat.Level("gpu", slots=3), remat.Level("host", read=1e-9, write=1e-9)])
    planned = remat.plan(remat.Loop(40, state="1 MiB", tape="9 MiB"), memory)
    assert "states in other levels: host up to" in planned.report(tmp_path / "x.svg").read_text()
    assert 'class="levels"' in planned.report(tmp_path / "x.html").read_text()


def test_the_exact_claim_is_one_click_away(tmp_path):
    near = replace(remat.plan(remat.Loop(40), slots=5), claim=Claim(1.0036, "states only"))
    page = near.report(tmp_path / "x.html").read_text()
    assert "<summary>within 0.4 % of optimal</summary>at most 1.004x the bound within states only</details>" in page
    assert "within 0.4 % of optimal: at most 1.004x the bound" in " ".join(text_report(near).split())


def test_two_long_noisy_traces_fit_into_one_page(tmp_path):
    import random

    from remat.schedule import Trace
    from remat.schedule.events import Live, Totals
    from remat.schedule.trace_columns import Columns

    traces = []
    for seed in (0, 1):
        rng, columns = random.Random(seed), Columns("ram")
        for event in remat.plan(remat.Loop(4_000), slots=60).simulate():
            live = Live("ram", {"ram": rng.randrange(10**9)}, rng.randrange(10**9), 0)
            columns.append(event.op, rng.lognormvariate(-7, 1), live)
        traces.append(Trace(4_000, "ram", Totals.of(columns), columns, lambda _: (), measured=True))
    assert remat.report(*traces, tmp_path / "two.html").stat().st_size < 400_000


def test_text_obeys_no_terminal(plan, tmp_path):
    evil = "a\x1b[31mb\x07"
    data = plan.simulate().envelope() | {"device": evil, "always": {evil: 5}, "at_peak": [[evil, evil, 3]]}
    data["state"] = {evil: data["state"]["ram"]}
    trace = remat.Trace.from_json(json.dumps(data))
    text = remat.report(trace, tmp_path / "x.txt", title=evil, labels=[evil]).read_text()
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_failed_run_says_so_and_anonymously_no_more(tmp_path):
    class SecretError(Exception):
        pass

    def step(x, _):
        if x < 0.2:
            raise SecretError
        return np.sin(x) * 0.9, None

    with pytest.raises(SecretError), remat.profile() as run:
        grad(lambda x: remat.scan(step, x, length=40, slots=4)[0])(1.0)
    assert "stopped by SecretError" in run.report(tmp_path / "x.html").read_text()
    for form in ("html", "txt", "json"):
        text = run.report(tmp_path / f"y.{form}", anonymous=True).read_text()
        assert "SecretError" not in text


def test_what_is_wrong_with_the_path_shows_before_the_work(plan, tmp_path, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("the work was begun")

    monkeypatch.setattr(formats, "_summaries", never)
    for name in ("no/plan.html", "plan.doc"):
        with pytest.raises(remat.ReportError):
            plan.report(tmp_path / name)


def test_a_link_is_written_through(plan, tmp_path):
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    plan.report(tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text().startswith("<!doctype")


def test_times_that_are_next_to_nothing(tmp_path):
    loop = remat.Loop(9, forward=1e-320, record=0, backward=1e-310)
    remat.plan(loop, slots=3).report(tmp_path / "x.html")


def test_tips_of_a_run_in_slots_hold_for_slots():
    def ran(slots):
        with remat.profile() as run:
            grad(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=60, slots=slots)[0])(0.3)
        return run

    summary = summary_of(ran(6))
    assert summary.curve.unit == "slots"
    assert summary.curve.chosen.budget == 6
    for point in summary.curve.points[::6]:
        assert ran(point.budget).calls[0].trace.forward_steps == point.forward_steps
    assert any("may hold tapes" in tip for tip in summary.tips)
    most = text_report(remat.plan(remat.Loop(100), slots=100))
    assert "nothing in slots" in most


def test_a_profile_of_many_places_names_them_all_and_stays_small(tmp_path):
    code = "\n".join(
        f"grad(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length={20 + i}, slots=4)[0])(0.3)"
        for i in range(12)
    )
    with remat.profile() as run:
        exec(compile(code, "places.py", "exec"), {"grad": grad, "remat": remat, "np": np, "__name__": "places"})
    page = run.report(tmp_path / "many.html")
    assert page.stat().st_size < 400_000
    text = Reader(page.read_text()).text
    assert all(f"scan at places.py:{i}" in text for i in range(1, 13))
    data = json.loads(run.report(tmp_path / "many.json").read_text())
    assert len(data["tables"][0]["rows"]) == 12
    assert "places.py" not in run.report(tmp_path / "many.txt", anonymous=True).read_text()

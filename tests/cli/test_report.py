"""`remat report`, `remat compare` and the reports of other commands, as a person types them."""

import json

import autograd.numpy as np
import pytest
from autograd import grad

import remat
from remat.cli import main


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        try:
            status = main(words)
        except SystemExit as stop:
            status = stop.code
        out = capsys.readouterr()
        return status, out.out, out.err

    return call


@pytest.fixture
def files(tmp_path):
    plan = remat.plan(remat.Loop(60, state="1 MiB", tape="9 MiB"), "40 MiB")
    plan.save(tmp_path / "plan.json")
    plan.simulate().save(tmp_path / "trace.json")
    with remat.profile() as profile:
        grad(lambda x: remat.scan(lambda x, _: (np.sin(x), None), x, length=20, slots=4)[0])(0.3)
    profile.save(tmp_path / "profile.json")
    return tmp_path


@pytest.mark.parametrize("name", ["plan", "trace", "profile"])
def test_a_report_on_what_was_saved(run, files, name):
    status, out, err = run("report", f"{name}.json", "-o", "out.html")
    assert (status, out) == (0, "")
    assert "wrote out.html" in err
    assert (files / "out.html").read_text().startswith("<!doctype html>")
    status, out, _ = run("report", f"{name}.json")
    assert status == 0
    assert "What is the peak?" in out


def test_files_are_not_written_over_unless_forced(run, files):
    (files / "out.html").write_text("mine")
    status, _, err = run("report", "plan.json", "-o", "out.html")
    assert status == 2
    assert "--force" in err
    assert (files / "out.html").read_text() == "mine"
    assert run("report", "plan.json", "-o", "out.html", "--force")[0] == 0
    assert (files / "out.html").read_text() != "mine"


def test_a_comparison(run, files):
    status, out, _ = run("compare", "plan.json", "trace.json")
    assert status == 0
    assert "Side by side" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert run("compare", "plan.json", "trace.json", "profile.json", "-o", "all.html", "--title", "All of them")[0] == 0
    page = (files / "all.html").read_text()
    assert "<h1>All of them</h1>" in page
    assert page.count('class="view"') == 3


def test_anonymous_and_other_forms(run, files):
    status, _, _ = run("report", "profile.json", "-o", "x", "--form", "txt", "--anonymous", "--title", "t")
    assert status == 0
    assert "test_report" not in (files / "x").read_text()
    assert run("report", "plan.json", "-o", "x.chrome.json")[0] == 0
    assert json.loads((files / "x.chrome.json").read_text())["traceEvents"]


def test_open_shows_it_in_the_browser(run, files, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    assert run("report", "plan.json", "-o", "out.html", "--open")[0] == 0
    assert opened == [(files / "out.html").as_uri()]
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    assert "open out.html yourself" in run("report", "plan.json", "-o", "out.html", "--force", "--open")[2]


def test_plan_and_simulate_write_reports_and_traces(run, tmp_path):
    words = ["plan", "--steps", "50", "--slots", "4", "--report", "plan.html"]
    assert run(*words)[0] == 0
    assert (tmp_path / "plan.html").exists()
    assert run(*words)[0] == 2
    assert run("plan", "--steps", "50", "--slots", "4", "--report", "plan.doc")[0] == 2
    assert run("plan", "--steps", "unknown", "--slots", "4", "--report", "u.html")[0] == 2
    assert run("plan", "--steps", "50", "--slots", "4", "--save", "plan.json")[0] == 0
    status, _, err = run("simulate", "plan.json", "--save", "trace.json")
    assert status == 0
    assert "saved trace.json" in err
    assert (
        remat.Trace.load(tmp_path / "trace.json").forward_steps == remat.Plan.load(tmp_path / "plan.json").forward_steps
    )
    assert run("simulate", "plan.json", "--save", "trace.json")[0] == 2


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"remat": "loop", "version": 1}', '{"remat": "trace", "version": 1}', "nonsense"]
)
def test_files_that_cannot_be_shown(run, tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    for words in (("report", "x.json"), ("compare", "x.json", "x.json"), ("report", "x.json", "-o", "y.html")):
        status, out, err = run(*words)
        assert (status, out) == (2, "")
        assert err.startswith("remat: ")
    assert not (tmp_path / "y.html").exists()


def test_a_damaged_profile_is_one_clear_error(run, files):
    data = json.loads((files / "profile.json").read_text())
    call = data["calls"][0]
    plan, trace = call["plan"], call["trace"]
    turned = [line if not line.startswith("record") else "turn" for line in trace["ops"]]
    damages = [
        *({"plan": {"planner": "x"}}, {"plan": plan | {"claim": None}}, {"plan": plan | {"problem": 3}}),
        *([{"plan": plan | {"prediction": plan["prediction"] | {name: "<b>"}}} for name in ("advances", "peak")]),
        *({name: "abc"} for name in ("seconds", "steps", "site", "runs", "budget")),
        *({"site": call["site"] | {"line": "abc"}}, {"seconds": float("nan")}, {"trace": trace | {"ops": turned}}),
        {"trace": trace | {"at_peak": [["a", "b"]]}},
    ]
    for damage in ({"calls": 3}, {"calls": [{}]}, *({"calls": [call | damage]} for damage in damages)):
        (files / "bad.json").write_text(json.dumps(data | damage))
        status, _, err = run("report", "bad.json")
        assert status == 2
        assert "Traceback" not in err


def test_nothing_is_written_over_itself(run, files):
    before = (files / "plan.json").read_text()
    assert run("report", "plan.json", "-o", "plan.json", "--force")[0] == 2
    assert run("compare", "plan.json", "trace.json", "-o", "trace.json", "--force")[0] == 2
    assert (files / "plan.json").read_text() == before
    assert run("plan", "--steps", "9", "--slots", "2", "--save", "s.json", "--report", "s.json")[0] == 2
    assert not (files / "s.json").exists()
    assert run("plan", "--steps", "9", "--slots", "2", "--report", "no/s.html")[0] == 2


def test_data_goes_to_stdout_also_from_a_terminal(files):
    """`script` gives the command a terminal of its own for stderr; stdout goes into a file."""
    import shutil
    import subprocess
    import sys

    if shutil.which("script") is None:
        pytest.skip("there is no `script` to make a terminal with")
    command = f"{sys.executable} -m remat lstm --seq-len 24 --checkpoints 2 --hidden 3 --batch 2 > out.txt"
    subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, cwd=files, check=True)
    assert "loss:" in (files / "out.txt").read_text()


def test_words_that_make_no_sense(run, files):
    assert run("report", "no-such.json")[0] == 2
    assert run("report", "plan.json", "--open")[0] == 2
    assert run("report", "plan.json", "-o", "x.doc")[0] == 2
    assert run("compare", "plan.json")[0] == 2


def test_short_work_is_silent_in_a_pipe(run, files):
    assert run("sweep", "--steps", "50", "--slots", "3,4")[2] == ""
    assert run("simulate", "plan.json")[2] == ""


def test_bars_are_drawn_on_a_terminal():
    """`script` gives the command a terminal of its own; stdout goes elsewhere."""
    import shutil
    import subprocess
    import sys

    if shutil.which("script") is None:
        pytest.skip("there is no `script` to make a terminal with")
    command = f"{sys.executable} -m remat sweep --steps 1000 --state 10 --tape 90 --points 4 > /dev/null"
    done = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, text=True, check=True)
    assert "planning" in done.stdout

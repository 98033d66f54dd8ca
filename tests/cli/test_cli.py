"""The commands as a person types them: what goes where, and the exit status."""

import io
import json
import re
import subprocess
import sys
from functools import partial

import pytest

from remat import Chain, Loop, Plan, Stage, plan
from remat.cli import main


@pytest.fixture
def run(capsys):
    def call(*words):
        try:
            status = main(words)
        except SystemExit as stop:  # argparse
            status = stop.code
        out = capsys.readouterr()
        return status, out.out, out.err

    return call


def test_plan_prints_the_plan(run):
    status, out, err = run("plan", "--steps", "1000", "--slots", "31")
    assert (status, err) == (0, "")
    assert "3,439 step evaluations" in out
    assert out == str(plan(Loop(1000), slots=31)) + "\n"


def test_plan_takes_sizes_times_and_a_planner(run):
    words = "plan --steps 100 --state 1KiB --tape 9KiB --memory 64KiB --forward 20ms --record 0.03 --per-range 2us"
    status, out, _ = run(*words.split(), "--planner", "binomial")
    assert status == 0
    assert "state 1 KiB, tape 9 KiB" in out
    assert (
        run("plan", "--steps", "100", "--slots", "9", "--planner", "chunks", "--chunk", "7")[1].count(
            "ranges of 7 steps"
        )
        == 1
    )


def test_ops_go_to_stdout_and_the_plan_to_stderr(run):
    status, out, err = run("plan", "--steps", "20", "--slots", "3", "--ops")
    assert status == 0
    assert out == str(plan(Loop(20), slots=3).schedule) + "\n"
    assert "planner" in err


def test_json_is_a_whole_plan(run):
    _, out, _ = run("plan", "--steps", "20", "--slots", "3", "--json")
    assert Plan.from_json(out) == plan(Loop(20), slots=3)


def test_save_verify_simulate(run, tmp_path):
    path = str(tmp_path / "plan.json")
    words = ["plan", "--steps", "30", "--level", "ram,2slots", "--level", "disk,inf,2,2", "--save", path]
    assert run(*words)[0] == 0
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert "--force" in err
    assert run(*words, "--force")[0] == 0
    assert run("verify", path)[:2] == (0, "legal\n")
    assert run("verify", path, "--slots", "1")[0] == 1
    status, out, _ = run("simulate", path)
    assert status == 0
    assert "disk" in out
    _, out, _ = run("simulate", path, "--json")
    assert json.loads(out)["seconds"] == Plan.load(path).seconds
    _, out, _ = run("simulate", path, "--events")
    assert len(out.splitlines()) == 1 + len(Plan.load(path).schedule.ops())


def test_text_files_and_stdin(run, tmp_path, monkeypatch):
    path = tmp_path / "ops.txt"
    path.write_text(str(plan(Loop(20), slots=3).schedule))
    assert run("verify", str(path), "--steps", "20", "--slots", "3")[0] == 0
    status, out, _ = run("verify", str(path), "--steps", "20", "--slots", "2")
    assert status == 1
    assert "R9" in out
    status, _, err = run("verify", str(path), "--slots", "2")
    assert status == 2
    assert "--steps" in err
    assert run("verify", str(path), "--steps", "20")[0] == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO(path.read_text()))
    assert run("simulate", "-", "--steps", "20", "--state", "1MiB")[0] == 0


def test_a_pipe_is_read_once(tmp_path):
    path = tmp_path / "ops.txt"
    path.write_text(str(plan(Loop(20), slots=3).schedule))
    code = f"{sys.executable} -m remat verify <(cat {path}) --steps 20 --slots 3"
    assert subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout == "legal\n"


def test_a_saved_plan_brings_what_is_not_given_and_may_be_illegal(run, tmp_path):
    path = tmp_path / "plan.json"
    plan(Loop(20), slots=3).save(path)
    assert run("verify", str(path), "--steps", "20")[0] == 0
    path.write_text("\n" * 100 + path.read_text().replace("advance 0 ", "advance 1 "))
    status, out, _ = run("verify", str(path))
    assert status == 1
    assert "R2" in out


def test_sweep_and_planners(run):
    status, out, _ = run("sweep", "--steps", "100", "--slots", "1,3,10")
    assert status == 0
    assert "590" in out
    _, out, _ = run("sweep", "--steps", "100", "--state", "1", "--tape", "1", "--memory", "16,1KiB", "--json")
    assert [point["budget"] for point in json.loads(out)["points"]] == [16, 1024]
    assert run("sweep", "--steps", "50", "--state", "1", "--tape", "1", "--points", "5")[0] == 0
    assert "binomial" in run("planners")[1]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("plan --steps 100 --state 1 --tape 1 --memory 3", 1),
        ("plan --steps 100 --slots 0", 1),
        ("sweep --steps 100 --state 1 --tape 1 --memory 3", 1),
        ("plan --steps 100", 2),
        ("plan --steps 100 --slots 3 --memory 3", 2),
        ("plan --slots 3", 2),
        ("plan --steps ten --slots 3", 2),
        ("plan --steps -1 --slots 3", 2),
        ("plan --steps 10 --slots 3.5", 2),
        ("plan --steps 10 --memory plenty", 2),
        ("plan --steps 10 --memory -5", 2),
        ("plan --steps 10 --memory=--5", 2),
        ("plan --steps 10 --memory ²", 2),
        ("plan --steps 10 --state ² --slots 3", 2),
        ("sweep --steps 10 --slots ²", 2),
        ("plan --slots 3 --steps 1" + "0" * 400, 2),
        ("plan --steps 10 --slots 3 --planner magic", 2),
        ("plan --steps 10 --slots 3 --planner binomial --chunk 3", 2),
        ("plan --steps 10 --slots 3 --forward soon", 2),
        ("plan --steps 10 --level ram", 2),
        ("plan --steps 10 --level ram,3slots,1", 2),
        ("plan --steps 10 --level tape,3slots", 2),
        ("plan --steps unknown --slots 3 --ops", 2),
        ("plan --steps unknown --slots 3 --save x.json", 2),
        ("sweep --steps 10 --points 1", 2),
        ("sweep --steps 10 --slots a,b", 2),
        ("verify no-such-file --steps 3 --slots 3", 2),
        ("simulate . --steps 3", 2),
        ("dance", 2),
        ("plan --steps 10 --slots 1e-3", 2),
        ("plan --steps 1.5 --slots 3", 2),
        ("lstm --framework abacus", 2),
    ],
)  # fmt: skip
def test_no_is_1_and_nonsense_is_2_and_never_a_traceback(run, words, status):
    found, out, err = run(*words.split())
    assert (found, out) == (status, "")
    assert err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "content",
    [
        *("", "nonsense", "{", "[" * 10**5, '{"a":' * 10**5, "9" * 10**6, "advance 0 1\nadvance 1", "\x00\x01\x02"),
        *('{"remat": "plan", "version": 7}', '{"remat": "loop"}', '{"remat": "plan", "version": 1}'),
        '{"remat":"plan","version":1,"ops":3}',
    ],
)
def test_files_that_are_no_schedule(run, tmp_path, content):
    path = tmp_path / "file"
    path.write_text(content)
    for words in ((), ("--steps", "3", "--slots", "3")):
        for command in ("verify", "simulate"):
            status, _, err = run(command, str(path), *words)
            assert status in (1, 2)
            assert "Traceback" not in err


@pytest.mark.parametrize("command", [(), ("plan",), ("sweep",), ("verify",), ("simulate",), ("planners",)])
def test_help_starts_with_the_usage_and_ends_with_an_example(run, command):
    status, out, _ = run(*command, "--help")
    assert status == 0
    assert out.startswith(f"usage: remat{''.join(f' {word}' for word in command)} ")
    assert re.search(r"\nexample: remat .*\n(.*\n)?$", out)


def test_remat_alone_prints_its_help(run):
    assert run() == run("--help")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("paln --steps 3 --slots 2", "did you mean plan?"),
        ("plan --stesp 3 --slots 2", "did you mean --steps?"),
        ("plan --steps 3 --slots=2 --planer=auto", "did you mean --planner?"),
        ("plan --steps 3 --slots 2 --planner binomail", "did you mean binomial?"),
        ("report plan.json -o x.html --form htlm", "did you mean html?"),
        ("lstm --framework toch", "did you mean torch?"),
        ("report plna.json", "there is no file plna.json (did you mean plan.json?)"),
    ],
)
def test_typos_get_a_suggestion(run, tmp_path, monkeypatch, words, meant):
    monkeypatch.chdir(tmp_path)
    plan(Loop(9), slots=3).save("plan.json")
    status, out, err = run(*words.split())
    assert (status, out) == (2, "")
    assert meant in err


@pytest.mark.parametrize("command", ["report", "verify", "simulate", "compare x.json", "plan --slots 3 --problem"])
def test_a_missing_file_is_said_to_be_missing(run, command):
    status, out, err = run(*command.split(), "nowhere.json")
    assert (status, out) == (2, "")
    assert re.search(r"there is no file (nowhere|x)\.json", err)


@pytest.mark.parametrize(
    "words", ["plan --memory 64MiB", "plan --level ram,64MiB --state 1MiB", "sweep", "sweep --memory 9"]
)
def test_a_budget_in_bytes_asks_for_the_sizes_of_a_step(run, words):
    status, out, err = run(*words.split(), "--steps", "100")
    assert (status, out) == (2, "")
    assert "--tape" in err
    assert ("give --state" in err) == ("--state" not in words)


def test_numbers_as_people_write_them(run):
    expected = run("plan", "--steps", "1000", "--slots", "2000")
    for steps, slots in (("1e3", "2e3"), ("1k", "2K"), ("1_000", "2.0k"), ("0.001M", "2000")):
        assert run("plan", "--steps", steps, "--slots", slots) == expected
    sizes = ["plan", "--steps", "10", "--tape", "9k", "--memory", "1e5"]
    assert run(*sizes, "--state", "1e3") == run(*sizes, "--state", "1k")


def test_words_wrap_on_a_terminal(monkeypatch, capsys):
    from remat.cli import words

    line = "planner  " + "words that say much and take room " * 6 + "/a/very/long/path-with-dashes/" + "x" * 60
    words.show(line, indent=9)
    assert capsys.readouterr().out == line + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    words.show(line, indent=9)
    first, *rest = capsys.readouterr().out.splitlines()
    assert len(first) <= 60
    assert all(each.startswith(" " * 9) for each in rest)
    assert [first, *rest][-1].endswith("/a/very/long/path-with-dashes/" + "x" * 60)


def test_long_work_without_a_terminal_says_how_far_it_is(run, monkeypatch):
    monkeypatch.setattr("remat.cli.progress_bars.EVERY", 0.0)
    err = run("sweep", "--steps", "50", "--slots", "3,4,5,6")[2]
    assert re.search(r"^remat: planning, 50%, \d+ s so far$", err, re.MULTILINE)


def test_bars_have_names_and_percent(monkeypatch):
    from rich.console import Console

    from remat.cli.progress_bars import Bars

    written = io.StringIO()
    terminal = partial(Console, file=written, force_terminal=True, width=100)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal())
    with Bars() as bars:
        bars.say("training, in turns", 4, part="this gradient")
        bars.step()
        bars.update(3, 10)
    assert re.search(r"training, in turns.* 25%", written.getvalue())
    assert re.search(r"this gradient.* 30%", written.getvalue())


def test_what_cannot_be_written_is_said_before_any_work(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    monkeypatch.setattr("remat.cli.lstm.model_on", None)
    monkeypatch.setattr("remat.cli.demo._compare", None)
    monkeypatch.setattr("remat.cli.plan.make_plan", None)
    for words in ("plan --steps 9 --slots 3 --report x.png", "lstm --report x.png", "demo --output x.png"):
        status, out, err = run(*words.split())
        assert (status, out) == (2, "")
        assert "resvg_py" in err
    assert "there is no folder" in run("plan", "--steps", "9", "--slots", "3", "--save", "no/x.json")[2]
    (tmp_path / "remat-demo.html").touch()
    assert "--force" in run("demo")[2]


def test_a_reader_that_goes_away_is_no_traceback():
    code = f"{sys.executable} -m remat plan --steps 200000 --slots 50 --json | head -2"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == '{\n "remat": "plan",\n'
    assert done.stderr == ""


def test_simulating_an_illegal_schedule_is_a_no(run, tmp_path):
    (tmp_path / "ops.txt").write_text("advance 1 2")
    status, _, err = run("simulate", str(tmp_path / "ops.txt"), "--steps", "3")
    assert status == 1
    assert "R2" in err


def test_what_would_be_ignored_beside_a_saved_problem_is_refused(run, tmp_path):
    Loop(9, state=4, tape=8).save(tmp_path / "loop.json")
    assert run("plan", "--problem", str(tmp_path / "loop.json"), "--slots", "3")[0] == 0
    for words in (("--state", "1MiB"), ("--per-range", "0"), ("--restartable",)):
        status, out, err = run("plan", "--problem", str(tmp_path / "loop.json"), "--slots", "3", *words)
        assert (status, out) == (2, "")
        assert f"{words[0]}: sizes and times of a loop of --steps N" in err
    plan(Loop(9), slots=3).save(tmp_path / "plan.json")
    assert run("verify", str(tmp_path / "plan.json"))[0] == 0
    assert "--tape" in run("verify", str(tmp_path / "plan.json"), "--tape", "3")[2]


@pytest.mark.parametrize("command", ["verify", "simulate", "report"])
def test_a_file_of_another_kind_is_named(run, tmp_path, command):
    Chain([Stage()]).save(tmp_path / "chain.json")
    status, _, err = run(command, str(tmp_path / "chain.json"))
    assert status == 2
    assert "chain.json" in err
    assert "'chain'" in err


def test_a_saved_chain_is_planned_swept_verified_simulated_and_reported(run, tmp_path):
    stages = [Stage(2.0, 4.0, output=1024, tape=4096 * (i != 5), name=f"step block {i}") for i in range(6)]
    chain, planned, ops = (str(tmp_path / name) for name in ("chain.json", "plan.json", "ops.txt"))
    Chain([*stages, Stage(output=8, functions=2, repeatable=False)]).save(chain)
    status, out, _ = run("plan", "--problem", chain, "--memory", "20KiB", "--save", planned)
    assert (status, "7 stages in ram 20 KiB" in out, "stage evaluations" in out) == (0, True, True)
    assert Plan.load(planned).problem == Chain.load(chain)
    status, out, _ = run("sweep", "--problem", chain, "--points", "3")
    assert (status, "forward stages" in out) == (0, True)
    (tmp_path / "ops.txt").write_text(run("plan", "--problem", chain, "--memory", "20KiB", "--ops")[1])
    assert run("verify", planned)[0] == run("verify", ops, "--problem", chain, "--memory", "20KiB")[0] == 0
    assert "R9" in run("verify", ops, "--problem", chain, "--memory", "8KiB")[1]
    assert "(0 B)" not in run("simulate", ops, "--problem", chain)[1]
    status, out, _ = run("report", planned)
    assert (status, "at stage" in out, "How often stages run" in out, "(step block" in out) == (0, True, True, True)
    assert "more would remove" in " ".join(out.split())  # what more memory would buy is planned
    assert " steps" not in out
    status, _, err = run("plan", "--problem", chain, "--memory", "2KiB")
    assert (status, "while stage" in err) == (1, True)

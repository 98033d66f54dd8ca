"""`remat lstm --framework keras`: the options and messages of `remat lstm`, each backend in a process of its own."""

import importlib.util
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest

from remat.cli import main
from remat.errors import InfeasibleError
from remat.planners import plan
from remat.problem import Chain, Option, Stage
from remat.units import to_bytes

SIZES = ["--seq-len", "32", "--hidden", "32", "--batch", "16", "--rounds", "1"]


def run(backend, *words, folder, statuses=(0,)):
    for package in ("keras", backend):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-m", "remat", "lstm", "--framework", "keras", "--backend", backend, *SIZES, *words]
    result = subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert result.returncode in statuses, result.stderr[-3000:]
    return result.stdout, result.stderr


def values(out, name):
    return re.findall(rf"^{name}: +(.*)$", out, re.MULTILINE)


def sizes(out, name):
    return [to_bytes(text.partition(",")[0], name) for text in values(out, name)]


@pytest.mark.full
def test_all_options_on_pytorch(tmp_path):
    words = ["--memory", "900KiB", "--checkpoints", "3", "--compare", "--optimal", "--report", "all.html"]
    out, err = run("torch", *words, folder=tmp_path)
    assert len(values(out, "loss")) == 4
    assert len(set(values(out, "loss"))) == 1
    assert values(out, "gradients") == 3 * ["equal, bit for bit"]
    plain, inside, cut, placed = sizes(out, "peak live memory")
    given, chosen = sizes(out, "budget")
    assert given == 900 * 1024
    assert inside <= given < plain
    assert cut < 0.35 * plain
    assert placed <= chosen
    assert [text.partition(" of")[0] for text in values(out, "forward steps")][::2] == ["32, 0", "56, 24"]
    assert re.search(r"gain: +[\d.]+ times less memory than even save points", out)
    assert "wrote all.html" in err
    page = (tmp_path / "all.html").read_text()
    assert page.count('class="view"') == 4
    assert ">limit 900 KiB</text>" in page


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_each_backend(tmp_path, backend):
    out, _ = run(backend, "--checkpoints", "4", "--compare", folder=tmp_path)
    assert "can't be evenly divided" in out
    [agreement] = values(out, "gradients")
    assert re.match(r"equal, bit for bit|equal but for \de-1[4-9] of the largest", agreement)
    plain, cut = sizes(out, "peak live memory")
    assert cut < 0.6 * plain
    assert ("estimated" in out) == (backend == "tensorflow")
    # XLA places buffers by itself: where they take more than the budget, the command says so, and fails.
    statuses = (0, 1) if backend == "jax" else (0,)
    out, err = run(backend, "--memory", "900KiB", "--report", "inside.txt", folder=tmp_path, statuses=statuses)
    [peak] = sizes(out, "peak live memory")
    assert ("does not hold" in err) == bool(values(out, "over budget")) == (peak > 900 * 1024)
    assert re.fullmatch(r"900 KiB, which the planner was given", values(out, "budget")[0])
    assert "predicted" in values(out, "ratio")[0]
    assert (tmp_path / "inside.txt").exists()


class Measured:
    """Stands for the model: three sections that a plan runs in 900 bytes, and a gradient that takes 1200."""

    section_lengths = (2, 2, 2)
    result_bytes = 100

    def __init__(self, steps, hidden, batch, bounds, memory=None):
        stage = Stage(1.0, output=100, options=[Option(400, 1.0, 2.0)])
        found = plan(Chain([stage] * 3, 100), 900)
        self.model = SimpleNamespace(remat_graph=SimpleNamespace(plans=[found]))

    def run(self):
        return 0.5, {}

    gradient = run

    def peak(self):
        return 1200


class PlacedByXla(Measured):
    """Takes three times the bytes that are planned; no plan takes less than 150."""

    asked: ClassVar = []

    def __init__(self, steps, hidden, batch, bounds, memory=None):
        self.asked.append(memory)
        self.memory = memory - self.result_bytes
        tapes = max(self.memory, 150), 0, 0
        stages = [Stage(1.0, output=0, options=[Option(tape, 1.0, 2.0)]) for tape in tapes]
        self.model = SimpleNamespace(remat_graph=SimpleNamespace(plans=[plan(Chain(stages, 0), 10_000)]))

    def gradient(self):
        if self.memory < 150:
            raise InfeasibleError("no plan fits", 150, "bytes")
        return 0.5, {}

    def peak(self):
        return 3 * (self.memory + self.result_bytes)


@pytest.mark.parametrize(
    ("memory", "status", "asked"),
    [("900", 0, [900, 300]), ("750", 0, [750, 250]), ("600", 1, [600, 200, 250, 200])],
)
def test_a_plan_is_tightened_where_the_backend_takes_more(capsys, monkeypatch, memory, status, asked):
    PlacedByXla.asked.clear()
    monkeypatch.setattr("remat.cli.lstm.keras_run.model_class", lambda backend: PlacedByXla)
    words = ["--framework", "keras", "--backend", "jax", "--seq-len", "6", "--rounds", "1", "--memory", memory]
    assert main(["lstm", *words]) == status
    out, err = capsys.readouterr()
    assert PlacedByXla.asked == asked
    assert sizes(out, "peak live memory") == [3 * min(each for each in asked if each >= 250)]
    assert ("give that much" in err) == bool(status)


def test_too_little_memory_names_what_the_model_takes(capsys, monkeypatch):
    monkeypatch.setattr("remat.cli.lstm.keras_run.model_class", lambda backend: PlacedByXla)
    assert main(["lstm", "--framework", "keras", "--seq-len", "6", "--memory", "200"]) == 1
    said = "--memory 200 B is too little: this LSTM takes 250 B at least, of which 100 B are its gradients"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("memory", "status"), [("1000", 1), ("1200", 0)])
def test_a_peak_above_the_budget_is_said_and_fails(capsys, monkeypatch, memory, status):
    monkeypatch.setattr("remat.cli.lstm.keras_run.model_class", lambda backend: Measured)
    words = ["--framework", "keras", "--backend", "jax", "--seq-len", "6", "--rounds", "1", "--memory", memory]
    assert main(["lstm", *words]) == status
    out, err = capsys.readouterr()
    over = ["by 200 B: the plan and gradients take 1000 B"] if status else []
    assert values(out, "over budget") == over
    assert ("--memory 1000 B does not hold: a gradient takes 1.18 KiB on jax" in err) == bool(status)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--backend", "jax"], "--framework keras"),
        (["--framework", "keras", "--backend", "abacus"], "torch, jax, tensorflow"),
        (["--framework", "keras", "--checkpoints", "0", "--optimal"], "at least 1"),
        (["--framework", "keras", "--seq-len", "8", "--checkpoints", "8"], "8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_words_that_make_no_sense(capsys, words, said):
    assert main(["lstm", *words]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert said in err


def test_without_keras_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    monkeypatch.setenv("KERAS_BACKEND", "torch")  # which the command sets: it is put back afterwards
    assert main(["lstm", "--framework", "keras", *SIZES]) == 2
    assert "pip install keras" in capsys.readouterr().err

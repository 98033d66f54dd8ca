"""`remat lstm --framework keras`: the options and messages of `remat lstm`, each backend in a process of its own."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from remat.cli import main
from remat.units import to_bytes

SIZES = ["--seq-len", "32", "--hidden", "32", "--batch", "16", "--rounds", "1"]


def run(backend, *words, folder):
    for package in ("keras", backend):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-m", "remat", "lstm", "--framework", "keras", "--backend", backend, *SIZES, *words]
    result = subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
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
    out, _ = run(backend, "--memory", "900KiB", "--report", "inside.txt", folder=tmp_path)
    assert re.fullmatch(r"900 KiB, which the planner was given", values(out, "budget")[0])
    assert "predicted" in values(out, "ratio")[0]
    assert (tmp_path / "inside.txt").exists()


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
    assert "pip install 'remat[keras]'" in capsys.readouterr().err

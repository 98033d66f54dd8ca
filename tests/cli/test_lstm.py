"""`remat lstm`: the same loss and gradients for every number of save points, in less memory."""

import itertools
import os
import re
import sys

import jax
import numpy
import pytest

import remat
from remat.cli import main
from remat.cli.lstm.jax_model import JaxLstm
from remat.cli.lstm.model import Lstm
from remat.cli.lstm.torch_model import TorchLstm
from remat.frameworks.jax.loops import backend
from remat.planners import SavePoints
from remat.units import to_bytes

SMALL = ["--hidden", "4", "--batch", "2"]

each_framework = pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
each_model = pytest.mark.parametrize("model", [Lstm, TorchLstm, JaxLstm])


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        try:
            status = main(["lstm", *SMALL, "--rounds", "1", *words])
        except SystemExit as stop:
            status = stop.code
        out = capsys.readouterr()
        return status, out.out, out.err

    return call


@pytest.fixture
def emitters_of_users(monkeypatch):
    """Driven loops of JAX are compiled as outside of tests, which do without the emitters that take XLA the longest."""
    options = {"xla_cpu_use_fusion_emitters": True} if "fusion_emitters" in os.environ.get("XLA_FLAGS", "") else {}
    for name, static in (("advance", 0), ("advance_donated", 0), ("record", 0), ("vjp", (0, 1))):
        function = getattr(backend, f"_jit_{name}").__wrapped__
        monkeypatch.setattr(backend, f"_jit_{name}", jax.jit(function, static_argnums=static, compiler_options=options))


def number(out, name):
    return re.findall(rf"^{name}: +(.*?)(?: of| for|$)", out, re.MULTILINE)


@each_framework
def test_it_prints_loss_peak_ratio_and_time(run, framework):
    status, out, _ = run("--seq-len", "64", "--checkpoints", "3", "--framework", framework)
    assert status == 0
    for name in ("loss", "peak live memory", "ratio", "time"):
        assert number(out, name)
    assert "evenly" not in out
    assert number(out, "forward steps") == ["112, 48"]
    assert len(number(out, "allocated")) == (framework == "torch")


def test_a_length_that_does_not_divide_goes_on(run):
    status, out, _ = run("--seq-len", "50", "--checkpoints", "8")
    assert status == 0
    assert "can't be evenly divided" in out
    assert "loss:" in out


@each_framework
def test_a_comparison_writes_both_charts(run, tmp_path, framework):
    words = ["--seq-len", "256", "--checkpoints", "7", "--compare", "--framework", framework]
    status, out, err = run(*words, "--report", "both.html")
    assert status == 0
    first, second = (to_bytes(text, "peak") for text in number(out, "peak live memory"))
    assert second < first / 2
    assert len(set(number(out, "loss"))) == 1
    if framework == "jax":  # XLA adds up a range of steps in an order of its own
        assert re.search(r"equal, bit for bit|equal but for \de-1[4-9] of the largest", out)
    else:
        assert "equal, bit for bit" in out
    assert "wrote both.html" in err
    assert (tmp_path / "both.html").read_text().count('class="view"') == 2
    assert run("--seq-len", "16", "--report", "both.html")[0] == 2


@each_framework
def test_the_planner_places_them_better(run, framework):
    status, out, _ = run("--seq-len", "200", "--checkpoints", "3", "--optimal", "--framework", framework)
    assert status == 0
    gain = float(re.search(r"gain: +([\d.]+) times less memory", out)[1])
    assert gain > 1.5
    assert_inside_its_budget(out, framework)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_planner_runs_at_most_a_tenth_more_steps(run, framework):
    # Steps so small that results and gradients are a large part of the budget.
    _, out, _ = run("--seq-len", "700", "--checkpoints", "9", "--hidden", "16", "--batch", "4", "--rounds", "1",
                    "--optimal", "--framework", framework)  # fmt: skip
    assert float(re.search(r"for ([+-][\d.]+)% forward steps", out)[1]) <= 10.0
    assert_inside_its_budget(out, framework)


def assert_inside_its_budget(out, framework):
    budget = to_bytes(number(out, "budget")[0].partition(",")[0], "budget")
    for name in ("peak live memory", "allocated"):
        measured = [to_bytes(text.split(" at")[0], name) for text in number(out, name)]
        assert all(each <= budget for each in measured[-1:])
        assert measured if name == "peak live memory" or framework == "torch" else not measured


@pytest.mark.parametrize("framework", ["numpy", "torch"])  # where the tape of a range has bytes of its own
def test_the_planner_stays_inside_its_budget(run, framework):
    size = ["--seq-len", "150", "--checkpoints", "5", "--hidden", "16", "--batch", "8"]
    assert_inside_its_budget(run(*size, "--optimal", "--framework", framework)[1], framework)


@pytest.mark.parametrize("framework", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.full)])
def test_a_budget_is_kept_and_drawn_beside_what_breaks_it(run, tmp_path, framework):
    words = ["--seq-len", "120", "--memory", "90KiB", "--compare", "--framework", framework]
    status, out, _ = run(*words, "--report", "limit.html")
    assert status == 0
    assert number(out, "budget") == ["90 KiB, which the planner was given"]
    assert_inside_its_budget(out, framework)
    page = (tmp_path / "limit.html").read_text()
    assert page.count(">limit 90 KiB</text>") == 2  # in both charts


def test_without_checkpoints(run):
    status, out, _ = run("--seq-len", "32", "--checkpoints", "0")
    assert status == 0
    assert number(out, "forward steps") == ["32, 0"]


def test_what_pytorch_allocates_is_what_is_live_and_little_more(run):
    _, out, _ = run("--seq-len", "256", "--checkpoints", "7", "--framework", "torch")
    live, allocated = (
        to_bytes(number(out, name)[0].split(" at")[0], name) for name in ("peak live memory", "allocated")
    )
    assert 0.9 * live < allocated < 1.2 * live


@each_model
@pytest.mark.usefixtures("emitters_of_users")
def test_the_same_loss_and_gradients_for_every_number_of_save_points(model):
    model = model(60, 5, 3)
    expected = None
    for count in (0, 4, 59) if isinstance(model, JaxLstm) else (0, 1, 3, 4, 7, 59):  # JAX compiles each anew
        positions = tuple(remat.save_points(60, count))
        plan = remat.plan(remat.Loop(60), slots=count, planner=SavePoints(positions))
        value, gradient = model.gradient(plan)
        expected = expected or (value, gradient)
        assert value == expected[0]
        for key in gradient:
            close = 1e-14 * numpy.max(numpy.abs(expected[1][key])) if isinstance(model, JaxLstm) else 0.0
            numpy.testing.assert_allclose(gradient[key], expected[1][key], rtol=0.0, atol=close)


@pytest.mark.parametrize("other", [TorchLstm, JaxLstm])
def test_all_frameworks_give_the_same_loss_and_gradients(other):
    plan = remat.plan(remat.Loop(60), slots=5)
    (value, gradient), (same, found) = (model(60, 5, 3).gradient(plan) for model in (Lstm, other))
    assert same == pytest.approx(value, rel=1e-13)
    assert set(found) == set(gradient)
    for key in gradient:
        assert found[key].dtype == numpy.float64
        numpy.testing.assert_allclose(found[key], gradient[key], rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_without_the_framework_it_says_what_to_install(run, monkeypatch, framework):
    monkeypatch.setitem(sys.modules, framework, None)
    status, out, err = run("--framework", framework, "--seq-len", "16", "--checkpoints", "1")
    assert (status, out) == (2, "")
    assert f"pip install {framework}" in err


def test_save_points():
    assert remat.save_points(2048, 7) == [256, 512, 768, 1024, 1280, 1536, 1792]
    assert remat.save_points(10, 0) == []
    assert remat.save_points(10, 9) == list(range(1, 10))
    for steps, count in ((512, 8), (100, 6), (7, 3)):
        edges = [0, *remat.save_points(steps, count), steps]
        sizes = [b - a for a, b in itertools.pairwise(edges)]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= 1
    for steps, count in ((10, 10), (0, 1), (5, -1), (2.5, 1)):
        with pytest.raises(remat.ProblemError):
            remat.save_points(steps, count)


@pytest.mark.parametrize(
    "words",
    [
        *(["--framework", "abacus"], ["--seq-len", "0"]),
        *(["--seq-len", "8", "--checkpoints", "8"], ["--checkpoints", "-1"], ["--hidden", "0"]),
        *(["--checkpoints", "0", "--optimal"], ["--report", "x.doc"], ["--memory", "much"]),
    ],
    ids=" ".join,
)
def test_words_that_make_no_sense(run, words):
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert err


def test_too_little_memory_is_said_of_what_was_given(run):
    status, _, err = run("--seq-len", "20", "--memory", "1KiB")
    assert status == 1
    assert re.search(r"--memory 1 KiB is too little: this LSTM takes [\d.]+ KiB at least, of which", err)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_an_interrupted_run_leaves_a_report(run, tmp_path, monkeypatch, framework):
    from remat.cli.lstm import model as module

    calls, cell = itertools.count(1), module.lstm_cell  # an iterator: a list would be put back after a recomputation

    def interrupted(*args):
        if next(calls) == 130:
            raise KeyboardInterrupt
        return cell(*args)

    monkeypatch.setattr(module, "lstm_cell", interrupted)
    status, _, err = run("--seq-len", "64", "--checkpoints", "3", "--report", "partial.html", "--framework", framework)
    assert status == 130
    assert "wrote partial.html" in err
    assert "stopped by KeyboardInterrupt" in (tmp_path / "partial.html").read_text()


def test_an_interrupted_run_on_jax_leaves_a_report(run, tmp_path, monkeypatch):
    from remat.cli.progress_bars import Bars

    count = [0]

    def interrupted(self, done, total):
        ours = total == 176  # 112 steps forward and 64 back: Python sees nothing of them on JAX, but this
        count[0] += ours
        if ours and count[0] == 12:
            raise KeyboardInterrupt

    monkeypatch.setattr(Bars, "update", interrupted)
    status, _, err = run("--seq-len", "64", "--checkpoints", "3", "--report", "partial.html", "--framework", "jax")
    assert status == 130
    assert "wrote partial.html" in err
    assert "stopped by KeyboardInterrupt" in (tmp_path / "partial.html").read_text()

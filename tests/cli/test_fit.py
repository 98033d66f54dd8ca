"""`remat fit`: a model in a file of the user's, planned for a budget, run plainly and by the plan."""

import pytest

from remat import Plan
from remat.cli import main

torch = pytest.importorskip("torch")

PROGRAM = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(x)))

def make_model():
    return nn.Sequential(*[Block(16) for _ in range(6)])

def make_batch():
    return torch.randn(32, 16)

def loss(y):
    return y.square().mean()
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def fit(program, *options):
    functions = (f"{program}:make_model", "--sample", f"{program}:make_batch", "--loss", f"{program}:loss")
    return main(["fit", *functions, *options])


def test_a_model_is_planned_run_and_saved(program, tmp_path, capsys):
    saved = tmp_path / "plan.json"
    assert fit(program, "--memory", "60 KiB", "--sweep", "--save", str(saved)) == 0
    out = capsys.readouterr().out
    assert "kept in part" in out or "recomputed" in out
    [plain] = [line for line in out.splitlines() if line.startswith("plainly")]
    [planned] = [line for line in out.splitlines() if line.startswith("by the plan")]
    assert plain.count("KiB") == planned.count("KiB") == 2
    plan = Plan.load(saved)
    assert plan.peak <= 60 * 1024
    assert plan.problem.stages[1].name == "0"


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        (["--memory", "1 KiB"], 1, "is too little for this model with float32 [32, 16]: it needs"),
        (["--memory", "60 KiB", "--blocks", "nowhere"], 2, "'nowhere' is not a module of Sequential"),
        (["--memory", "much"], 2, "memory"),
    ],
)
def test_what_cannot_be_done_is_said(program, capsys, options, status, says):
    assert fit(program, *options) == status
    assert says in capsys.readouterr().err


def test_files_and_names_that_are_not_there_are_named(program, capsys):
    assert main(["fit", "nowhere.py:make_model", "--sample", f"{program}:make_batch", "--memory", "1 MiB"]) == 2
    assert "there is no file nowhere.py" in capsys.readouterr().err
    assert main(["fit", f"{program}:model", "--sample", f"{program}:make_batch", "--memory", "1 MiB"]) == 2
    assert "has no function model; it has Block, make_model, make_batch, loss" in capsys.readouterr().err


def test_a_sample_that_the_model_does_not_take(program, capsys):
    program.write_text(PROGRAM.replace("torch.randn(32, 16)", "torch.randn(32, 15)"))
    assert fit(program, "--memory", "60 KiB") == 2
    assert "does not run on what" in capsys.readouterr().err

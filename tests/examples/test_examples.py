"""Every example runs and finds what it says; each asserts that its gradients are exact or its fit succeeds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_the_documented_examples_are_there():
    numpy, torch = {"rnn.py", "lstm_memory.py", "ode.py"}, {"torch_lstm.py", "torch_ode.py", "torch_dropout_rnn.py"}
    assert numpy | torch <= {example.name for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example(example):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "agree to" in done.stdout

"""Keras models with save points train as those without: the table of cases on every backend.

Each backend runs in a process of its own, since Keras reads KERAS_BACKEND when it is imported; TensorFlow is optional.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")

HERE = Path(__file__).parent
BACKENDS = ("torch", "jax", "tensorflow")
# Largest difference of any variable of model and optimiser after 8 steps of `fit`. XLA and TensorFlow fuse operations
# in other ways where some of them run again; what is fused in bfloat16 is rounded at other places.
TOLERANCE = {"torch": 0.0, "jax": 3e-7, "tensorflow": 2e-6}
SPECIAL = {
    ("tensorflow", "mixed_precision"): 5e-3,
    **{("jax", case): 0.0 for case in ("dense", "dropout", "batch_norm", "mixed_precision")},
    **{(backend, "shared"): 1e-6 for backend in BACKENDS},
}
REFUSED = {("jax", "unseeded_draws")}  # by Keras itself
CASES = [
    "dense",
    "dropout",
    "batch_norm",
    "mixed_precision",
    "skip",
    "regularizers",
    "masks",
    "towers",
    "shared",
    "nested",
    "sequential",
    "nested_structures",
    "recurrent_dropout",
    "stateful",
    "assigned_weights",
    "frozen",
    "foreign_variable",
    "own_train_step",
    "unseeded_draws",
]
QUICK = {
    "torch": ["dropout", "batch_norm", "masks", "towers"],
    "jax": ["dropout"],
    "tensorflow": [],
}  # `make test`


def run(backend, *arguments, program="keras_program.py", **environment):
    """What the program prints, as JSON."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    # Without the flags of this suite: XLA's older emitters round batch statistics in another way in a segment.
    flags = {"XLA_FLAGS": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    variables = {**os.environ, "KERAS_BACKEND": backend, **flags, **environment}
    command = [sys.executable, str(HERE / program), *arguments]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def check(backend, cases):
    wrong = {}
    for case, found in run(backend, *cases).items():
        close = found["difference"] <= SPECIAL.get((backend, case), TOLERANCE[backend])
        if not (close and found["learnt"] and found["segments"] > 1):
            wrong[case] = found
    assert not wrong, backend


@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if QUICK[backend]])
def test_models_train_as_without_save_points(backend):
    check(backend, QUICK[backend])


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_model_trains_as_without_save_points(backend):
    check(backend, [case for case in CASES if (backend, case) not in REFUSED])

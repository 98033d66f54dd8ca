"""Recomputing Keras models do what Keras models do, in less memory; each backend in a process of its own."""

import importlib.util
import os
import subprocess
import sys

import pytest

from .test_keras_models import BACKENDS, run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")
CHECKS = (
    "methods_of_keras",
    "ways_to_train",
    "parts_of_other_models",
    "files_and_clones",
    "copies_of_models",
    "kinds_of_values",
    "sequential_models",
    "own_loops",
    "same_model",
    "explanations",
    "errors",
)
FLAG = {"XLA_FLAGS": "--xla_cpu_enable_concurrency_optimized_scheduler=false"}


def test_pytorch_saves_what_is_stored_and_the_last_segment():
    checks = ("saved_bytes", "lstm_peaks", "same_model", "sequential_models", "errors", "budgets_with_views")
    found = run("torch", *checks, program="keras_checks.py")
    assert found.pop("saved_bytes") == [3.00, 1.25]
    plain, cut, loss, gradient = found.pop("lstm_peaks")
    assert (loss, gradient) == (0, 0)
    assert cut <= 0.16 * plain
    assert all(value is True for value in found.values()), found


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_models_behave_as_those_of_keras(backend):
    found = run(backend, *CHECKS, program="keras_checks.py")
    assert all(value is True for value in found.values()), found


@pytest.mark.full
def test_a_step_that_pytorch_compiles_trains_the_same():
    assert run("torch", "compiled_by_pytorch", program="keras_checks.py")["compiled_by_pytorch"] <= 1e-6


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_without_private_names_segments_are_sub_models(backend):
    assert run(backend, "by_public_names", program="keras_checks.py") == {"by_public_names": True}


def test_a_backend_that_is_not_installed_is_named_with_what_to_set(tmp_path):
    program = "import sys; sys.modules['tensorflow'] = None; import remat; remat.keras"
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "KERAS_HOME": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert "ModuleNotFoundError" in found.stderr
    assert "KERAS_BACKEND=torch" in found.stderr


def test_private_names_of_keras_are_there():
    from remat.layers.keras import keras_internals

    assert keras_internals.MISSING == ()
    assert keras_internals.has_graph()


@pytest.mark.full
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_budget_is_planned_for(backend):
    checks = "budgets", "budgets_with_views", "budgets_too_small"
    assert run(backend, *checks, program="keras_checks.py") == dict.fromkeys(checks, True)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_save_points_in_an_lstm_leave_a_part_of_its_peak(backend):
    plain, cut, loss, gradient = run(backend, "lstm_peaks", program="keras_checks.py", **FLAG)["lstm_peaks"]
    assert loss <= 1e-7
    assert gradient <= 1e-6
    if backend == "tensorflow":
        assert plain is cut is None  # it has no meter on the CPU
    else:
        assert cut <= 0.45 * plain


def test_a_backend_without_gradients_is_refused():
    found = run("numpy", "refusal_of_the_backend", program="keras_checks.py")
    assert "KERAS_BACKEND" in found["refusal_of_the_backend"]

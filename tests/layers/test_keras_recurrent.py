"""`remat.keras.RNN` gives outputs and gradients of `keras.layers.RNN`, in less memory; each backend by itself."""

import importlib.util

import pytest

from .test_keras_models import run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")
PROGRAM = "keras_recurrent.py"
TOLERANCE = {"torch": 0.0, "jax": 1e-6}  # of the largest; XLA adds up in another order


@pytest.mark.full
def test_it_gives_what_the_layer_of_keras_gives_on_pytorch():
    found = run("torch", "some_differences", "peak", "refusals", program=PROGRAM)
    assert set(found["some_differences"].values()) == {0.0}
    plain, ours = found["peak"]
    assert ours <= 0.35 * plain
    budget, unrolled, drawing = found["refusals"]
    assert "slots=32" in budget
    assert "unroll" in unrolled
    assert "StepError" in drawing
    assert "keras.layers.RNN" in drawing


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_every_cell_gives_what_it_gives_in_keras(backend):
    found = run(backend, "differences", "refusals", program=PROGRAM)
    assert max(found["differences"].values()) <= TOLERANCE[backend], found
    assert all(found["refusals"]), found


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_models_with_it_train_and_are_saved(backend):
    assert run(backend, "models", program=PROGRAM)["models"] <= TOLERANCE[backend]


@pytest.mark.full
def test_on_tensorflow_it_predicts_and_says_what_to_do_instead_of_training():
    assert run("tensorflow", "prediction", program=PROGRAM) == {"prediction": True}

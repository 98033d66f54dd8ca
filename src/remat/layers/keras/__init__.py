"""Keras 3: save points in models, on PyTorch, JAX and TensorFlow.

    RecomputationCheckpoint()      a layer whose values are stored (checkpoint_layer.py)
    recompute(model, memory=None)  the model, which recomputes what lies between save points (recomputing_model.py)
    Model(inputs, outputs)         both at once
    RNN(cell, slots=, memory=)     a recurrent layer around `remat.scan` (recurrent_layer.py)
    explain(model)                 segments, what crosses them, bytes and seconds (segment_table.py)

A model's graph is split into segments (model_segments.py), each a pure function (pure_segment.py); with a budget they
are the stages of a chain (chain_stages.py). Private names of Keras are only in keras_internals.py.
"""

try:
    from remat.layers.keras.checkpoint_layer import RecomputationCheckpoint
except ModuleNotFoundError as error:
    if (backend := (error.name or "").partition(".")[0]) in ("tensorflow", "jax", "torch"):
        error.add_note(
            f"Keras was to run on {backend}, which is not installed. Set the backend that you have before Python "
            "starts, as in KERAS_BACKEND=torch or KERAS_BACKEND=jax; without it, Keras takes the one in "
            "~/.keras/keras.json, which is tensorflow unless you change it"
        )
    raise

from remat.layers.keras.recomputing_model import Model, recompute
from remat.layers.keras.recurrent_layer import RNN
from remat.layers.keras.segment_table import explain

__all__ = ["RNN", "Model", "RecomputationCheckpoint", "explain", "recompute"]

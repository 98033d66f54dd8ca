"""Keras 3: save points in models, on PyTorch, JAX and TensorFlow.

    RecomputationCheckpoint()      a layer whose values are stored (checkpoint_layer.py)
    recompute(model, memory=None)  the model, which recomputes what lies between save points (recomputing_model.py)
    Model(inputs, outputs)         both at once
    RNN(cell, slots=, memory=)     a recurrent layer around `remat.scan` (recurrent_layer.py)
    explain(model)                 segments, what crosses them, bytes and seconds (segment_table.py)

A model's graph is split into segments (model_segments.py), each a pure function (pure_segment.py); with a budget they
are the stages of a chain (chain_stages.py). Private names of Keras are only in keras_internals.py.
"""

from remat.layers.keras.checkpoint_layer import RecomputationCheckpoint
from remat.layers.keras.recomputing_model import Model, recompute
from remat.layers.keras.recurrent_layer import RNN
from remat.layers.keras.segment_table import explain

__all__ = ["RNN", "Model", "RecomputationCheckpoint", "explain", "recompute"]

"""Keras 3: save points in models, on PyTorch, JAX and TensorFlow."""

from remat.layers.keras.checkpoint_layer import RecomputationCheckpoint
from remat.layers.keras.recomputing_model import Model, recompute

__all__ = ["Model", "RecomputationCheckpoint", "recompute"]

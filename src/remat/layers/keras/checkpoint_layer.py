"""The save point: an identity layer that marks which values of a model are stored."""

from typing import Any

import keras

__all__ = ["RecomputationCheckpoint"]


@keras.saving.register_keras_serializable(package="remat")
class RecomputationCheckpoint(keras.layers.Layer):
    """A save point: its values are stored for the backward, which recomputes what lies between save points.

    It returns what it is called with, any nested structure of tensors, with their masks. The layer alone changes
    nothing: `recompute(model)` turns a model with save points into one that recomputes.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The inputs."""
        return inputs

    def compute_output_spec(self, inputs: Any) -> Any:
        """New symbolic tensors like the inputs, since a node of a graph has its own outputs."""
        return keras.tree.map_structure(_like, inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shapes of the inputs."""
        return input_shape

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """The masks of the inputs."""
        return previous_mask


def _like(x: Any) -> Any:
    """A symbolic tensor of its own for each tensor, sparse if that one is."""
    if getattr(x, "sparse", False):
        return keras.KerasTensor(x.shape, x.dtype, sparse=True)
    return keras.KerasTensor(x.shape, x.dtype)

"""The save point: an identity layer that says which values of a model are stored."""

from typing import Any

import keras

__all__ = ["RecomputationCheckpoint"]


@keras.saving.register_keras_serializable(package="remat")
class RecomputationCheckpoint(keras.layers.Layer):
    """A save point: its values are stored for the backward, and what lies between save points is computed again there.

    It returns what it is called with, any nested structure of tensors, with their masks. By itself it changes nothing:
    `recompute(model)` makes a model with save points a recomputing one.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The inputs."""
        return inputs

    def compute_output_spec(self, inputs: Any) -> Any:
        """New symbolic tensors like the inputs: a node of a graph has outputs of its own."""
        return keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape, x.dtype), inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shapes of the inputs."""
        return input_shape

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """The masks of the inputs."""
        return previous_mask

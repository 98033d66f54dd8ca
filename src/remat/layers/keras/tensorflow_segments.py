"""Segments on TensorFlow: a function whose gradient runs it again.

The rule: `custom_gradient` with positional tensors; `tf.recompute_grad` refuses keyword arguments in a `tf.function`,
and `training=` is one. The inputs of the recomputation wait for a cotangent, by a control dependency; otherwise the
graph would merge both runs.

What it can miss: gradients for tensors that the function closes over; `pure_segment.py` passes it everything that it
reads, and TensorFlow finds variables that it reads nevertheless. The cost: the recomputation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras

if keras.backend.backend() == "tensorflow":  # it is optional
    import tensorflow as tf

__all__ = ["checkpoint", "read"]


def checkpoint(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What the function returns; its gradient recomputes what it needs."""
    flat = _FlatFunction(function, arguments)

    @tf.custom_gradient
    def run(*tensors: Any) -> Any:
        outputs = [tf.identity(output) for output in flat(tensors)]

        def gradient(*cotangents: Any, variables: Sequence[Any] = ()) -> Any:
            gradients = _gradients(flat, tensors, variables, cotangents)
            return (gradients[: len(tensors)], gradients[len(tensors) :]) if variables else gradients

        return outputs, gradient

    return flat.build(run(*flat.tensors))


def read(variable: Any, *, copied: bool) -> Any:
    """The value of a variable; TensorFlow, without a compiler, modifies what was read before, hence the copy."""
    value = tf.convert_to_tensor(variable)
    if not copied:
        return value
    return tf.logical_or(value, False) if value.dtype.is_bool else value + tf.zeros_like(value)


class _FlatFunction:
    """A function of tensors that returns a list of tensors; its other arguments and results are static."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._leaves = keras.tree.flatten(arguments)
        self.tensors = [leaf for leaf in self._leaves if tf.is_tensor(leaf)]
        self._results: Any = None  # with the tensors of the first run left out

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors among the results."""
        rest = iter(tensors)
        leaves = [next(rest) if tf.is_tensor(leaf) else leaf for leaf in self._leaves]
        results = self._function(*keras.tree.pack_sequence_as(self._arguments, leaves))
        flat = keras.tree.flatten(results)
        if self._results is None:
            self._results = keras.tree.map_structure(lambda leaf: _TENSOR if tf.is_tensor(leaf) else leaf, results)
        return [leaf for leaf in flat if tf.is_tensor(leaf)]

    def build(self, tensors: Sequence[Any]) -> Any:
        """The results with these tensors."""
        rest = iter(tensors)
        return keras.tree.map_structure(lambda leaf: next(rest) if leaf is _TENSOR else leaf, self._results)


_TENSOR = object()


def _gradients(
    flat: _FlatFunction, tensors: Sequence[Any], variables: Sequence[Any], cotangents: Sequence[Any]
) -> list[Any]:
    """The gradients for tensors and variables: the function runs again once its cotangents are available."""
    again = _waiting(tensors, cotangents)
    active = [place for place, tensor in enumerate(again) if _is_differentiable(tensor)]
    with tf.GradientTape() as tape:
        tape.watch([again[place] for place in active])
        outputs = flat(again)
    pairs = [
        pair for pair in zip(outputs, cotangents, strict=True) if _is_differentiable(pair[0]) and pair[1] is not None
    ]
    found = tape.gradient(
        [output for output, _ in pairs],
        [*(again[place] for place in active), *variables],
        [cotangent for _, cotangent in pairs],
        unconnected_gradients="zero",
    )
    gradients = dict(zip(active, found, strict=False))
    return [gradients.get(place) for place in range(len(tensors))] + found[len(active) :]


def _is_differentiable(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def _waiting(tensors: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """The tensors, made to wait for a cotangent."""
    first = next(each for each in cotangents if each is not None and each.dtype.is_floating)
    if tf.executing_eagerly():
        return [tf.identity(tensor) for tensor in tensors]
    with tf.control_dependencies([first]):
        return [tf.identity(tensor) for tensor in tensors]

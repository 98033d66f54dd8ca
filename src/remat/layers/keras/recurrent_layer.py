"""A recurrent layer whose loop is `remat.scan`: `keras.layers.RNN` with a budget for its steps' states and tapes.

The rule: everything except the loop is Keras's own layer. A step is a pure function of its state and inputs, like a
segment: the values of the cell's variables and its dropout masks are taken at the call, and steps see these whenever
they run again.

What it can miss: a cell whose steps assign variables or add losses is refused, since Keras's own loop on JAX loses
them; state of a cell that is not a variable changes again in the recomputation. The cost: that of `remat.scan`, and on
PyTorch a young collection for each step (reference_cycles.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras

from remat.errors import ProblemError, StepError
from remat.interface.looping import scan
from remat.layers.keras.keras_internals import (
    ambient_state,
    current_scope,
    dropout_masks,
    raw_value,
    restored_ambient_state,
    with_dropout_masks,
)
from remat.layers.keras.pure_segment import SegmentScope
from remat.layers.keras.reference_cycles import collected_cycles

__all__ = ["RNN"]

BACKENDS = ("torch", "jax")


@keras.saving.register_keras_serializable(package="remat")
class RNN(keras.layers.RNN):
    """`keras.layers.RNN` whose steps are recomputed in the backward, as few as a budget allows.

    Outputs and gradients are those of Keras's layer, on PyTorch and JAX.

    Args:
        cell: A Keras cell, such as `keras.layers.LSTMCell(64)`, a list of them, or one of your own.
        slots: How many states are kept, or
        memory: The bytes for them and for tapes, such as "64 MiB".
        return_sequences, return_state, go_backwards, stateful, zero_output_for_mask, **kwargs: As in Keras.

    Raises:
        ProblemError: Without a budget, or with two; with `unroll=True`; in training on another backend.
        StepError: If a step assigns a variable or adds a loss.
    """

    def __init__(self, cell: Any, *, slots: int | None = None, memory: int | str | None = None, **kwargs: Any) -> None:
        if (slots is None) == (memory is None):
            raise ProblemError('remat.keras.RNN needs a budget: either slots=32 states, or memory="64 MiB"')
        if kwargs.get("unroll"):
            raise ProblemError("remat.keras.RNN runs a loop: unroll=True would keep all of it. Leave it out")
        super().__init__(cell, **kwargs)
        self.slots, self.memory = slots, memory

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        config: dict[str, Any] = super().get_config()
        config.pop("unroll", None)
        return {**config, "slots": self.slots, "memory": self.memory}

    def inner_loop(self, sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> Any:
        """The last output, all outputs if they are returned, and the last states."""
        backend = keras.backend.backend()
        if backend not in BACKENDS:
            if not training:
                return super().inner_loop(sequences, initial_state, mask, training=training)
            raise ProblemError(
                f"remat.keras.RNN is trained on {' and '.join(BACKENDS)}, and Keras runs on {backend}: there, cut the "
                "sequence into sections, with remat.keras.RecomputationCheckpoint() on the state between them"
            )
        if backend == "torch" and self.stateful:  # these are the layer's variables, which are modified after the loop
            initial_state = keras.tree.map_structure(keras.ops.copy, initial_state)
        is_there = None if mask is None else self._in_order(_as_column(mask))
        xs = self._in_order(sequences)
        step = _pure_step(self.cell, initial_state, training)
        output, _ = step(initial_state, xs[0])  # only its shape is used
        carries_output = mask is not None or not self.return_sequences

        def run(carry: Any, x: Any) -> Any:
            (states, previous), (inputs, is_there) = carry, x
            output, new_states = step(states, inputs)
            if is_there is not None:
                zeros = self.zero_output_for_mask
                instead = keras.ops.zeros_like(output) if zeros else _output_before(states, previous)
                output = _chosen(is_there, output, instead)
                new_states = keras.tree.map_structure(lambda a, b: _chosen(is_there, a, b), new_states, states)
            return (new_states, output if carries_output else None), output if self.return_sequences else None

        first = keras.ops.zeros_like(output) if carries_output else None
        (states, last), ys = scan(run, (initial_state, first), (xs, is_there), slots=self.slots, memory=self.memory)
        if not self.return_sequences:
            return last, last, states
        return ys[-1], keras.ops.swapaxes(ys, 0, 1), states

    def _in_order(self, x: Any) -> Any:
        """One row for each step, in the order of the steps."""
        rows = keras.ops.swapaxes(x, 0, 1)
        return keras.ops.flip(rows, 0) if self.go_backwards else rows


def _pure_step(cell: Any, like: Any, training: bool) -> Callable[[Any, Any], tuple[Any, Any]]:
    """A step of the cell with its present values and dropout masks; states have the structure of `like`."""
    outer, surroundings = current_scope(), ambient_state()
    variables, masks = cell.variables, dropout_masks(cell)
    values, mask_values = [raw_value(v, outer) for v in variables], [value for _, _, value in masks]
    places = [place[:2] for place in masks]
    call = partial(cell, training=training) if getattr(cell, "_call_has_training_arg", False) else cell

    def step(states: Any, inputs: Any) -> tuple[Any, Any]:
        scope = SegmentScope(zip(variables, values, strict=True), outer)
        with (
            collected_cycles(),
            restored_ambient_state(surroundings),
            with_dropout_masks(places, mask_values),
            scope,
        ):
            output, new_states = call(inputs, states)
        if scope.assigned or scope.losses:
            what = next((f"assigns {v.path}" for v, _ in scope.assigned.values()), "adds a loss")
            raise StepError(
                f"a step of the cell {cell.name} {what}, which a loop that runs again cannot do: use keras.layers.RNN"
            )
        return output, keras.tree.pack_sequence_as(like, keras.tree.flatten(new_states))

    return step


def _output_before(states: Any, previous: Any) -> Any:
    """What a masked step returns: the output before it; on JAX, as in Keras there, the first state of the cell."""
    if keras.backend.backend() == "jax":
        state = states[-1][0] if isinstance(states[0], list | tuple) else states[0]
        if state.shape == previous.shape:
            return keras.ops.cast(state, previous.dtype)
    return previous


def _as_column(mask: Any) -> Any:
    mask = keras.ops.cast(mask, "bool")
    return keras.ops.expand_dims(mask, -1) if mask.ndim == 2 else mask


def _chosen(is_there: Any, a: Any, b: Any) -> Any:
    """`a` where the step is present, `b` elsewhere."""
    for _ in range(a.ndim - is_there.ndim):
        is_there = keras.ops.expand_dims(is_there, -1)
    return keras.ops.where(is_there, a, b)

"""A segment as a pure function, which is run through the backend's recomputation.

The rule: a segment is a function of its inputs, their masks and the values of all variables of its layers; it returns
outputs, their masks, new values of variables, and losses. New values are assigned once, outside of it. So seeds and
moving statistics are plain inputs of the second run: dropout draws the same, and statistics move once. The function is
made pure by a nested `StatelessScope`, on PyTorch by `remat.checkpoint`, on JAX as well, on TensorFlow by
`tensorflow_segments.py`.

What it can miss: state of a layer that is no variable. On PyTorch and TensorFlow it changes in the second run, too;
segments run to their end there, so that a layer that cleans up behind itself does (`early_stop=False`: a GRU with
recurrent dropout forgets its mask at the end of its call).

The cost: a few dictionaries for a call; on PyTorch and TensorFlow copies of the variables that the segment assigns.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from remat.errors import StepError
from remat.interface.checkpointing import run_segment
from remat.layers.keras import tensorflow_segments
from remat.layers.keras.keras_internals import (
    Values,
    ambient_state,
    current_scope,
    make_seed_generator,
    mask_of,
    raw_value,
    restored_ambient_state,
    seed_variables,
    set_mask,
)
from remat.layers.keras.model_segments import Segment
from remat.layers.keras.reference_cycles import collected_cycles
from remat.segments import CheckpointOptions

__all__ = [
    "Call",
    "SegmentRunner",
    "Surroundings",
    "checkpoint",
    "foreign_state",
    "given_value",
    "loss_owner",
    "segment_function",
]

_TO_THE_END = CheckpointOptions(early_stop=False)
Call = Callable[[Any], Callable[..., Any]]  # of a layer or an operation: it, with `training` and the like


class SegmentScope(keras.StatelessScope):
    """Variables have the values that are given, and others those of the scope around; what is assigned is noted."""

    def __init__(self, values: Iterable[tuple[Any, Any]], outer: Any | None) -> None:
        super().__init__(values, collect_losses=True, initialize_variables=False)
        self.outer = outer
        self.assigned: dict[int, tuple[Any, Any]] = {}  # by the id of a variable: it, and its new value

    def get_current_value(self, variable: Any) -> Any:
        """The value here or around: without that, a traced value of another layer would be a constant."""
        value = super().get_current_value(variable)
        return self.outer.get_current_value(variable) if value is None and self.outer is not None else value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Note a new value."""
        variable, value = update
        if self.outer is None and keras.backend.backend() != "jax":
            # Outside of any scope, a variable is written into: no gradient flows through the new value.
            value = keras.ops.stop_gradient(value)
            seen = _passing_gradient(self.get_current_value(variable), value) if variable.trainable else value
        else:
            seen = value
        self.assigned[id(variable)] = variable, value
        super().add_update((variable, seen))


def _passing_gradient(old: Any, new: Any) -> Any:
    """The new value, whose gradient is that of the old one: both are one variable."""

    @keras.ops.custom_gradient
    def exchanged(old: Any, new: Any) -> Any:
        return keras.ops.convert_to_tensor(new) * 1, lambda *args, upstream=None: (_upstream(args, upstream), None)

    return exchanged(old, new)


def _upstream(args: tuple[Any, ...], upstream: Any) -> Any:
    return args[0] if upstream is None else upstream


class Surroundings:
    """What a call of a segment needs beside arrays; opaque for remat."""

    def __init__(self, call: Call, variables: Sequence[Any]) -> None:
        self.call, self.variables, self.scope, self.state = call, variables, current_scope(), ambient_state()


class SegmentRunner:
    """Runs a segment whenever the model is called."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._function = segment_function(segment)
        self._written: set[int] = set()  # ids of the variables that are written into in place when they are assigned

    def plain(self, values: Values, call: Call) -> None:
        """Run the segment without recomputation; its outputs are added to the values."""
        with collected_cycles():
            for node in self.segment.nodes:
                node.run(values, call)

    def recomputed(self, values: Values, call: Call) -> None:
        """Run the segment, and again in the backward; its outputs are added to the values."""
        segment = self.segment
        inputs = [values[id(x)] for x in segment.inputs]
        masks = [mask_of(x) for x in inputs]
        while True:
            seeds, random_state = seed_variables(), random.getstate()
            variables = list({id(v): v for v in [*segment.variables(), *seeds]}.values())
            surroundings = Surroundings(call, variables)
            given = [given_value(v, surroundings.scope, self._written) for v in variables]
            results = checkpoint(self._function, (surroundings, inputs, masks, given))
            outputs, out_masks, assigned, losses, others = results
            if others:
                if seeds or not seed_variables():
                    raise foreign_state(segment, others)
                make_seed_generator(random_state)  # a draw without a seed has made one, whose state is a variable, too
                continue
            written = {id(variables[place]) for place in assigned}
            if keras.backend.backend() == "jax" or surroundings.scope is not None or written <= self._written:
                break
            # What is saved for the backward would be written into: the first time, the segment is run with copies.
            self._written |= written
        for place, value in assigned.items():
            variables[place].assign(value)
        for place, loss in losses:
            loss_owner(segment.nodes[place].operation).add_loss(loss)
        for x, output, mask in zip(segment.outputs, outputs, out_masks, strict=True):
            set_mask(output, mask)
            values[id(x)] = output


def given_value(variable: Any, scope: Any | None, written: set[int]) -> Any:
    """The value of a variable, which stays as it is if it is assigned: `written` are those that are, by their ids."""
    value = raw_value(variable, scope)
    if keras.backend.backend() == "torch":
        return value.clone() if id(variable) in written else value
    if keras.backend.backend() == "tensorflow":
        return tensorflow_segments.read(value, copied=id(variable) in written)
    return value


def loss_owner(operation: Any) -> Any:
    """The layer to which losses of an operation are added: functional models refuse them, and have their layers'."""
    while isinstance(operation, keras.Model) and operation.layers:
        operation = operation.layers[-1]
    return operation


def foreign_state(segment: Segment, paths: list[str]) -> StepError:
    """The error for a segment that assigns variables of others."""
    return StepError(
        f"the segment {segment.name} assigns the variable {paths[0]}, which is of none of its layers: the new value "
        "would be lost. Make it an attribute of the layer that assigns it"
    )


def checkpoint(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What the function returns; it is run again in the backward."""
    if keras.backend.backend() == "tensorflow":
        return tensorflow_segments.checkpoint(function, arguments)
    return run_segment("checkpoint", function, arguments, {}, _TO_THE_END)


def segment_function(segment: Segment) -> Callable[..., Any]:
    """The segment as a pure function. It is made once, so that remat knows it again."""

    def run(surroundings: Surroundings, inputs: list[Any], masks: list[Any], given: list[Any]) -> Any:
        scope = SegmentScope(zip(surroundings.variables, given, strict=True), surroundings.scope)
        places = {id(v): place for place, v in enumerate(surroundings.variables)}
        losses: list[tuple[int, Any]] = []
        with collected_cycles(), restored_ambient_state(surroundings.state), scope:
            for x, mask in zip(inputs, masks, strict=True):
                set_mask(x, mask)
            values = dict(zip(map(id, segment.inputs), inputs, strict=True))
            for place, node in enumerate(segment.nodes):
                known = len(scope.losses)
                node.run(values, surroundings.call)
                losses += [(place, loss) for loss in scope.losses[known:]]
        outputs = [values[id(x)] for x in segment.outputs]
        assigned = {places[key]: value for key, (_, value) in scope.assigned.items() if key in places}
        others = [variable.path for key, (variable, _) in scope.assigned.items() if key not in places]
        return outputs, [mask_of(x) for x in outputs], assigned, losses, others

    run.__qualname__ = f"segment {segment.name}"
    return run

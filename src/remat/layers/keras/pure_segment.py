"""A segment as a pure function, run through the backend's recomputation.

The rule: a segment is a function of its inputs, their masks and the values of all variables of its layers; it returns
outputs, their masks, new values of variables, and losses. New values are assigned once, outside of it. So seeds and
moving statistics are plain inputs of the recomputation: dropout draws the same numbers, and statistics move once. The
function is made pure by a nested `StatelessScope`, and recomputed by `remat.checkpoint` on PyTorch and JAX, and by
`tensorflow_segments.py` on TensorFlow.

What it can miss: state of a layer that is not a variable. On PyTorch and TensorFlow it changes in the recomputation
too; segments run to their end there, so that layers can clean up (`early_stop=False`: a GRU with recurrent dropout
discards its mask at the end of its call).

Variables that Keras does not count among those of a layer, such as the states of a stateful LSTM, are found when a
segment assigns them: it is run once more then, with these among its inputs.

The cost: a few dictionaries for a call; on PyTorch and TensorFlow copies of the variables that the segment assigns.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import keras

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
    "OtherVariables",
    "SegmentRunner",
    "Surroundings",
    "checkpoint",
    "distinct",
    "given_value",
    "loss_owner",
    "run_with_all_variables",
    "segment_function",
]

_TO_THE_END = CheckpointOptions(early_stop=False)
R = TypeVar("R")
Call = Callable[[Any], Callable[..., Any]]  # of a layer or an operation: it, with `training` and the like


class OtherVariables(Exception):
    """A segment assigns variables that it was not given."""

    def __init__(self, variables: list[Any]) -> None:
        super().__init__(f"{variables[0].path} is assigned")
        self.variables = variables


class SegmentScope(keras.StatelessScope):
    """A scope in which variables have the given values, or those of the enclosing scope; assignments are noted."""

    def __init__(self, values: Iterable[tuple[Any, Any]], outer: Any | None) -> None:
        super().__init__(values, collect_losses=True, initialize_variables=False)
        self.outer = outer
        self.assigned: dict[int, tuple[Any, Any]] = {}  # by variable id: the variable, and its new value

    def get_current_value(self, variable: Any) -> Any:
        """The value here or in the enclosing scope, without which another layer's traced value would be a constant."""
        value = super().get_current_value(variable)
        return self.outer.get_current_value(variable) if value is None and self.outer is not None else value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Note a new value."""
        variable, value = update
        if self.outer is None and keras.backend.backend() != "jax":
            # Outside of any scope, a variable is modified in place: no gradient flows through the new value.
            value = keras.ops.stop_gradient(value)
            seen = _passing_gradient(self.get_current_value(variable), value) if variable.trainable else value
        else:
            seen = value
        self.assigned[id(variable)] = variable, value
        super().add_update((variable, seen))


def _passing_gradient(old: Any, new: Any) -> Any:
    """The new value, with the gradient of the old one, since both belong to one variable."""

    @keras.ops.custom_gradient
    def exchanged(old: Any, new: Any) -> Any:
        return keras.ops.convert_to_tensor(new) * 1, lambda *args, upstream=None: (_upstream(args, upstream), None)

    return exchanged(old, new)


def _upstream(args: tuple[Any, ...], upstream: Any) -> Any:
    return args[0] if upstream is None else upstream


class Surroundings:
    """What a call of a segment needs besides arrays; opaque to remat."""

    def __init__(self, call: Call, variables: Sequence[Any]) -> None:
        self.call, self.variables, self.scope, self.state = call, variables, current_scope(), ambient_state()


class SegmentRunner:
    """Runs a segment whenever the model is called."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._function = segment_function(segment)
        self._written: set[int] = set()  # ids of the variables that are written into in place when they are assigned
        self._others: list[Any] = []  # variables that it assigns, and that Keras does not count among its layers'

    def plain(self, values: Values, call: Call) -> None:
        """Run the segment without recomputation, and add its outputs to the values."""
        with collected_cycles():
            for node in self.segment.nodes:
                node.run(values, call)

    def recomputed(self, values: Values, call: Call) -> None:
        """Run the segment such that the backward recomputes it, and add its outputs to the values."""
        segment = self.segment
        inputs = [values[id(x)] for x in segment.inputs]
        masks = [mask_of(x) for x in inputs]
        while True:
            surroundings, results = run_with_all_variables(self._others, partial(self._run_once, inputs, masks, call))
            outputs, out_masks, assigned, losses = results
            variables = surroundings.variables
            written = {id(variables[place]) for place in assigned}
            if keras.backend.backend() == "jax" or surroundings.scope is not None or written <= self._written:
                break
            # The assignment would modify what is saved for the backward: the first time, run the segment again with
            # copies.
            self._written |= written
        for place, value in assigned.items():
            variables[place].assign(value)
        for place, loss in losses:
            loss_owner(segment.nodes[place].operation).add_loss(loss)
        for x, output, mask in zip(segment.outputs, outputs, out_masks, strict=True):
            set_mask(output, mask)
            values[id(x)] = output

    def _run_once(self, inputs: list[Any], masks: list[Any], call: Call) -> tuple[Surroundings, Any]:
        """The surroundings and the results of a run."""
        variables = distinct([*self.segment.variables(), *self._others, *seed_variables()])
        surroundings = Surroundings(call, variables)
        given = [given_value(v, surroundings.scope, self._written) for v in variables]
        return surroundings, checkpoint(self._function, (surroundings, inputs, masks, given))


def run_with_all_variables(others: list[Any], run: Callable[[], R]) -> R:
    """What `run` returns; variables that it assigns and was not given are added to the others, and it runs again.

    This ends: Keras makes no variables inside of a stateless scope.
    """
    while True:
        seeds, random_state = seed_variables(), random.getstate()
        try:
            return run()
        except OtherVariables as error:
            if not seeds and seed_variables():
                make_seed_generator(random_state)  # a draw without a seed has made one, whose state is a variable, too
            else:
                others += error.variables


def given_value(variable: Any, scope: Any | None, written: set[int]) -> Any:
    """The value of a variable, which stays unchanged when it is assigned; `written` has the ids of assigned ones."""
    value = raw_value(variable, scope)
    if keras.backend.backend() == "torch":
        return value.clone() if id(variable) in written else value
    if keras.backend.backend() == "tensorflow":
        return tensorflow_segments.read(value, copied=id(variable) in written)
    return value


def loss_owner(operation: Any) -> Any:
    """The layer to which an operation's losses are added; functional models refuse them, but report their layers'."""
    while isinstance(operation, keras.Model) and operation.layers:
        operation = operation.layers[-1]
    return operation


def distinct(variables: Iterable[Any]) -> list[Any]:
    """The variables, each once."""
    return list({id(v): v for v in variables}.values())


def checkpoint(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What the function returns; the backward recomputes it."""
    if keras.backend.backend() == "tensorflow":
        return tensorflow_segments.checkpoint(function, arguments)
    return run_segment("checkpoint", function, arguments, {}, _TO_THE_END)


def segment_function(segment: Segment) -> Callable[..., Any]:
    """The segment as a pure function, made once, so that remat recognizes it."""

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
        others = [variable for key, (variable, _) in scope.assigned.items() if key not in places]
        if others:
            raise OtherVariables(others)
        outputs = [values[id(x)] for x in segment.outputs]
        assigned = {places[key]: value for key, (_, value) in scope.assigned.items()}
        return outputs, [mask_of(x) for x in outputs], assigned, losses

    run.__qualname__ = f"segment {segment.name}"
    return run

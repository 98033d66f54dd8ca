"""All private names of Keras that are used, behind a check of the release.

| name | what for | without it |
|---|---|---|
| `Functional._run_through_graph`, `_nodes_by_depth`, `fill_in` | a model's nodes, run one by one | `public_graph.py` |
| `Sequential._functional` | the graph of a Sequential | the same |
| `Variable._value` | the value before mixed precision casts it | mixed precision is refused |
| `get_keras_mask`, `set_keras_mask` | masks of tensors, which any wrapper loses | models with masks are refused |
| `GLOBAL_STATE_TRACKER` | what surrounds a call: autocast, the call context, the device | it is not restored |
| `_keras_call_info_injected` | errors that Keras re-raises unchanged | an InfeasibleError is a RuntimeError |
| `_dropout_mask`, `_recurrent_dropout_mask` | masks of cells, which a loop keeps | cells with dropout are refused |
| `GLOBAL_SEED_GENERATOR` | draws without a seed of their own | such draws are refused |

Tested with Keras 3.15. A later release is used in the same way as long as it has these names: `MISSING` lists those
that it lacks, and a test reports them too.
"""

import importlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras

from remat.errors import InfeasibleError, StepError

__all__ = [
    "MISSING",
    "GraphNode",
    "Values",
    "ambient_state",
    "current_scope",
    "dropout_masks",
    "errors_as_they_are",
    "functional_of",
    "has_graph",
    "is_training",
    "make_seed_generator",
    "mask_of",
    "nodes_of",
    "raw_value",
    "restored_ambient_state",
    "seed_variables",
    "set_mask",
    "training_call",
    "with_dropout_masks",
]

OLDEST = (3, 8)
Values = dict[int, Any]  # by the ids of symbolic tensors


def _private(name: str) -> Any:
    """A private name of Keras, such as "models.functional.Functional"; None if this release lacks it."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(f"keras.src.{module}"), attribute, None)
    except ImportError:
        return None


_NAMES = (
    "models.functional.Functional",
    "ops.symbolic_arguments.SymbolicArguments",
    "backend.common.masking.get_keras_mask",
    "backend.common.masking.set_keras_mask",
    "backend.common.global_state.get_global_attribute",
    "random.seed_generator.GLOBAL_SEED_GENERATOR",
)
_functional, _arguments, _get_mask, _set_mask, _get_global, _seed_name = map(_private, _NAMES)
_global_state = importlib.import_module("keras.src.backend.common.global_state") if _get_global else None
MISSING: tuple[str, ...] = tuple(
    [name for name in _NAMES if _private(name) is None]
    + [f"Functional.{name}" for name in ("_run_through_graph",) if not hasattr(_functional, name)]
    + [f"SymbolicArguments.{name}" for name in ("fill_in",) if not hasattr(_arguments, name)]
)


def has_graph() -> bool:
    """Whether the nodes of a model can be run one by one in this release."""
    release = tuple(int(part) for part in keras.__version__.split(".")[:2])
    return release >= OLDEST and hasattr(_functional, "_run_through_graph") and hasattr(_arguments, "fill_in")


class GraphNode(NamedTuple):
    """One call of a layer or an operation in a model; `run` adds its outputs to the values that it reads from."""

    operation: Any
    inputs: tuple[Any, ...]  # symbolic tensors
    outputs: tuple[Any, ...]
    run: Callable[[Values, Callable[[Any], Callable[..., Any]]], None]


def functional_of(model: Any) -> Any | None:
    """The model that has the graph: itself, or the one inside a Sequential; None for a subclassed model."""
    inner = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    return inner if _functional is not None and isinstance(inner, _functional) else None


def nodes_of(functional: Any) -> list[GraphNode]:
    """The nodes of a functional model, in the order in which Keras runs them."""
    by_depth = functional._nodes_by_depth
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    return [_graph_node(node) for node in nodes if node.operation and not node.is_input]


def _graph_node(node: Any) -> GraphNode:
    def run(values: Values, call: Callable[[Any], Callable[..., Any]]) -> None:
        args, kwargs = node.arguments.fill_in(values)
        results = call(node.operation)(*args, **kwargs)
        values.update(zip(map(id, node.outputs), keras.tree.flatten(results), strict=True))

    return GraphNode(node.operation, tuple(node.input_tensors), tuple(node.outputs), run)


def training_call(operation: Any) -> Callable[..., Any]:
    """A layer or an operation, as a model in training calls it."""
    if not getattr(operation, "_call_has_training_arg", False):
        return operation

    def call(*args: Any, **kwargs: Any) -> Any:
        # A node has the `training` of the call that made it, which Keras replaces in the same way.
        return operation(*args, **{**kwargs, "training": True})

    return call


class _Asked:
    """Stands in for a layer, and returns the `training` argument that it is called with."""

    _call_context_args = frozenset({"training"})

    def __call__(self, training: bool | None = None) -> bool:
        return bool(training)


def is_training(call: Callable[[Any], Callable[..., Any]]) -> bool:
    """Whether a model calls its layers with `training=True`."""
    return bool(call(_Asked())())


def raw_value(variable: Any, scope: Any | None) -> Any:
    """The value of a variable in a stateless scope, or its own; not cast by mixed precision."""
    value = None if scope is None else scope.get_current_value(variable)
    if value is None:
        value = getattr(variable, "_value", None)
    return variable.value if value is None else value


def mask_of(tensor: Any) -> Any | None:
    """The mask of a tensor."""
    return None if _get_mask is None else _get_mask(tensor)


def set_mask(tensor: Any, mask: Any | None) -> None:
    """Give a tensor a mask."""
    if mask is not None and _set_mask is not None:
        _set_mask(tensor, mask)


def current_scope() -> Any | None:
    """The stateless scope around the calling code."""
    return None if _get_global is None else _get_global("stateless_scope")


def seed_variables() -> list[Any]:
    """The state of the generator from which `keras.random` draws without a seed, if it exists already."""
    generator = None if _get_global is None else _get_global(_seed_name)
    return [] if generator is None else [generator.state]


def make_seed_generator(random_state: Any) -> None:
    """Create that generator as a draw would have created it when Python's own generator had that state."""
    random.setstate(random_state)
    _private("backend.common.global_state.set_global_attribute")(_seed_name, None)
    _private("random.seed_generator.global_seed_generator")()


def ambient_state() -> dict[str, Any]:
    """What surrounds the calling code in Keras: autocast and device scopes, the call context with its `training`."""
    return dict(_tracked())


@contextmanager
def errors_as_they_are() -> Iterator[None]:
    """A context whose errors keep their class; Keras turns one that takes more than a message into a RuntimeError."""
    try:
        yield
    except InfeasibleError as error:
        vars(error)["_keras_call_info_injected"] = True
        raise


def dropout_masks(cell: Any) -> list[tuple[Any, str, Any]]:
    """The masks of a recurrent cell and its inner cells, with owner and name; the layer creates them for a call."""
    found = [each for inner in getattr(cell, "cells", ()) for each in dropout_masks(inner)]
    for rate, name in (("dropout", "_dropout_mask"), ("recurrent_dropout", "_recurrent_dropout_mask")):
        if hasattr(cell, f"get{name}") and getattr(cell, rate, None):
            if vars(cell).get(name) is None:
                raise StepError(
                    f"Keras {keras.__version__} keeps the dropout masks of {type(cell).__name__} in another place than "
                    "remat knows, so steps cannot be recomputed with them: use keras.layers.RNN"
                )
            value = vars(cell)[name]
            found.append((cell, name, list(value) if isinstance(value, list) else value))
    return found


@contextmanager
def with_dropout_masks(places: Sequence[tuple[Any, str]], masks: Sequence[Any]) -> Iterator[None]:
    """A context in which cells have these masks."""
    before = [vars(cell).get(name) for cell, name in places]
    for (cell, name), mask in zip(places, masks, strict=True):
        vars(cell)[name] = mask
    try:
        yield
    finally:
        for (cell, name), mask in zip(places, before, strict=True):
            vars(cell)[name] = mask


@contextmanager
def restored_ambient_state(state: dict[str, Any]) -> Iterator[None]:
    """A context with the surroundings of an earlier call; a backward runs outside of these, or in another thread."""
    tracked = _tracked()
    if tracked.keys() == state.keys() and all(tracked[name] is value for name, value in state.items()):
        yield
        return
    before = dict(tracked)
    tracked.update(state)
    try:
        yield
    finally:
        tracked.clear()
        tracked.update(before)


def _tracked() -> dict[str, Any]:
    tracker = getattr(_global_state, "GLOBAL_STATE_TRACKER", None)  # `clear_session` creates a new one
    return {} if tracker is None else vars(tracker)

"""Segments that use only public names of Keras: each is a `keras.Model(inputs, outputs)` of the same layers.

The rule: this is used if a release of Keras lacks the private names of `keras_internals.py`. The nodes of a model are
its layers with their `input` and `output`, which Keras provides for the first call of a layer; a layer that is called
twice is refused. So is a budget. The cost: these sub-models add calls to the layers, and `layer.output` is then that of
the first one, as before.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras

from remat.errors import ProblemError
from remat.layers.keras.keras_internals import GraphNode, Values
from remat.layers.keras.model_segments import Segment, split_at_save_points
from remat.layers.keras.pure_segment import Call, SegmentRunner

__all__ = ["public_nodes", "public_runners", "run_publicly"]


def public_nodes(model: Any) -> list[GraphNode] | None:
    """The layers of a functional or Sequential model as nodes; None for a model without a graph."""
    try:
        operations, inputs, outputs = getattr(model, "operations", model.layers), model.inputs, model.outputs
    except AttributeError:  # a subclassed model, or a Sequential that is not built
        return None
    layers = [each for each in operations if not isinstance(each, keras.layers.InputLayer)]
    nodes = [GraphNode(each, _flat(each.input), _flat(each.output), _never) for each in layers]
    known = {id(x) for x in [*inputs, *(x for node in nodes for x in node.outputs)]}
    if not all(id(x) in known for x in [*outputs, *(x for node in nodes for x in node.inputs)]):
        raise ProblemError(
            f"this release of Keras, {keras.__version__}, hides the graph of {model.name!r}, and a layer of it is "
            "called twice: make a layer for each call, or use a release of Keras that remat was tried with (3.15)"
        )
    return nodes


def _flat(tensors: Any) -> tuple[Any, ...]:
    return tuple(keras.tree.flatten(tensors))


def _never(values: Values, call: Call) -> None:
    raise NotImplementedError  # sub-models run instead


def public_runners(model: Any) -> list[SegmentRunner]:
    """A runner for each segment, as a sub-model."""
    nodes = public_nodes(model)
    assert nodes is not None
    return [SegmentRunner(_as_model(segment)) for segment in split_at_save_points(nodes, model.inputs, model.outputs)]


def _as_model(segment: Segment) -> Segment:
    sub_model = keras.Model(
        list(segment.inputs), list(segment.outputs), name=f"segment_{segment.nodes[0].operation.name}"
    )

    def run(values: Values, call: Call) -> None:
        results = call(sub_model)([values[id(x)] for x in segment.inputs])
        values.update(zip(map(id, segment.outputs), keras.tree.flatten(results), strict=True))

    node = GraphNode(sub_model, segment.inputs, segment.outputs, run)
    return Segment(segment.level, segment.is_last, (node,), segment.inputs, segment.outputs)


def run_publicly(model: Any, runners: Sequence[SegmentRunner], inputs: Any, training: bool | None) -> Any:
    """The outputs of a model, computed segment by segment."""
    flat = [
        keras.ops.convert_to_tensor(x, dtype=symbolic.dtype)
        for x, symbolic in zip(keras.tree.flatten(inputs), model.inputs, strict=True)
    ]
    values: Values = dict(zip(map(id, model.inputs), flat, strict=True))

    def call(sub_model: Any) -> Any:
        return partial(sub_model, training=training)

    for runner in runners:
        (runner.plain if runner.segment.is_last else runner.recomputed)(values, call)
    outputs = [values[id(x)] for x in model.outputs]
    structure = getattr(model, "output", model.outputs)
    packed = keras.tree.pack_sequence_as(structure, outputs)
    return packed[0] if isinstance(packed, list | tuple) and len(packed) == 1 else packed

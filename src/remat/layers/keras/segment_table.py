"""What a recomputing model keeps and recomputes: its segments, what crosses them, bytes and seconds."""

from collections.abc import Sequence
from math import prod
from typing import Any

import keras

from remat.errors import ProblemError, StepError
from remat.layers.keras.chain_stages import BudgetedGraph, measured_segments
from remat.layers.keras.keras_internals import functional_of, nodes_of, raw_value
from remat.layers.keras.model_segments import Segment
from remat.problem import Chain
from remat.reporting.block_table import aligned, block_table
from remat.units import bytes_text

__all__ = ["explain"]

HEAD = ("segment", "layers", "kept for it", "tape", "output", "forward", "backward")


def explain(model: Any, sample: Any = None, *, batch_size: int = 32) -> str:
    """The segments of a model: what is kept for each, the bytes of its tape, and seconds; with a budget, also the plan.

    Segments are measured alone, in training, on the sample or on zeros; the model is not changed. On TensorFlow they
    are traced, and seconds are estimated.

    Args:
        model: A functional or Sequential model.
        sample: What the model is called with.
        batch_size: The batch size of zeros, if there is no sample and the model does not fix it.

    Returns:
        A text of a few lines.

    Raises:
        ProblemError: If a shape of an input is not known and there is no sample.
        StepError: If it is a subclassed model.
    """
    functional = functional_of(model)
    if functional is None:
        raise StepError(f"explain takes a functional or Sequential Keras model, not {type(model).__name__}")
    inputs = _inputs(functional, sample, batch_size)
    graph = BudgetedGraph(nodes_of(functional), functional.inputs, functional.outputs, 0)
    chain = graph.measured(inputs, _value)
    size = next(iter(inputs[0].shape), 1)
    segments = measured_segments(graph.segments, chain)
    names = {id(x): node.operation.name for segment in segments for node in segment.nodes for x in node.outputs}
    rows = [_row(segment, chain, place, int(size), names) for place, segment in enumerate(segments)]
    planned = getattr(functional, "remat_memory", None) is not None
    last = "" if planned else "; the last one is not run again, since the backward begins there"
    lines = [f"{model.name}: {len(rows)} segments, batch of {size}{last}", *aligned([HEAD, *rows])]
    plans = functional.remat_graph.plans if planned else []
    return "\n".join([*lines, *(["", block_table(plans[0])] if plans else [])])


def _value(variable: Any) -> Any:
    value = raw_value(variable, None)
    return keras.ops.convert_to_tensor(value) if keras.backend.backend() == "tensorflow" else value


def _inputs(functional: Any, sample: Any, batch_size: int) -> list[Any]:
    if sample is not None:
        leaves = keras.tree.flatten(sample)
        pairs = zip(leaves, functional.inputs, strict=True)
        return [keras.ops.convert_to_tensor(leaf, dtype=x.dtype) for leaf, x in pairs]
    zeros = []
    for x in functional.inputs:
        shape = (x.shape[0] or batch_size, *x.shape[1:])
        if None in shape:
            raise ProblemError(f"the input {x.name!r} has the shape {x.shape}: give explain a sample of it")
        zeros.append(keras.ops.zeros(shape, x.dtype))
    return zeros


def _row(segment: Segment, chain: Chain, place: int, batch: int, names: dict[int, str]) -> tuple[str, ...]:
    stage = chain.stages[place]
    option = stage.options[0]
    return (
        f"{place} {segment.name}",
        str(len(segment.nodes)),
        _crossing(segment.inputs, batch, names),
        bytes_text(option.tape),
        bytes_text(stage.output),
        f"{stage.forward:.2g} s",
        f"{option.backward:.2g} s",
    )


def _crossing(values: Sequence[Any], batch: int, names: dict[int, str]) -> str:
    """The layers whose values enter a segment, and the bytes of these values."""
    sizes = [prod(batch if size is None else size for size in x.shape) * _itemsize(x.dtype) for x in values]
    makers = list(dict.fromkeys(names.get(id(x), "inputs") for x in values))
    shown = ", ".join(makers[:3]) + (", ..." if len(makers) > 3 else "")
    return f"{shown}: {bytes_text(sum(sizes))}" if values else "nothing"


def _itemsize(dtype: str) -> int:
    bits = "".join(filter(str.isdigit, dtype))
    return max(1, int(bits or 8) // 8)

"""The costs of the stages of a chain on TensorFlow: each is traced alone with its gradient, and nothing is run.

The rule: the tape is the tensors that operations of the gradient read from the forward, besides the stage's input and
variables. For lists of tensors, which loops keep, the graph gives the shape of an element, and the rows that the loop
reads give the number of steps; if it does not, each list counts as the largest tensor of the stage. Seconds are these
bytes at a typical bandwidth: good enough to choose between stages, but not a prediction.

What it can miss: workspace of kernels. Batch sizes must be known, since a budget is in bytes. The cost: one trace for
each stage.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import keras

from remat.errors import ProblemError
from remat.layers.keras.pure_segment import OtherVariables
from remat.problem import Chain, Option, Stage

if keras.backend.backend() == "tensorflow":  # it is optional
    import tensorflow as tf

__all__ = ["measure_chain"]

BYTES = 1e10  # per second


def measure_chain(
    stages: Sequence[Callable[..., Any]],
    contexts: Any,
    state: Any,
    given: Sequence[tuple[list[Any], list[Any], list[Any]]],
    inputs: Sequence[Any],
    beside: Sequence[Sequence[Any]],
) -> Chain:
    """The chain of stages, which are functions of (contexts, state, given).

    `inputs` are the model's own symbolic inputs, and `beside` those that each stage takes besides its state.
    """
    found: list[Stage] = []
    arguments: Any = (*_specs(state[0], state[1], inputs), {}, [])
    for number, stage in enumerate(stages):
        own: list[Any] = [([], [], []) for _ in stages]
        variables, values, masks = given[number]
        own[number] = [tf.TensorSpec(v.shape, v.dtype) for v in variables], *_specs(values, masks, beside[number])
        measured, arguments = _measured(stage, contexts, arguments, own)
        found.append(measured)
    return Chain(found, input=0)


def _specs(values: Sequence[Any], masks: Sequence[Any], inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Specs of the model's inputs and their masks."""
    specs = [_spec(value, symbolic) for value, symbolic in zip(values, inputs, strict=True)]
    return specs, [
        None if mask is None else tf.TensorSpec(spec.shape[: len(mask.shape)], mask.dtype)
        for mask, spec in zip(masks, specs, strict=True)
    ]


def _spec(value: Any, symbolic: Any) -> Any:
    shape = [a if a is not None else b for a, b in zip(value.shape, symbolic.shape, strict=True)]
    if None in shape:
        raise ProblemError(
            f"the batch size of the input {symbolic.name!r} is not known when TensorFlow traces the model, so a budget "
            "in bytes cannot be planned for: give it, as in keras.Input(shape, batch_size=64)"
        )
    return tf.TensorSpec(shape, value.dtype)


def _measured(stage: Callable[..., Any], contexts: Any, state: Any, variables: Any) -> tuple[Stage, Any]:
    """The stage, and the state after it as specs."""
    leaves = keras.tree.flatten((state, variables))
    is_spec = [isinstance(leaf, tf.TensorSpec) for leaf in leaves]
    costs: dict[str, Any] = {}

    def traced(*tensors: Any) -> Any:
        rest = iter(tensors)
        filled = [next(rest) if flag else leaf for flag, leaf in zip(is_spec, leaves, strict=True)]
        graph = tf.compat.v1.get_default_graph()
        with tf.GradientTape() as tape:
            active = [each for each in tensors if each.dtype.is_floating]
            tape.watch(active)
            try:
                after = stage(contexts, *keras.tree.pack_sequence_as((state, variables), filled))
            except OtherVariables as error:
                costs["error"] = error
                raise
        outputs = [each for each in keras.tree.flatten(after) if tf.is_tensor(each)]
        forward = {operation.name for operation in graph.get_operations()}
        tape.gradient([each for each in outputs if each.dtype.is_floating], active)
        costs["tape"] = _tape_bytes(graph, forward, {each.name for each in outputs})
        given = {each.name for each in tensors}
        costs["output"] = sum(_nbytes(each) for each in outputs if _source(each).name not in given)
        costs["after"] = keras.tree.map_structure(
            lambda x: tf.TensorSpec(x.shape, x.dtype) if tf.is_tensor(x) else x, after
        )
        return outputs

    try:
        tf.function(traced).get_concrete_function(*[leaf for leaf, flag in zip(leaves, is_spec, strict=True) if flag])
    except Exception:
        if "error" in costs:  # AutoGraph raises its own exception in place of those that it does not know
            raise costs["error"] from None
        raise
    tape, output = costs["tape"], costs["output"]
    seconds = (tape + output) / BYTES
    return Stage(seconds, output=output, options=[Option(tape, seconds, 2 * seconds, name="keep all")]), costs["after"]


def _tape_bytes(graph: Any, forward: set[str], outputs: set[str]) -> int:
    """Bytes that the gradient's operations read from the forward's."""
    operations = graph.get_operations()
    made = [operation for operation in operations if operation.type != "Placeholder"]
    largest = max((_nbytes(each) for operation in made for each in operation.outputs), default=0)
    residuals: dict[str, int] = {}
    for operation in operations:
        for each in operation.inputs if operation.name not in forward else ():
            source = _source(each)
            if (
                source.op.name in forward
                and source.op.type not in ("Placeholder", "Const")
                and source.name not in outputs
            ):
                residuals[source.name] = (
                    _list_nbytes(source, largest) if source.dtype == tf.variant else _nbytes(source)
                )
    return sum(residuals.values())


def _list_nbytes(tensor: Any, largest: int) -> int:
    """Bytes of a list of tensors that a loop has filled, or `largest` if the graph does not say."""
    source, steps = _source(tensor), None
    while source.op.type in ("While", "StatelessWhile"):
        steps = _steps(source.op)
        source = _source(source.op.inputs[source.value_index])
    if source.op.type == "TensorListFromTensor":
        return _nbytes(source.op.inputs[0])
    if source.op.type not in ("EmptyTensorList", "TensorListReserve"):
        return largest
    shape, count = map(tf.get_static_value, source.op.inputs)
    count = steps if count is None else int(count)
    if shape is None or count is None or min([*shape.flat, count]) < 0:
        return largest
    return prod(map(int, shape.flat)) * count * int(source.op.get_attr("element_dtype").size)


def _steps(loop: Any) -> int | None:
    """The number of steps of a loop over the rows of tensors, or None."""
    sources = [_source(each) for each in loop.inputs if each.dtype == tf.variant]
    rows = [each.op.inputs[0].shape for each in sources if each.op.type == "TensorListFromTensor"]
    known = [shape[0] for shape in rows if shape.rank and shape[0] is not None]
    return max(known, default=None)


def _source(tensor: Any) -> Any:
    """The tensor behind any Identity operations."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _nbytes(tensor: Any) -> int:
    shape = tensor.shape
    if tensor.dtype in (tf.variant, tf.resource) or shape.rank is None or None in shape.as_list():
        return 0
    return prod(shape.as_list()) * tensor.dtype.size

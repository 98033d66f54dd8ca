"""Models that recompute: `recompute` changes the class of a model in place, so that everything else is unchanged.

The rule: a model of class C gets a class `Recomputing` + C, made once for each class and budget, which runs the model's
graph by segments. Layers, variables, names, optimiser, weights, `summary` and methods such as `train_step` are those of
the model. `get_config` names C and the budget, so that files load as recomputing models, and clones recompute too.

What it can miss: `keras.models.clone_model` makes a plain `Sequential` of a Sequential; call `recompute` on it.
"""

from functools import cache
from typing import Any, ClassVar, TypeVar

import keras

from remat.errors import ProblemError, StepError
from remat.frameworks.compilers import not_compiled
from remat.layers.keras.chain_stages import BudgetedGraph
from remat.layers.keras.keras_internals import GraphNode, functional_of, has_graph, is_training, nodes_of
from remat.layers.keras.model_segments import is_save_point, split_at_save_points
from remat.layers.keras.public_graph import public_nodes, public_runners, run_publicly
from remat.layers.keras.pure_segment import Call, SegmentRunner
from remat.units import to_bytes

__all__ = ["Model", "recompute"]

M = TypeVar("M")
BACKENDS = ("torch", "jax", "tensorflow")
Memory = int | str | None


def recompute(model: M, memory: Memory = None) -> M:
    """The model, changed in place so that the backward recomputes what lies between its save points.

    Args:
        model: A functional or Sequential model with `RecomputationCheckpoint` layers; models inside it that have some
            are changed too.
        memory: The bytes that activations may take until the backward has ended, such as "2 GiB". Then segments are
            measured in the first training step, and planned for the least time. Save points are the places where a
            value may be stored; without any, these are all places where few values cross. On TensorFlow inputs need a
            batch size, and costs are estimates. On JAX the plan keeps to the budget, but XLA may take more.

    Returns:
        The model.

    Raises:
        InfeasibleError: In the first training step, if no plan fits; it names the least memory.
        ProblemError: If there is no save point and no budget, the budget is no size, or Keras runs on a backend
            without gradients.
        StepError: If it is a subclassed model, which has no graph to cut.
    """
    _check(model, memory)
    if memory is not None and not isinstance(memory, str):
        memory = int(memory)  # NumPy's numbers cannot be saved
    for inner in _models_in(model):
        _change_class(inner, None)
    _change_class(model, memory)
    return model


def Model(inputs: Any, outputs: Any, *, memory: Memory = None, **kwargs: Any) -> Any:
    """`keras.Model(inputs, outputs)`, as a recomputing model."""
    return recompute(keras.Model(inputs, outputs, **kwargs), memory)


_Mixin: Any = object  # mixed into a Keras model


class Recomputing(_Mixin):
    """What recomputing models add to their own class."""

    remat_memory: ClassVar[Memory] = None
    remat_base: ClassVar[type]

    def get_config(self) -> dict[str, Any]:
        """The config of the model as one of its own class, and the budget."""
        base = self.remat_base
        model = {
            "module": base.__module__,
            "class_name": base.__name__,
            "config": super().get_config(),
            "registered_name": keras.saving.get_registered_name(base),
        }
        return {"model": model, "memory": self.remat_memory}

    def __reduce__(self) -> Any:
        """As the model of its own class is pickled, since a class that is made later cannot be found by its name."""
        unpickled, arguments = super().__reduce__()
        return getattr(self.remat_base, unpickled.__name__), arguments

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """A recomputing model."""
        if "model" not in config or "class_name" not in config["model"]:
            return super().from_config(config, custom_objects)
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects)
        if keras.backend.backend() in BACKENDS:  # others have no gradients
            _change_class(model, config["memory"])
        return model


class RecomputingFunctional(Recomputing):
    """A functional model that runs by segments."""

    @not_compiled  # `jit_compile=True` on PyTorch: its compiler does not trace segments that run again
    def _run_through_graph(self, inputs: Any, operation_fn: Call = lambda op: op, call_fn: Any = None) -> Any:
        flat = keras.tree.flatten(inputs)
        if call_fn is not None or any(isinstance(x, keras.KerasTensor) for x in flat):
            return super()._run_through_graph(inputs, operation_fn, call_fn)
        # Keras also calls models to infer the shapes of their results, on PyTorch with tensors that have no memory.
        without_memory = any(getattr(getattr(x, "device", None), "type", None) == "meta" for x in flat)
        if self.remat_memory is not None and is_training(operation_fn) and not without_memory:
            values = self.remat_graph.run(flat, operation_fn)
        else:
            values = dict(zip(map(id, self.inputs), flat, strict=True))
            for runner in self._runners():
                (runner.plain if runner.segment.is_last else runner.recomputed)(values, operation_fn)
        outputs = [values[id(x)] for x in self.outputs]
        return keras.tree.pack_sequence_as(self._outputs_struct, outputs)

    @property
    def remat_graph(self) -> BudgetedGraph:
        """The model as a chain of stages, with a budget or to be measured."""
        if "_remat_graph" not in self.__dict__:
            memory = 0 if self.remat_memory is None else self.remat_memory
            self.__dict__["_remat_graph"] = BudgetedGraph(nodes_of(self), self.inputs, self.outputs, memory)
        graph: BudgetedGraph = self.__dict__["_remat_graph"]
        return graph

    def _runners(self) -> list[SegmentRunner]:
        """One runner for each segment, made in the first call."""
        if "_remat_runners" not in self.__dict__:
            segments = split_at_save_points(nodes_of(self), self.inputs, self.outputs)
            # Not by assignment, which Keras would track.
            self.__dict__["_remat_runners"] = [SegmentRunner(segment) for segment in segments]
        runners: list[SegmentRunner] = self.__dict__["_remat_runners"]
        return runners


class RecomputingSequential(Recomputing):
    """A Sequential whose graph, which is rebuilt when layers are added, runs by segments."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the last layer."""
        inner = functional_of(self)
        if inner is not None and not isinstance(inner, Recomputing):
            _change_class(inner, self.remat_memory)
        return super().call(*args, **kwargs)


class RecomputingByParts(Recomputing):
    """A model whose segments are sub-models, for releases of Keras that hide its graph (public_graph.py)."""

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        """The outputs."""
        if any(isinstance(x, keras.KerasTensor) for x in keras.tree.flatten(inputs)):
            return super().call(inputs, training=training, mask=mask, **kwargs)
        if "_remat_runners" not in self.__dict__:
            self.__dict__["_remat_runners"] = public_runners(self)
        return run_publicly(self, self.__dict__["_remat_runners"], inputs, training)


# Files are loaded by processes that have made no class yet; those in the older format, `.h5`, name only the class.
keras.saving.register_keras_serializable("remat", "RecomputingModel")(Recomputing)
keras.saving.get_custom_objects().update(
    {each.__name__: each for each in (RecomputingFunctional, RecomputingSequential)}
)


@cache
def _recomputing_class(base: type, memory: Memory, parts: bool) -> type:
    whole = RecomputingSequential if issubclass(base, keras.Sequential) else RecomputingFunctional
    kind = RecomputingByParts if parts else whole
    body = {"remat_base": base, "remat_memory": memory, "__module__": __name__, "__doc__": base.__doc__}
    made = type(f"Recomputing{base.__name__}", (kind, base), body)
    return keras.saving.register_keras_serializable("remat", "RecomputingModel")(made)


def _change_class(model: Any, memory: Memory) -> None:
    base = model.remat_base if isinstance(model, Recomputing) else type(model)
    model.__class__ = _recomputing_class(base, memory, not has_graph())
    for name in ("_remat_runners", "_remat_graph"):
        model.__dict__.pop(name, None)
    for name in ("train_function", "test_function", "predict_function"):  # compiled for the model as it was
        if getattr(model, name, None) is not None:
            setattr(model, name, None)


def _models_in(model: Any) -> list[Any]:
    """Models with save points that are layers of the model, inner ones first."""
    found: list[Any] = []
    for layer in model.layers:
        if isinstance(layer, keras.Model) and _nodes(layer) is not None:
            found += _models_in(layer)
            if _has_save_points(layer):
                found.append(layer)
    return found


def _has_save_points(model: Any) -> bool:
    return any(map(is_save_point, _nodes(model) or ()))


def _nodes(model: Any) -> list[GraphNode] | None:
    """The nodes of a model; None without a graph."""
    if not has_graph():
        return public_nodes(model)
    functional = functional_of(model)
    return None if functional is None else nodes_of(functional)


def _check(model: Any, memory: Memory) -> None:
    """Raise an error, with advice, if a model cannot become a recomputing one."""
    backend = keras.backend.backend()
    if backend not in BACKENDS:
        raise ProblemError(
            f"Keras runs on {backend}, whose gradients remat cannot recompute for: set the environment variable "
            f"KERAS_BACKEND to {', '.join(BACKENDS[:-1])} or {BACKENDS[-1]} before Keras is imported"
        )
    if not isinstance(model, keras.Model):
        raise StepError(f"recompute takes a functional or Sequential Keras model, not {type(model).__name__}")
    if _nodes(model) is None:
        if isinstance(model, keras.Sequential):
            raise ProblemError(
                f"the Sequential {model.name!r} has no graph yet: begin it with keras.Input(shape), or call "
                "model.build(shape)"
            )
        raise StepError(
            f"{type(model).__name__} is a subclassed model, whose layers are called by its own code: there is no graph "
            "to cut. In its call, write remat.checkpoint(self.block, x) for blocks of layers without dropout and "
            "statistics, or make functional models of its parts and call remat.keras.recompute on these"
        )
    if memory is not None:
        to_bytes(memory, "memory")
    if memory is not None and not has_graph():
        raise ProblemError(f"Keras {keras.__version__} hides the graphs of models, so a budget cannot be planned for")
    if memory is None and not _has_save_points(model) and not _models_in(model):
        raise ProblemError(
            f"the model {model.name!r} has no save point: put remat.keras.RecomputationCheckpoint() after some of its "
            'layers, or let a plan choose, with recompute(model, memory="2 GiB")'
        )

"""The model of `remat lstm --framework keras`: an LSTM over sections of a sequence, with its state saved between them.

It is the same function for any number of sections: they share one layer, and each passes its state to the next.
"""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import keras
import numpy

from remat.layers.keras import RecomputationCheckpoint, recompute
from remat.layers.keras.chain_stages import BudgetedGraph
from remat.layers.keras.keras_internals import functional_of, nodes_of
from remat.layers.keras.pure_segment import given_value
from remat.problem import Chain

__all__ = ["KerasLstm"]


class KerasLstm:
    """An LSTM that predicts the mean of its inputs, as a Keras model with save points or inside a budget."""

    def __init__(
        self, steps: int, hidden: int, batch: int, bounds: list[int], memory: int | None = None, inputs: int = 8
    ) -> None:
        rng = numpy.random.default_rng(0)
        self.xs = rng.normal(size=(batch, steps, inputs)).astype(keras.config.floatx())
        self.targets = self.xs.mean(axis=1)
        self.section_lengths = [stop - start for start, stop in pairwise([0, *bounds, steps])]
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        self.model = _model(steps, hidden, batch, bounds, inputs)
        if bounds:
            recompute(self.model, None if memory is None else max(0, memory - self.result_bytes))
        self.run: Callable[[], tuple[Any, list[Any]]]  # the loss and its gradients
        self.run, self._bytes = _BACKENDS[keras.backend.backend()](self.model, self.xs, self.targets)

    @property
    def result_bytes(self) -> int:
        """Bytes of the gradients, which no plan can avoid; budgets include them."""
        itemsize = self.xs.dtype.itemsize
        return int(sum(itemsize * numpy.prod(v.shape) for v in self.model.trainable_variables))

    def gradient(self) -> tuple[float, dict[str, Any]]:
        """The loss and its gradient for all parameters."""
        loss, gradients = self.run()
        names = [variable.path for variable in self.model.trainable_variables]
        arrays = [numpy.asarray(keras.ops.convert_to_numpy(each)) for each in gradients]
        return float(keras.ops.convert_to_numpy(loss)), dict(zip(names, arrays, strict=True))

    def peak(self) -> int | None:
        """The peak bytes of a gradient above those before it; None if the backend does not say."""
        return self._bytes()

    def chain(self) -> Chain:
        """The model's sections as a chain, each measured alone."""
        functional = functional_of(self.model)
        assert functional is not None
        graph = BudgetedGraph(nodes_of(functional), functional.inputs, functional.outputs, 0)
        inputs = [keras.ops.convert_to_tensor(self.xs)]
        return graph.measured(inputs, lambda variable: given_value(variable, None, set()))


def _model(steps: int, hidden: int, batch: int, bounds: list[int], inputs: int) -> Any:
    sequence = keras.Input((steps, inputs), batch_size=batch)
    # Use Keras's own loop on every device, since cuDNN does not support double precision.
    lstm = keras.layers.LSTM(hidden, return_state=True, use_cudnn=False)
    output, state = None, None
    for start, stop in pairwise([0, *bounds, steps]):
        state = state if start == 0 else RecomputationCheckpoint()(state)
        output, *state = lstm(sequence[:, start:stop], initial_state=state)
    return keras.Model(sequence, keras.layers.Dense(inputs)(output))


def _on_torch(model: Any, xs: Any, targets: Any) -> tuple[Callable[[], Any], Callable[[], int]]:
    import torch

    from remat.frameworks.torch.meter import meter_for

    x, y = keras.ops.convert_to_tensor(xs), keras.ops.convert_to_tensor(targets)

    def run() -> Any:
        loss = torch.mean((model(x, training=True) - y) ** 2)
        return loss.detach(), torch.autograd.grad(loss, [variable.value for variable in model.trainable_variables])

    def peak() -> int:
        meter = meter_for([x.device])
        with meter.counting():
            before = meter.now()
            meter.reset_peak()
            run()
            return int(meter.peak() - before)

    return run, peak


def _on_jax(model: Any, xs: Any, targets: Any) -> tuple[Callable[[], Any], Callable[[], int]]:
    import jax

    parameters, others = (
        [v.value for v in each] for each in (model.trainable_variables, model.non_trainable_variables)
    )
    x, y = jax.numpy.asarray(xs), jax.numpy.asarray(targets)

    def loss(parameters: Any, x: Any) -> Any:
        return jax.numpy.mean((model.stateless_call(parameters, others, x, training=True)[0] - y) ** 2)

    @cache
    def compiled() -> Any:
        return jax.jit(jax.value_and_grad(loss)).lower(parameters, x).compile()

    def peak() -> int:
        analysis = compiled().memory_analysis()
        return int(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)  # gradients count, as on PyTorch

    wait: Any = jax.block_until_ready
    return lambda: wait(compiled()(parameters, x)), peak


def _on_tensorflow(model: Any, xs: Any, targets: Any) -> tuple[Callable[[], Any], Callable[[], int | None]]:
    import tensorflow as tf

    x, y = tf.constant(xs), tf.constant(targets)

    @tf.function  # type: ignore[untyped-decorator]
    def run() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        return loss, tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    def peak() -> int | None:
        if not tf.config.list_physical_devices("GPU"):
            return None
        run()
        tf.config.experimental.reset_memory_stats("GPU:0")
        before = tf.config.experimental.get_memory_info("GPU:0")["current"]
        run()
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"] - before)

    return run, peak


_BACKENDS = {"torch": _on_torch, "jax": _on_jax, "tensorflow": _on_tensorflow}

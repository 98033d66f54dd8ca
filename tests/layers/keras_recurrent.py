"""`remat.keras.RNN` against `keras.layers.RNN`: each function is a check that tests run on a backend, by its name."""

import json
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import layers, ops

import remat

BACKEND = keras.backend.backend()
UNITS = 5
X = np.random.default_rng(0).standard_normal((4, 12, 3)).astype("float32")
MASK = np.array([[1] * 12, [0, 0] + [1] * 10, [1] * 7 + [0] * 5, [0] * 3 + [1, 0] * 4 + [0]], bool)


@keras.saving.register_keras_serializable("tests")
class OwnCell(layers.Layer):
    """A cell of the user's own, whose output is not its state."""

    state_size = UNITS

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], UNITS))
        self.u = self.add_weight(shape=(UNITS, UNITS))
        self.built = True

    def call(self, x, states):
        h = ops.tanh(x @ self.w + states[0] @ self.u)
        return ops.sin(h), [h]


CELLS = {
    "lstm": lambda: layers.LSTMCell(UNITS),
    "gru": lambda: layers.GRUCell(UNITS, dropout=0.4, recurrent_dropout=0.3, seed=1),
    "simple": lambda: layers.SimpleRNNCell(UNITS, dtype="float64"),
    "four_masks": lambda: layers.LSTMCell(UNITS, dropout=0.4, recurrent_dropout=0.3, seed=1, implementation=1),
    "stacked": lambda: [layers.LSTMCell(4, dropout=0.3, seed=1), layers.GRUCell(UNITS, recurrent_dropout=0.4, seed=2)],
    "own": OwnCell,
}
OPTIONS = (
    {"return_sequences": True},
    {"return_state": True, "go_backwards": True},
    {"return_sequences": True, "return_state": True, "zero_output_for_mask": True},
)


def outputs_and_gradients(layer, mask):
    """What the layer returns in training, and gradients for inputs and weights."""

    def loss_of(results):
        flat = keras.tree.flatten(results)
        return sum(ops.sum(ops.sin(x) * (place + 1)) for place, x in enumerate(flat)), flat

    if BACKEND == "torch":
        import torch

        x = torch.tensor(X, requires_grad=True)
        loss, results = loss_of(layer(x, mask=mask, training=True))
        gradients = torch.autograd.grad(loss, [x, *(v.value for v in layer.trainable_variables)])
        return [each.detach().numpy() for each in (*results, *gradients)]
    import jax

    parameters = [v.value for v in layer.trainable_variables]
    others = [v.value for v in layer.non_trainable_variables]

    def loss(x, parameters):
        return loss_of(layer.stateless_call(parameters, others, x, mask=mask, training=True)[0])

    (_, results), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(X, parameters)
    return [np.asarray(each) for each in jax.tree.leaves((results, gradients))]


def made(kind, new_cell, **kwargs):
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    layer = kind(new_cell(), **kwargs)
    layer.build(X.shape)
    return layer


def differences(cells=tuple(CELLS), options=OPTIONS):
    """The largest difference of an output or a gradient, of the largest one's size, for each cell."""
    found = dict.fromkeys(cells, 0.0)
    for name in cells:
        for place, option in enumerate(options):
            mask = ops.convert_to_tensor(MASK) if place else None
            budget = {"memory": "1 MiB"} if place == 1 else {"slots": 3}
            want = outputs_and_gradients(made(layers.RNN, CELLS[name], **option), mask)
            got = outputs_and_gradients(made(remat.keras.RNN, CELLS[name], **option, **budget), mask)
            relative = [float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(want, got, strict=True)]
            found[name] = max(found[name], *relative)
    return found


def some_differences():
    """Of one cell of each kind."""
    return differences(("lstm", "stacked"), OPTIONS[:2])


def models():
    """In models: `fit` against Keras's layer, bidirectional and stateful, inside of segments; files; predictions."""
    histories, predictions = [], []
    for kind, budget in ((layers.RNN, {}), (remat.keras.RNN, {"slots": 3})):
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        inputs = keras.Input((12, 3), batch_size=4)
        x = layers.Bidirectional(kind(layers.GRUCell(4, dropout=0.2, seed=1), return_sequences=True, **budget))(inputs)
        x = remat.keras.RecomputationCheckpoint()(x)
        x = kind(layers.LSTMCell(4), return_sequences=True, **budget)(layers.Masking()(x))
        x = remat.keras.RecomputationCheckpoint()(x)
        x = kind(layers.LSTMCell(4), stateful=True, **budget)(x)
        model = keras.Model(inputs, layers.Dense(1)(x))
        model = remat.keras.recompute(model) if budget else model
        model.compile(keras.optimizers.SGD(0.1), "mse")
        xs = np.concatenate([X, 2 * X])
        histories.append(model.fit(xs, xs[:, 0, :1], batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"])
        path = Path(tempfile.mkdtemp()) / "model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        for each in (model, loaded):
            each.layers[-2].reset_state()
            predictions.append(each.predict(X, batch_size=4, verbose=0))
    want = predictions[0]
    close = [float(np.abs(want - each).max()) for each in predictions]
    close += [abs(a - b) for a, b in zip(*histories, strict=True)]
    return max(close)


def refusals():
    """What it says without a budget, with a loop that is unrolled, and for cells that change state."""

    class Drawing(OwnCell):
        def build(self, shape):
            super().build(shape)
            self.count = self.add_weight(shape=(), trainable=False, initializer="zeros")

        def call(self, x, states):
            self.count.assign(self.count + 1)
            return super().call(x, states)

    def error_of(call):
        try:
            call()
        except remat.errors.RematError as error:
            return f"{type(error).__name__}: {error}"
        return None

    return [
        error_of(lambda: remat.keras.RNN(OwnCell())),
        error_of(lambda: remat.keras.RNN(OwnCell(), slots=3, unroll=True)),
        error_of(lambda: remat.keras.RNN(Drawing(), slots=3)(ops.convert_to_tensor(X), training=True)),
    ]


def prediction():
    """On a backend where it is not trained it predicts; in training it says so."""
    layer, plain = made(remat.keras.RNN, OwnCell, slots=3), made(layers.RNN, OwnCell)
    same = np.array_equal(ops.convert_to_numpy(layer(X)), ops.convert_to_numpy(plain(X)))
    try:
        layer(X, training=True)
    except remat.ProblemError as error:
        return same and "RecomputationCheckpoint" in str(error)
    return False


def peak():
    """Bytes of a gradient on PyTorch, of Keras's layer and of this one."""
    import gc

    import torch

    from remat.frameworks.torch.meter import StorageMeter

    found = []
    xs = torch.zeros(16, 128, 8)
    for kind, budget in ((layers.RNN, {}), (remat.keras.RNN, {"slots": 8})):
        layer = kind(layers.LSTMCell(32), **budget)
        layer.build(xs.shape)
        for _ in range(2):  # the first call also looks at the step
            meter = StorageMeter()
            gc.collect()
            with meter.counting():
                layer(xs, training=True).sum().backward()
        found.append(meter.peak())
    return found


if __name__ == "__main__":
    print(json.dumps({name: globals()[name]() for name in sys.argv[1:]}))

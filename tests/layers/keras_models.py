"""Models for the tests of remat.keras, each made with save points or without; run by `keras_program.py`."""

import keras
import numpy as np
from keras import layers, ops

import remat

N, D = 64, 16
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, D)).astype("float32")
Y = X[:, :1] ** 2
TOKENS = RNG.integers(0, 7, (N, 6))  # 0 is masked


class Builder:
    """`save(x)` is a save point, or nothing."""

    def __init__(self, recomputing):
        self.recomputing = recomputing

    def save(self, x, **kwargs):
        return remat.keras.RecomputationCheckpoint(**kwargs)(x) if self.recomputing else x

    def stack(self, between=None, depth=6, **kwargs):
        inputs = x = keras.Input((D,))
        for i in range(depth):
            x = layers.Dense(D, activation="tanh", **kwargs)(x)
            for make in [between] if between else []:
                x = make(i)(x)
            if i in (1, 3):
                x = self.save(x, **kwargs)
        return keras.Model(inputs, layers.Dense(1, dtype="float32")(x)), X

    def dense(self):
        return self.stack()

    def dropout(self):
        return self.stack(lambda i: layers.Dropout(0.3, seed=i))

    def batch_norm(self):
        return self.stack(lambda i: layers.BatchNormalization())

    def mixed_precision(self):
        kwargs = {"dtype": "mixed_bfloat16"}
        return self.stack(lambda i: layers.Dropout(0.3, seed=i, **kwargs), **kwargs)

    def skip(self):
        inputs = keras.Input((D,))
        first = layers.Dense(D, activation="gelu")(inputs)
        x = self.save(layers.Dense(D, activation="gelu")(first))
        x = layers.Dense(D, activation="gelu")(x) + first
        x = self.save(layers.Dense(D, activation="gelu")(x))
        return keras.Model(inputs, layers.Dense(1)(layers.Concatenate()([x, first, inputs]))), X

    def regularizers(self):
        inputs = keras.Input((D,))
        x = layers.Dense(D, activation="gelu", activity_regularizer="l2")(inputs)
        x = layers.Dense(D, activation="gelu", kernel_regularizer="l2", activity_regularizer="l1")(x)
        x = self.save(x)
        x = layers.ActivityRegularization(l2=0.1)(layers.Dense(D, activation="gelu")(x))
        return keras.Model(inputs, layers.Dense(1)(self.save(x))), X

    def masks(self):
        inputs = keras.Input((6,), dtype="int32")
        x = layers.Embedding(7, D, mask_zero=True)(inputs)
        x = self.save(layers.Dense(D, activation="gelu")(x))
        x = self.save(layers.LSTM(D, return_sequences=True)(x))
        x = layers.MultiHeadAttention(2, 4)(x, x)
        return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x))), TOKENS

    def towers(self):
        left, right = keras.Input((D,)), keras.Input((D,))
        a = self.save(layers.Dense(D, activation="gelu")(left))
        a = layers.Dropout(0.3, seed=1)(layers.Dense(D, activation="gelu")(a))
        b = self.save(layers.BatchNormalization()(layers.Dense(D, activation="gelu")(right)))
        b = self.save(layers.Dense(D, activation="gelu")(b))
        return keras.Model([left, right], layers.Dense(1)(layers.Add()([a, b]))), [X, X[::-1].copy()]

    def shared(self):
        inputs = x = keras.Input((D,))
        dense, drop = layers.Dense(D, activation="gelu"), layers.Dropout(0.3, seed=1)
        for i in range(4):
            x = drop(dense(x))
            x = self.save(x) if i < 3 else x
        return keras.Model(inputs, layers.Dense(1)(x)), X

    def nested(self):
        inputs = x = keras.Input((D,))
        for i in range(3):
            middle = keras.Input((D,))
            y = self.save(layers.Dense(D, activation="gelu", activity_regularizer="l2")(middle))
            y = layers.BatchNormalization()(layers.Dropout(0.3, seed=i)(layers.Dense(D)(y)))
            x = keras.Model(middle, layers.Dense(D)(y))(x)
            x = self.save(x) if i < 2 else x
        return keras.Model(inputs, layers.Dense(1)(x)), X

    def sequential(self):
        save = [remat.keras.RecomputationCheckpoint()] if self.recomputing else []
        head = [layers.Dense(D, activation="gelu", activity_regularizer="l2"), layers.Dropout(0.3, seed=1)]
        return keras.Sequential([keras.Input((D,)), *head, *save, layers.Dense(D), layers.Dense(1)]), X

    def nested_structures(self):
        inputs = {"a": keras.Input((D,), name="a"), "b": keras.Input((D,), name="b")}
        values = {
            "sum": inputs["a"] + layers.Dense(D)(inputs["b"]),
            "parts": [inputs["a"], layers.Dense(D)(inputs["a"])],
        }
        values = self.save(values)
        x = layers.Dense(D, activation="gelu")(values["sum"]) * values["parts"][1] + values["parts"][0]
        return keras.Model(inputs, layers.Dense(1)(x)), {"a": X, "b": X[::-1].copy()}

    def recurrent_dropout(self):
        inputs = keras.Input((6,), dtype="int32")
        x = layers.Embedding(7, D)(inputs)
        x = self.save(layers.GRU(D, return_sequences=True, recurrent_dropout=0.3, seed=1)(x))
        x = self.save(layers.Bidirectional(layers.LSTM(D, dropout=0.2, seed=2))(x))
        return keras.Model(inputs, layers.Dense(1)(x)), TOKENS

    def stateful(self):
        """The states are variables that Keras does not count among those of the layers."""
        inputs = keras.Input((D,))
        x = self.save(Counting()(layers.Dense(D, activation="gelu")(inputs)))
        return keras.Model(inputs, layers.Dense(1)(self.save(Counting()(x)))), X

    def assigned_weights(self):
        return self.stack(lambda i: layers.SpectralNormalization(layers.Dense(D)), depth=4)

    def frozen(self):
        model, x = self.stack(lambda i: layers.BatchNormalization())
        for name in ("dense", "batch_normalization", "dense_2"):
            model.get_layer(name).trainable = False
        return model, x

    def foreign_variable(self):
        inputs = keras.Input((D,))
        dense = layers.Dense(D, activation="gelu")
        x = self.save(dense(inputs))
        x = layers.Lambda(lambda x: x @ dense.kernel)(x)
        return keras.Model(inputs, layers.Dense(1)(self.save(x))), X

    def own_train_step(self):
        inputs = keras.Input((D,))
        x = self.save(layers.Dropout(0.3, seed=0)(layers.Dense(D, activation="gelu")(inputs)))
        return DoubledLoss(inputs, layers.Dense(1)(x)), X

    def unseeded_draws(self):
        inputs = keras.Input((D,))
        x = self.save(layers.Dense(D)(Noise()(layers.Dense(D)(inputs))))
        return keras.Model(inputs, layers.Dense(1)(self.save(Noise()(x)))), X


class DoubledLoss(keras.Model):
    """A functional model of the user's own class."""

    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


class Counting(layers.Layer):
    """Scales by the number of its calls, as a variable that Keras does not see."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.__dict__["hidden"] = {"count": keras.Variable(0.0, trainable=False, name="count")}

    def call(self, x):
        count = self.hidden["count"]
        count.assign(count + 1)
        return x * (1 + 0.1 * count)


@keras.saving.register_keras_serializable("tests")
class Noise(layers.Layer):
    """Draws from the generator that Keras has for all."""

    def call(self, x):
        return x * keras.random.normal(ops.shape(x))


CASES = [name for name, value in vars(Builder).items() if callable(value) and name not in ("__init__", "save", "stack")]

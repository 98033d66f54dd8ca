"""Trains models of `keras_models.py` with save points and without, and prints how they differ.

It is a program of its own, since Keras reads its backend when it is imported: `python keras_program.py dense dropout`.
"""

import json
import sys

import keras
import numpy as np
from keras_models import CASES, Builder, Y

import remat

ADAM = ("dense", "dropout", "batch_norm", "mixed_precision")


def pair(case):
    """The model without save points, and with them, with equal variables; and its inputs."""
    models = []
    for recomputing in (False, True):
        keras.utils.clear_session()  # so that names are the same
        keras.utils.set_random_seed(0)
        model, x = getattr(Builder(recomputing), case)()
        models.append(remat.keras.recompute(model) if recomputing else model)
    values = {v.path: numpy(v) for v in models[0].variables}
    for variable in models[1].variables:
        variable.assign(values.pop(variable.path))
    assert not values
    return *models, x


def numpy(variable):
    return np.array(keras.ops.convert_to_numpy(variable.value))


def fitted(case, model, x):
    """Losses, and all variables after eight steps by their names."""
    keras.utils.set_random_seed(1)
    optimizer = (
        keras.optimizers.Adam(1e-3, name="optimizer")
        if case in ADAM
        else keras.optimizers.SGD(1e-2, momentum=0.9, name="optimizer")
    )
    model.compile(optimizer=optimizer, loss="mse")
    history = model.fit(x, Y, epochs=2, batch_size=16, shuffle=False, verbose=0)
    return history.history["loss"], {
        v.path: numpy(v).astype("float64") for v in [*model.variables, *optimizer.variables]
    }


def difference(case):
    """The largest difference of any variable, and whether the model has learnt at all."""
    plain, ours, x = pair(case)
    before = {v.path: numpy(v) for v in plain.trainable_variables}
    losses, want = fitted(case, plain, x)
    _, got = fitted(case, ours, x)
    moved = {path: np.abs(numpy(v) - before[path]).max() for v in plain.trainable_variables if (path := v.path)}
    assert want.keys() == got.keys()
    return {
        "difference": max(float(np.abs(want[path] - got[path]).max()) for path in want),
        "learnt": bool(min(moved.values()) > 0 and np.isfinite(losses).all()),
        "segments": len(ours._runners()) if hasattr(ours, "_runners") else len(ours._functional._runners()),
    }


if __name__ == "__main__":
    print(json.dumps({case: difference(case) for case in sys.argv[1:] or CASES}))

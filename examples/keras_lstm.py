"""An LSTM of Keras over a long sequence, cut by save points: the same loss and gradients, and less is saved.

Run it: KERAS_BACKEND=torch python examples/keras_lstm.py
"""

import os
from itertools import pairwise

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from keras import layers

import remat

STEPS, UNITS, BATCH, FEATURES = 64, 16, 8, 4


def lstm_model(checkpoints):
    """The same function for every number of save points: one layer, whose state goes from section to section."""
    keras.utils.set_random_seed(0)
    sequence, state = keras.Input((STEPS, FEATURES)), None
    lstm = layers.LSTM(UNITS, return_state=True)
    bounds = [k * STEPS // (checkpoints + 1) for k in range(checkpoints + 2)]
    for start, stop in pairwise(bounds):
        state = remat.keras.RecomputationCheckpoint()(state) if start else None
        output, *state = lstm(sequence[:, start:stop], initial_state=state)
    model = keras.Model(sequence, layers.Dense(1)(output))
    return remat.keras.recompute(model) if checkpoints else model


def main():
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(4 * BATCH, STEPS, FEATURES)).astype("float32")
    losses = {}
    for checkpoints in (0, 7):
        model = lstm_model(checkpoints)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
        history = model.fit(xs, xs.mean(axis=(1, 2))[:, None], batch_size=BATCH, shuffle=False, verbose=0)
        losses[checkpoints] = history.history["loss"][0]
        print(f"{checkpoints} save points: loss {losses[checkpoints]:.7f}")
    print(remat.keras.explain(lstm_model(7), batch_size=BATCH))
    difference = abs(losses[0] - losses[7])
    assert difference < 1e-6
    print("the losses are equal, bit for bit" if not difference else f"the losses agree to {difference:.0e}")


if __name__ == "__main__":
    main()

"""What recomputing Keras models do beside `fit`: each function is a check that tests run on a backend, by its name."""

import gc
import json
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import layers
from keras_models import Builder, D, X, Y
from keras_program import fitted, numpy, pair

import remat

BACKEND = keras.backend.backend()


def values(model):
    return {v.path: numpy(v) for v in model.variables}


def same(a, b, tolerance=2e-6):
    return a.keys() == b.keys() and all(np.allclose(a[key], b[key], rtol=0, atol=tolerance) for key in a)


def methods_of_keras():
    """evaluate, predict, train_on_batch and callbacks are those of the plain model."""
    plain, ours, _ = pair("dropout")
    results = []
    for model in (plain, ours):
        seen = []
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs, seen=seen: seen.append(logs))
        model.compile(optimizer=keras.optimizers.SGD(1e-2, name="sgd"), loss="mse", metrics=["mae"])
        model.train_on_batch(X[:16], Y[:16])
        model.fit(X, Y, batch_size=16, shuffle=False, verbose=0, callbacks=[callback])
        scores = model.evaluate(X, Y, verbose=0)
        results.append((scores, model.predict(X, verbose=0), len(seen), values(model)))
    (s0, p0, n0, v0), (s1, p1, n1, v1) = results
    return n0 == n1 == 4 and np.allclose(s0, s1, atol=1e-5) and np.allclose(p0, p1, atol=1e-5) and same(v0, v1)


def ways_to_train():
    """Eager and compiled training, weights of samples, validation, more callbacks; weights of one fit the other."""
    losses = []
    for options in ({"run_eagerly": True}, {"jit_compile": BACKEND != "torch"}, {"steps_per_execution": 2}):
        if BACKEND == "torch" and "steps_per_execution" in options:
            continue
        plain, ours, _ = pair("batch_norm")
        for model in (plain, ours):
            folder = Path(tempfile.mkdtemp())
            callbacks = [
                keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True),
                keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
                keras.callbacks.ReduceLROnPlateau(patience=1),
                keras.callbacks.CSVLogger(folder / "log.csv"),
            ]
            model.compile(keras.optimizers.SGD(1e-2), "mse", weighted_metrics=["mae"], **options)
            weights = {"sample_weight": np.linspace(0, 1, len(X)), "validation_split": 0.25}
            fitted = model.fit(X, Y, epochs=2, batch_size=12, shuffle=False, verbose=0, callbacks=callbacks, **weights)
            losses.append([*fitted.history["loss"], *fitted.history["val_mae"]])
            keras.models.load_model(folder / "best.keras")
            model.save_weights(folder / "one.weights.h5")
        plain.load_weights(folder / "one.weights.h5")
        assert same(values(plain), values(ours), 0)
    return all(np.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(losses[::2], losses[1::2], strict=True)) or losses


def compiled_by_pytorch():
    """How far weights differ from a plain model's where PyTorch compiles the whole step of the recomputing one."""
    plain, ours, _ = pair("dropout")
    for model, compiled in ((plain, False), (ours, True)):
        model.compile(keras.optimizers.SGD(1e-2, name="sgd"), "mse", jit_compile=compiled)
        model.fit(X, Y, batch_size=32, shuffle=False, verbose=0)
    want, got = values(plain), values(ours)
    return max(float(np.abs(want[path] - got[path]).max()) for path in want)


def parts_of_other_models():
    """A recomputing model is a part of a subclassed and of a functional model, which train as with a plain one."""

    class Subclassed(keras.Model):
        def __init__(self, body):
            super().__init__()
            self.body, self.head = body, layers.Dense(1, kernel_initializer="ones")

        def call(self, x, training=False):
            return self.head(self.body(x, training=training))

    losses = []
    plain, ours, _ = pair("dropout")
    for part in (plain, ours):
        inputs = keras.Input((D,))
        functional = keras.Model(inputs, layers.Dense(1, kernel_initializer="ones")(part(inputs)))
        for model in (Subclassed(part), functional):
            model.compile(keras.optimizers.SGD(1e-3), "mse")
            losses.append(model.fit(X, Y, batch_size=20, shuffle=False, verbose=0).history["loss"])
            losses[-1] += [float(np.abs(model.predict(X, verbose=0)).sum())]
    return np.allclose(losses[:2], losses[2:], rtol=1e-5)


def files_and_clones():
    """A `.keras` file and a clone are recomputing models with the same weights, budget and class."""
    _, ours, _ = pair("batch_norm")
    path = Path(tempfile.mkdtemp()) / "model.keras"
    ours.save(path)
    loaded = keras.models.load_model(path)
    clone = keras.models.clone_model(ours)
    clone.set_weights(ours.get_weights())
    equal = all(np.array_equal(ours.predict(X, verbose=0), each.predict(X, verbose=0)) for each in (loaded, clone))
    own = remat.keras.recompute(Builder(True).own_train_step()[0], memory="1 MiB")
    again = type(own).from_config(own.get_config(), custom_objects={"DoubledLoss": type(own).remat_base})
    budgets = (loaded.remat_memory, again.remat_memory) == (None, "1 MiB")
    return equal and budgets and type(loaded) is type(clone) is type(ours) and type(again) is type(own)


def copies_of_models():
    """Pickles and files in the older format are recomputing models too; so is a file that a new process loads."""
    folder, equal = Path(tempfile.mkdtemp()), []
    sequential = keras.Sequential([keras.Input((D,)), layers.Dense(D), remat.keras.RecomputationCheckpoint()])
    for ours in (pair("batch_norm")[1], remat.keras.recompute(sequential, memory="1 MiB")):
        ours.save(folder / "model.h5")
        copies = pickle.loads(pickle.dumps(ours)), keras.models.load_model(folder / "model.h5")
        for each in copies:
            same_kind = type(each) is type(ours) and each.remat_memory == ours.remat_memory
            equal.append(same_kind and np.array_equal(ours.predict(X, verbose=0), each.predict(X, verbose=0)))
    ours.save(folder / "model.keras")
    program = "import sys, keras, remat.layers.keras; print(type(keras.models.load_model(sys.argv[1])).__name__)"
    command = [sys.executable, "-c", program, str(folder / "model.keras")]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return all(equal) and loaded.strip() == "RecomputingSequential"


def kinds_of_values():
    """A save point returns the structure that it is called with; sparse symbolic tensors stay sparse."""
    save = remat.keras.RecomputationCheckpoint()
    x = keras.ops.convert_to_tensor(X)
    got = save({"a": x, "b": (x, [x, None])})
    same_tree = isinstance(got["b"], tuple) and got["b"][1][1] is None and got["a"] is x
    if BACKEND == "torch":  # Keras has no sparse tensors there
        return same_tree
    dense, sparse = save([keras.Input((D,)), keras.Input((D,), sparse=True)])
    return same_tree and sparse.sparse and not dense.sparse


def sequential_models():
    """A Sequential recomputes, also when layers are added; its file does."""
    model = keras.Sequential([keras.Input((D,)), layers.Dense(D), remat.keras.RecomputationCheckpoint()])
    remat.keras.recompute(model).add(layers.Dense(1))
    path = Path(tempfile.mkdtemp()) / "model.keras"
    model(X[:2])
    model.save(path)
    loaded = keras.models.load_model(path)
    y = loaded(X[:2])
    segments = [len(each._functional._runners()) for each in (model, loaded)]
    return segments == [2, 2] and isinstance(loaded, keras.Sequential) and tuple(y.shape) == (2, 1)


def own_loops():
    """A training loop of the user's own gives the gradients of the plain model."""
    gradients = [gradient_of(model) for model in pair("dropout")[:2]]
    return all(np.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(*gradients, strict=True))


def gradient_of(model):
    if BACKEND == "torch":
        loss = (model(X, training=True) ** 2).mean()
        loss.backward()
        return [v.value.grad.numpy() for v in model.trainable_variables]
    if BACKEND == "jax":
        import jax

        others = [v.value for v in model.non_trainable_variables]

        def loss(parameters):
            return (model.stateless_call(parameters, others, X, training=True)[0] ** 2).mean()

        return [np.asarray(g) for g in jax.grad(loss)([v.value for v in model.trainable_variables])]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(X, training=True) ** 2)
    return [np.asarray(g) for g in tape.gradient(loss, [v.value for v in model.trainable_variables])]


def same_model():
    """Layers, variables, names, weights, optimiser and summary are those of the model, which is changed in place."""
    model, _ = Builder(True).batch_norm()
    model.compile("adam", "mse")
    lines, before = [], (model.layers, model.variables, model.name, model.optimizer)
    model.summary(print_fn=lines.append)
    same_object = remat.keras.recompute(model)
    after = model.layers, model.variables, model.name, model.optimizer
    now = []
    model.summary(print_fn=now.append)
    identical = all(a is b for x, y in zip(before[:2], after[:2], strict=True) for a, b in zip(x, y, strict=True))
    return same_object is model and identical and before[2:] == after[2:] and lines == now


def budgets():
    """With a budget the model trains the same, by a plan that keeps it; without save points, too."""
    found = {}
    for case in ("dropout", "skip"):
        for recomputing in (True, False):
            plain, ours, x = fixed_batches(case, recomputing)
            _, want = fitted(case, plain, x)
            remat.keras.recompute(ours, memory=10**9)
            fitted(case, ours, x)
            [everything] = ours.remat_graph.plans
            budget = (least_of(everything.problem) + everything.peak) // 2
            plain, ours, x = fixed_batches(case, recomputing)
            remat.keras.recompute(ours, memory=budget)
            _, got = fitted(case, ours, x)
            [tight] = ours.remat_graph.plans
            assert same(want, got), case
            assert tight.peak <= budget < everything.peak, case
            found[case, recomputing] = tight.recomputed
    plain, ours, x = fixed_batches("stateful", True)
    remat.keras.recompute(ours, memory="1 MiB")
    assert same(fitted("stateful", plain, x)[1], fitted("stateful", ours, x)[1])
    return all(found.values())


def budgets_with_views():
    """Layers that return views of their inputs, without save points: the model trains the same by a tight plan."""
    results, everything = [], None
    for budget in (None, 10**9, None):
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        inputs = keras.Input((D,), batch_size=16)
        x = layers.Flatten()(layers.Dense(4, activation="gelu")(layers.Reshape((4, 4))(inputs)))
        for i in range(3):
            x = layers.Reshape((D,))(layers.Dropout(0.3, seed=i)(layers.Dense(D, activation="gelu")(x)))
        model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))
        if results:
            budget = budget or (least_of(everything.problem) + everything.peak) // 2
            remat.keras.recompute(model, memory=budget)
        results.append(fitted("views", model, X)[1])
        if len(results) == 2:
            [everything] = model.remat_graph.plans
    [tight] = model.remat_graph.plans
    return same(results[0], results[2]) and tight.recomputed and tight.peak <= budget < everything.peak


def least_of(problem):
    """The smallest budget that a plan fits."""
    try:
        return remat.plan(problem, memory=1).peak
    except remat.InfeasibleError as error:
        return error.minimum


def budgets_too_small():
    """A budget that no plan fits is an InfeasibleError, in `fit`, too, which names the least that works."""
    _, ours, x = fixed_batches("skip", True)
    remat.keras.recompute(ours, memory=100)
    try:
        fitted("skip", ours, x)
    except remat.InfeasibleError as error:
        least, said = error.minimum, "smallest that works" in str(error)
    _, ours, x = fixed_batches("skip", True)  # on JAX, Keras leaves a model without values where `fit` fails
    remat.keras.recompute(ours, memory=least)
    fitted("skip", ours, x)
    return said and ours.remat_graph.plans[0].peak <= least


def fixed_batches(case, recomputing):
    keras_input = keras.Input
    keras.Input = lambda shape, **kwargs: keras_input(shape, batch_size=16, **kwargs)
    try:
        models = []
        for marked in (False, recomputing):
            keras.utils.clear_session()
            keras.utils.set_random_seed(0)
            models.append(getattr(Builder(marked), case)())
    finally:
        keras.Input = keras_input
    (plain, x), (ours, _) = models
    known = values(plain)
    for variable in ours.variables:
        variable.assign(known[variable.path])
    return plain, ours, x


def explanations():
    """`explain` names segments, what crosses them, and bytes."""
    _, ours, _ = pair("skip")
    text = remat.keras.explain(ours)
    words = ["3 segments", "dense to recomputation_checkpoint", "recomputation_checkpoint, dense: 4 KiB"]
    inputs = keras.Input((D,))
    dropout = keras.Model(inputs, layers.Dense(1)(layers.Dropout(0.5, seed=0)(layers.Dense(D)(inputs))))
    [row] = [line for line in remat.keras.explain(dropout).splitlines() if line.startswith("1 dropout ")]
    return (all(word in text for word in words) and " 0 B" not in row) or text + row  # its mask is kept in training


def errors():
    """What cannot be recomputed is refused, with what to do."""

    class Subclassed(keras.Model):
        def call(self, x):
            return x

    inputs = keras.Input((D,))
    plain = keras.Model(inputs, layers.Dense(1)(inputs))
    subclassed = refusal(Subclassed())
    return (
        isinstance(subclassed, TypeError)
        and "remat.checkpoint" in str(subclassed)
        and isinstance(refusal(plain), ValueError)
        and "RecomputationCheckpoint()" in str(refusal(plain))
        and "memory=" in str(refusal(plain))
        and "Input" in str(refusal(keras.Sequential([layers.Dense(1)])))
        and isinstance(refusal("no model"), TypeError)
        and all("memory" in str(refusal(plain, memory=size)) for size in ("much", -1, True, 0.5, [3]))
    )


def refusal_of_the_backend():
    """On a backend without gradients: what it says."""
    return str(refusal(Builder(True).dense()[0]))


def refusal(model, **budget):
    try:
        remat.keras.recompute(model, **budget)
    except remat.errors.RematError as error:
        return error
    return None


def by_public_names():
    """Without the private names of Keras, segments are sub-models; a layer that is called twice is refused."""
    from remat.layers.keras import recomputing_model

    recomputing_model.has_graph = lambda: False
    differences = {}
    for case in ("dropout", "batch_norm", "skip", "towers", "regularizers", "nested_structures", "sequential"):
        plain, ours, x = pair(case)
        want, got = (fitted(case, model, x)[1] for model in (plain, ours))
        differences[case] = max(float(np.abs(want[path] - got[path]).max()) for path in want)
        assert len(ours.__dict__["_remat_runners"]) > 1, case
    assert "called twice" in str(refusal(Builder(True).shared()[0]))
    return max(differences.values()) <= {"torch": 0.0, "jax": 1e-6, "tensorflow": 2e-6}[BACKEND] or differences


def saved_bytes():
    """Bytes that PyTorch saves for the backward, in MiB: 12 dense layers, plain and with save points after 4 and 8."""
    import torch

    found = []
    for recomputing in (False, True):
        inputs = x = keras.Input((64,))
        for i in range(12):
            x = layers.Dense(64, activation="gelu")(x)
            x = remat.keras.RecomputationCheckpoint()(x) if recomputing and i in (3, 7) else x
        model = (remat.keras.Model if recomputing else keras.Model)(inputs, layers.Dense(1)(x))
        batch, storages = torch.zeros(512, 64), {}
        there = {each.untyped_storage().data_ptr() for each in [batch, *model.parameters()]}

        def pack(tensor, storages=storages, there=there):
            key = tensor.untyped_storage().data_ptr()
            if key not in there:
                storages[key] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = model(batch, training=True)
        found.append(round(sum(storages.values()) / 2**20, 2))
        del result
    return found


def lstm_peaks():
    """The peaks of the LSTM with 0 and 7 save points, and how far loss and gradients differ."""
    from remat.cli.lstm.keras_model import KerasLstm

    plain, cut = KerasLstm(128, 32, 8, []), KerasLstm(128, 32, 8, [16 * k for k in range(1, 8)])
    (loss, want), (again, got) = plain.gradient(), cut.gradient()
    gc.disable()  # so that tensors in reference cycles, which Keras leaves, would stay
    peaks = [plain.peak(), cut.peak()]
    gc.enable()
    return [*peaks, abs(loss - again), max(float(np.abs(want[k] - got[k]).max()) for k in want)]


if __name__ == "__main__":
    results = {name: globals()[name]() for name in sys.argv[1:]}
    print(json.dumps({k: bool(v) if isinstance(v, bool | np.bool_) else v for k, v in results.items()}))

"""Programs that give a dict an item under a new key in every turn, and programs that only seem to."""

import numpy as np


def states_by_text(start, weights, bias):
    x, tape = start, {}
    for i in range(20):
        x = np.tanh(x @ weights + bias)
        tape[f"step{i}"] = x
    return sum(np.sum(tape[f"step{i}"] * (i + 1)) for i in range(20)) + len("".join(tape))


def states_beside_what_was_there(start, weights, bias):
    x, tape = start, {"first": start}
    for i, scale in enumerate(np.linspace(0.5, 1.0, 15), 3):
        x = np.tanh(scale * x @ weights + bias)
        tape["state", i] = x * 2
    return sum(np.sum(each * k) for k, each in enumerate(tape.values())) + tape["state", 5][0]


def numbers_from_a_later_start(start, weights, bias):
    x, seen = start, dict()
    for i in range(12):
        x = np.tanh(x @ weights + bias)
        seen[i + 1] = np.sum(x)
        seen_last = i
    return sum(k * each for k, each in seen.items()) + seen_last


def from_the_last_to_the_first(start, weights, bias):
    x, seen = start, {}
    for i, g in zip(reversed(range(10)), [0.5, 1.0] * 5):
        x = np.tanh(g * x @ weights + bias)
        seen[str(i)] = x
    return np.sum(seen["9"]) - 3 * np.sum(seen["0"]) + list(seen).index("4")


def up_to_a_break(start, weights, bias):
    x, seen, k = start, {}, 0
    for k in range(30):
        x = np.tanh(x @ weights + bias)
        if k > 3 and np.sum(x * x) < 0.9 + 0.01 * k:
            break
        seen[f"{k}"] = (x, k)
    return sum(np.sum(each) * n for each, n in seen.values()) + len(seen) + k


def keys_of_another_dict(start, weights, bias):
    x, out = start, {}
    for name, scale in {"a": 0.5, "b": 0.7, "c": 0.9, "d": 1.0, "e": 1.1, "f": 1.2}.items():
        x = np.tanh(scale * x @ weights + bias)
        out[name + "!"] = x
    return np.sum(out["a!"] * out["f!"]) + len("".join(out))


def new_dict_in_every_outer_turn(start, weights, bias):
    x, total = start, 0.0
    for epoch in range(3):
        tape = {}
        for i in range(7):
            x = np.tanh(x @ weights + bias)
            tape[f"{i}"] = x
        total = total + np.sum(tape["2"] * tape["6"])
    return total


def key_that_comes_again(start, weights, bias):
    x, last = start, {}
    for i in range(20):
        x = np.tanh(x @ weights + bias)
        last[f"{i % 2}"] = x
    return np.sum(last["0"] * last["1"]) + len(last)


def key_that_is_assigned(start, weights, bias):
    x, last = start, {}
    for i in range(20):
        x = np.tanh(x @ weights + bias)
        i = i // 10
        last[f"{i}"] = x
    return np.sum(last["0"] * last["1"]) + len(last)


def dict_that_is_read_by_another_name(start, weights, bias):
    x, tape = start, {"0": start}
    for i in range(1, 6):
        x = np.tanh(x @ weights + bias)
        tape[str(i)] = x
    other = tape
    return np.sum(other["3"]) * len(tape)

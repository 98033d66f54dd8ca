"""Programs with loops of every kind: each has the gradient of the plain function."""

import enum
import itertools

import numpy as np

GLOBAL_K = 2.0
SCALE = 0.3


class Mode(enum.Enum):
    A = 1
    B = 2


def recurrence(start, weights, bias):
    state = start
    for i in range(60):
        state = np.tanh(state @ weights + bias)
    return np.sum(state**2)


def two_states_and_the_index(start, weights, bias):
    state, c = (start, bias * 0.1)
    for i in range(3, 40, 2):
        c = 0.9 * c + state * (i / 40)
        state = np.tanh(state @ weights + c)
    return np.sum(state * c)


def three_levels(start, weights, bias):
    state = start
    for i in range(6):
        s = state
        for j in range(5):
            s = np.tanh(s @ weights)
            for k in range(3):
                state = 0.5 * state + 0.1 * s
        state = state + bias * 0.01
    return np.sum(state)


def data_break(start, weights, bias):
    state = start
    for i in range(100):
        state = 1.1 * state + 0.01 * bias
        if np.sum(state**2) > 30.0:
            break
        state = state @ weights + state
    else:
        state = state * 100.0
    return np.sum(state) + i


def early_return(start, weights, bias):
    state = start
    for i in range(100):
        state = 1.05 * state + 0.01 * bias
        t = np.sum(state**2)
        if t > 20.0:
            extra = np.tanh(state)
            return np.sum(extra) * t
        if t < 0.0:
            continue
        state = np.tanh(state @ weights) + state
    return np.sum(state)


def while_unknown(start, weights, bias):
    state, n = (start, 0)
    while np.sum(state**2) < 50.0 and n < 200:
        n += 1
        if n % 3 == 0:
            continue
        state = 1.07 * state + 0.01 * np.tanh(state @ weights) + 0.01 * bias
    return np.sum(state**2) / n


def conditional_live(start, weights, bias):
    best, state = (start * 0.0, start)
    for i in range(30):
        state = np.tanh(state @ weights + bias)
        if i % 7 == 3:
            best = state * i
    return np.sum(best)


def zipped(start, weights, bias):
    state = bias
    for w, (v, u) in zip([1.0, 2.0, 3.0] * 5, enumerate([start, start * 2, start * 3] * 5)):
        state = np.tanh(state @ weights + u * w / (1 + v))
    return np.sum(state)


def zero_trip(start, weights, bias):
    state = start
    for i in range(0):
        state = state @ weights
        q = state
    return np.sum(state * bias)


def one_trip(start, weights, bias):
    state = start
    for i in range(1):
        state = state @ weights
        q = state
    return np.sum(state * bias) + np.sum(q)


def shape_change(start, weights, bias):
    state = 0.0
    for i in range(20):
        state = np.tanh(state + start @ weights + bias)
    return np.sum(state)


def inner_break(start, weights, bias):
    state = start
    for i in range(8):
        for j in range(10):
            state = 1.1 * state + 0.02 * bias
            if np.sum(state**2) > 5.0 + i:
                break
        state = np.tanh(state @ weights)
    return np.sum(state) + j


def try_inside(start, weights, bias):
    state = start
    for i in range(10):
        try:
            if i == 5:
                raise ValueError
            state = np.tanh(state @ weights + bias)
        except ValueError:
            state = state * 0.5
    return np.sum(state)


def while_true(start, weights, bias):
    state, n = (start, 0)
    while True:
        state = 1.1 * state + 0.01 * bias
        n = n + 1
        if np.sum(state**2) > 40.0:
            break
    return np.sum(state) * n


def infinite(start, weights, bias):
    state = start
    for i in itertools.count():
        state = 1.1 * state + 0.01 * bias
        if i > 12:
            break
    return np.sum(state)


def generator(start, weights, bias):
    state = start
    for k in (j * j for j in range(12)):
        state = np.tanh(state @ weights + bias * k / 100)
    return np.sum(state)


def nested_return(start, weights, bias):
    state = start
    for i in range(10):
        for j in range(5):
            state = 1.05 * state + 0.01 * bias
            if np.sum(state**2) > 12.0:
                return np.sum(state) * (i + 1) + j
        state = state + 0.1 * np.tanh(state @ weights)
    return np.sum(state)


def try_around(start, weights, bias):
    state = start
    try:
        for i in range(10):
            state = np.tanh(state @ weights + bias)
            if i == 7:
                raise KeyError
    except KeyError:
        state = state * 2.0
    return np.sum(state) + i


def with_around(start, weights, bias):
    state = start
    with np.errstate(all="raise"):
        for i in range(10):
            state = np.tanh(state @ weights + bias)
    return np.sum(state)


def two_loops(start, weights, bias):
    state = start
    for i in range(10):
        state = np.tanh(state @ weights)
        keep = state
    for i in range(5):
        state = state + keep * bias
    return np.sum(state)


def match_inside(start, weights, bias):
    state = start
    for i in range(12):
        match i % 3:
            case 0:
                state = np.tanh(state @ weights)
            case 1:
                state = state + bias
            case k:
                state = state * (0.9 + 0.01 * k)
    return np.sum(state)


def carried_object(start, weights, bias):
    state = start
    rng = np.random.RandomState(0)
    for i in range(10):
        state = np.tanh(state @ weights + bias * rng.standard_normal())
    return np.sum(state)


def rng_break(start, weights, bias):
    np.random.seed(3)
    state = start
    for i in range(40):
        state = 1.05 * state + bias * 0.1 * np.random.standard_normal()
        if np.sum(state**2) > 15.0:
            break
        state = state + 0.01 * np.tanh(state @ weights) * np.random.standard_normal()
    return np.sum(state)


def gen_boxes(start, weights, bias):
    state = bias
    for v in (start * k for k in range(6)):
        state = np.tanh(state @ weights + v)
    return np.sum(state)


def perfect_nest(start, weights, bias):
    state = start
    for i in range(4):
        for j in range(3):
            state = np.tanh(state @ weights + bias * i + j * 0.1)
    return np.sum(state)


def perfect_nest_after(start, weights, bias):
    state = start
    for i in range(4):
        for j in range(3):
            state = np.tanh(state @ weights + bias * i + j * 0.1)
    return np.sum(state) * i + j


def perfect_nest_empty(start, weights, bias):
    state = start
    i = 7
    for i in range(4):
        for j in range(0):
            state = np.tanh(state @ weights + bias * i + j * 0.1)
    return np.sum(state) * i

"""Programs with loops of every kind: each has the gradient of the plain function."""

import enum
import itertools
from contextlib import suppress

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


def triangle_nest(start, weights, bias):
    state = start
    for i in range(5):
        for j in range(i):
            state = np.tanh(state @ weights + bias * i + j * 0.1)
    return np.sum(state)


def nest_continue(start, weights, bias):
    state = start
    for i in range(5):
        for j in range(4):
            if j == i:
                continue
            state = np.tanh(state @ weights + bias * i + j * 0.1)
    return np.sum(state)


def while_else(start, weights, bias):
    state = start
    n = 0
    while n < 6:
        state = np.tanh(state @ weights + bias)
        n += 1
        if np.sum(state) > 1000000000.0:
            break
    else:
        state = state * 3
    return np.sum(state)


def while_zero(start, weights, bias):
    state = start
    n = 9
    while n < 6:
        state = np.tanh(state @ weights + bias)
        n += 1
        z = state
    return np.sum(state) * n


def while_last_var(start, weights, bias):
    state = start
    n = 0
    while n < 6:
        z = np.tanh(state @ weights + bias)
        n += 1
        state = z * 0.9
    return np.sum(state) + np.sum(z)


def while_continue(start, weights, bias):
    state = start
    n = 0
    while True:
        n += 1
        if n > 20:
            break
        if n % 2:
            continue
        state = np.tanh(state @ weights + bias * n * 0.1)
    return np.sum(state)


def newton(start, weights, bias):
    y = np.abs(start) + 1.0
    while True:
        new = 0.5 * (y + (np.abs(start) + 2.0) / y)
        if np.max(np.abs(new - y)) < 1e-12:
            break
        y = new
    return np.sum(new)


def try_in_loop_carry(start, weights, bias):
    state = start
    errors = 0
    for i in range(10):
        try:
            if i % 3 == 1:
                raise ValueError("x")
            t = state @ weights
        except ValueError:
            errors += 1
            continue
        finally:
            state = state * 0.99
        state = np.tanh(t + bias)
    return np.sum(state) * errors


def try_around_nested(start, weights, bias):
    state = start
    k = 0
    try:
        for i in range(5):
            for j in range(4):
                state = np.tanh(state @ weights + bias)
                k = k + 1
                if i == 3 and j == 2:
                    raise KeyError
    except KeyError:
        state = state * 2.0
    return np.sum(state) * k + i * j


def suppress_around(start, weights, bias):
    state = start
    with suppress(ValueError):
        for i in range(10):
            state = np.tanh(state @ weights + bias)
            if i == 6:
                raise ValueError
    return np.sum(state) * i


def exception_var(start, weights, bias):
    state = start
    for i in range(5):
        try:
            state = state @ np.zeros((3, 3))
        except ValueError as e:
            state = np.tanh(state @ weights + bias)
    return np.sum(state)


def float_steps(start, weights, bias):
    t = 0.0
    state = start
    dt = 0.1
    while t < 1.0 - 1e-09:
        state = state + dt * np.tanh(state @ weights + bias * t)
        t += dt
    return np.sum(state) * t


def reversed_loop(start, weights, bias):
    state = start
    for i in reversed(range(8)):
        state = np.tanh(state @ weights + bias * i * 0.1)
    return np.sum(state)


def zip_arrays(start, weights, bias):
    X = np.outer(np.arange(6.0), start)
    state = bias
    for row, w in zip(X, np.linspace(0, 1, 6)):
        state = np.tanh(state @ weights + row * w)
    return np.sum(state)


def islice_count(start, weights, bias):
    state = start
    for i in itertools.islice(itertools.count(1), 7):
        state = np.tanh(state @ weights + bias / i)
    return np.sum(state)


def chain_iter(start, weights, bias):
    state = start
    for i in itertools.chain([1.0, 2.0], (3.0, 4.0)):
        state = np.tanh(state @ weights + bias / i)
    return np.sum(state)


def rest_of_iter(start, weights, bias):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    state = start
    for i in it:
        state = np.tanh(state @ weights + bias / i)
        if i > 2.5:
            break
    return np.sum(state) * sum(it)


def map_iter(start, weights, bias):
    state = start
    for v in map(lambda k: k * bias, [1.0, 2.0, 3.0]):
        state = np.tanh(state @ weights + v)
    return np.sum(state)


def frozenset_carry(start, weights, bias):
    seen = frozenset()
    state = start
    for i in range(6):
        seen = seen | {i % 3}
        state = np.tanh(state @ weights + bias * len(seen))
    return np.sum(state)


def assert_inside(start, weights, bias):
    state = start
    for i in range(6):
        state = np.tanh(state @ weights + bias)
        assert np.all(np.isfinite(state)), "no"
    return np.sum(state)


def ternary_bind(start, weights, bias):
    state = start
    for i in range(6):
        state = (y := (state @ weights)) if i % 2 else np.tanh(state + bias)
    return np.sum(state) + np.sum(y)


def multi_return(start, weights, bias):
    state = start
    for i in range(9):
        state = np.tanh(state @ weights + bias)
        if i == 4:
            for j in range(3):
                if j == 1:
                    return np.sum(state) * j + i
    return 0.0


def loop_in_else(start, weights, bias):
    state = start
    for i in range(4):
        state = np.tanh(state @ weights + bias)
    else:
        for j in range(3):
            state = state * 0.9 + i
    return np.sum(state) * j


def loop_in_if(start, weights, bias):
    state = start
    if np.sum(start) < 1000000000.0:
        for i in range(4):
            state = np.tanh(state @ weights + bias)
            z = state
    else:
        z = bias
    return np.sum(z)


def no_carry(start, weights, bias):
    ys = []
    for i in range(6):
        ys.append(np.tanh(start * i) @ weights)
    return np.sum(np.array(ys)) + np.sum(bias)


def match_capture(start, weights, bias):
    state = start
    status = ("go", 1)
    for i in range(6):
        match status:
            case ["go", n] if n < 4:
                state = np.tanh(state @ weights + bias * n)
                status = ("go", n + 1)
            case ["go", n]:
                status = ("halt", n)
            case [other, n]:
                state = state * 0.5
    return np.sum(state) * n + len(status[0])


def with_inside(start, weights, bias):
    state = start
    for i in range(6):
        with np.errstate(all="ignore"):
            state = np.tanh(state @ weights + bias)
            k = i
    return np.sum(state) * k


def np_copy_put(start, weights, bias):
    base = start * 1.0
    for i in range(4):
        state = base.copy()
        state[1] = state[1] * 2.0 + np.sum(bias)
        base = np.tanh(state)
    return np.sum(base)

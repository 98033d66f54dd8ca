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


def a_list_and_a_break_over_an_iterator(start, weights, bias):
    ys = []
    for i in reversed(range(9)):
        start = np.tanh(start @ weights + bias * i)
        ys.append(start)
        if i == 3:
            break
    return np.sum(start) + np.sum(ys[1] * ys[4]) * i


def a_list_and_a_break_over_a_generator_with_text(start, weights, bias):
    ys = []
    for scale in (0.1 * k for k in itertools.count()):
        start = np.tanh(start @ weights + scale * bias)
        ys.append(np.sum(start))
        print("turn", len(ys))
        if len(ys) == 7:
            break
    return ys[-1] + ys[2] * ys[4]

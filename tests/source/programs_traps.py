"""Programs in which Python does not do what one reads at first: scopes, settling values, iterators, handlers."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import random
from fractions import Fraction

import numpy as np


def settles_three_names(start, weights, bias):
    a, b, c = None, 0, ()
    for i in range(7):
        a = start if a is None else np.tanh(a @ weights) + b
        b = b + np.sum(a * bias)
        c = (a, b)
    return np.sum(c[0]) + c[1]


def settles_in_turn_three(start, weights, bias):
    a = 1
    for i in range(6):
        if i == 1:
            a = a * 0.5
        elif i == 3:
            a = a * start
        elif i > 3:
            a = np.tanh(a @ weights + bias)
    return np.sum(a)


def zero_trip_keeps_the_variable(start, weights, bias):
    i, state = 7, start
    for i in []:
        state = state @ weights
    return np.sum(state * bias) * i


def captured_is_rebound_later(start, weights, bias):
    state, k = start, 1.0

    def scale(a):
        return a * k

    for i in range(5):
        state = np.tanh(scale(state) @ weights + bias)
    k = 2.0
    return np.sum(scale(state))


def defaults_of_a_turn(start, weights, bias):
    state = start
    for i in range(5):

        def f(a, i=i, c=state):
            return np.tanh(a @ weights + bias * i) + c * 0.1

        state = f(state)
    return np.sum(state)


def recursive_loops(start, weights, bias):
    def go(a, depth):
        for i in range(2):
            a = np.tanh(a @ weights + bias * i)
            if depth > 0:
                a = go(a, depth - 1)
        return a

    state = start
    for i in range(3):
        state = go(state, i)
    return np.sum(state)


def walrus_of_a_comprehension(start, weights, bias):
    state = start
    for i in range(4):
        parts = [(last := np.sum(state) * j) for j in range(3)]
        state = np.tanh(state @ weights + bias * parts[1] + last * 0.01)
    return np.sum(state) + last


def deleted_and_made_again(start, weights, bias):
    state, t = start, start * 2
    for i in range(4):
        u = np.tanh(t @ weights + bias)
        del t
        state = state + u * 0.1
        t = np.cos(state)
    return np.sum(state) + np.sum(t)


def handler_else_finally_continue(start, weights, bias):
    state, n = start, 0
    for i in range(6):
        try:
            if i == 2:
                raise KeyError(i)
            t = np.tanh(state @ weights + bias)
        except KeyError as error:
            state = state * (1 + 0.1 * error.args[0])
            continue
        else:
            state = t + 0.1
        finally:
            n += 1
    return np.sum(state) * n


def finally_after_return(start, weights, bias):
    state, n = start, 0
    for i in range(6):
        try:
            state = np.tanh(state @ weights + bias)
            if i == 4:
                return np.sum(state) * i
        finally:
            n += 1
            state = state * 1.1
    return np.sum(state) * n


def swallowed_in_a_turn(start, weights, bias):
    state = start
    for i in range(6):
        with contextlib.suppress(ZeroDivisionError):
            state = np.tanh(state @ weights + bias) + 0.1 / (i - 3)
            state = state * 1.1
    return np.sum(state)


def patterns(start, weights, bias):
    state = start
    for operation in [("scale", 2.0), ("shift", 0.3), "tanh", ("scale", 0.5), None, ("shift", -0.1)]:
        match operation:
            case ("scale", k) if k > 1:
                state = state * k
            case ("scale", k):
                state = state * k + bias
            case ("shift", d):
                state = state + d
            case str() as name:
                state = np.tanh(state @ weights) * len(name)
            case _:
                state = np.cos(state)
    return np.sum(state) + k


def rebuilt_dict_while_iterated(start, weights, bias):
    d, total = {"a": start, "b": bias, "c": start @ weights}, 0.0
    for key, value in d.items():
        total = total + np.sum(value) * len(key)
        d = {**d, key: np.tanh(value)}
    return total + np.sum(d["b"] * d["c"])


def text_counts(start, weights, bias):
    state, name = start, "1"
    for i in range(8, 13):
        state = np.tanh(state @ weights + bias * int(name) * 0.01) + len(str(i)) * 0.1
        name = f"{int(name) * 2}"
    return np.sum(state) + float(name)


def numbers_of_python(start, weights, bias):
    state, lr, z, n, q = start, 1.0, 1 + 1j, 10**20, Fraction(1, 3)
    for i in range(5):
        z, n, q = z * z / abs(z), n // 7, q + Fraction(1, i + 2)
        state = np.tanh(state @ weights + bias * math.exp(-lr)) + z.real * 0.1 + float(q) * 0.01
        if lr.is_integer():
            lr = 0.7
        lr *= 0.9
    return np.sum(state) * round(lr, 3) + z.imag + n % 11


def list_by_index(start, weights, bias):
    parts = [start, bias, start * 2]
    for i in range(6):
        parts[i % 3] = np.tanh(parts[(i + 1) % 3] @ weights) + 0.1
    parts[0], parts[1] = parts[1], parts[0]
    return np.sum(parts[0] + parts[1] * parts[2])


def rows_of_rows(start, weights, bias):
    rows, state = [], start
    for i in range(3):
        row = [state]
        for j in range(3):
            state = np.tanh(state @ weights + bias * j)
            row.append(state)
        rows.append(sum(np.sum(each**2) for each in row))
    return sum(row * k for k, row in enumerate(rows))


def draws_of_three_generators(start, weights, bias):
    own = np.random.default_rng(3)
    random.seed(2)
    np.random.seed(5)
    state = start
    while True:
        noise = own.standard_normal() + random.random() + np.random.rand()
        state = np.tanh(state @ weights + bias * noise)
        if np.random.rand() < 0.2:
            break
    return np.sum(state) + own.random() + random.random() + np.random.rand()


def branches_of_a_helper(start, weights, bias):
    def bent(a):
        return a * 2 if np.sum(a) > 0.3 else a + 0.4

    state = start
    for i in range(8):
        state = np.tanh(bent(state) @ weights + bias)
    return np.sum(state)


def counts_in_a_helper(start, weights, bias):
    calls = {"n": 0}

    def counted(a, seen=[]):  # noqa: B006
        seen.append(1)
        calls["n"] += 1
        return np.tanh(a @ weights + bias) * calls["n"] * len(seen)

    state = start
    for i in range(4):
        state = counted(state)
    return np.sum(state) + calls["n"]


def functions_as_items(start, weights, bias):
    state = start
    for f in [np.tanh, np.cos, lambda a: a * a, functools.partial(np.multiply, 0.5)]:
        state = f(state @ weights + bias) + 0.1
    return np.sum(f(state))


def named_tuple_replaced(start, weights, bias):
    State = collections.namedtuple("State", "h c")
    state = State(start, bias)
    for i in range(5):
        state = State(np.tanh(state.c @ weights), state.h + state.c * 0.1)
        state = state._replace(c=state.c * 0.9)
    return np.sum(state.h * state.c)


def data_class_replaced(start, weights, bias):
    @dataclasses.dataclass(frozen=True)
    class State:
        h: object
        n: int

    state = State(start, 0)
    for i in range(5):
        state = dataclasses.replace(state, h=np.tanh(state.h @ weights + bias), n=state.n + i)
    return np.sum(state.h) * state.n


def continue_by_else(start, weights, bias):
    state = start
    for i in range(4):
        for j in range(4):
            state = np.tanh(state @ weights + bias)
            if j == i + 1:
                break
        else:
            continue
        state = state * 1.1
    return np.sum(state) * i * j


def length_from_the_turn_before(start, weights, bias):
    state, n = start, 1
    for i in range(4):
        for j in range(n):
            state = np.tanh(state @ weights + bias * j)
        n = n + j + 1
    return np.sum(state) * n


def target_is_the_state(start, weights, bias):
    state = start
    for state in [state, state @ weights, np.tanh(state)]:
        state = state * 2 + bias
    return np.sum(state)


def rest_of_a_generator(start, weights, bias):
    def halves():
        a = 1.0
        while True:
            yield a
            a *= 0.7

    numbers, state = halves(), start
    for v in numbers:
        state = np.tanh(state @ weights + bias * v)
        if v < 0.2:
            break
    return np.sum(state) + next(numbers)


def iterators_of_itertools(start, weights, bias):
    state = start
    for a, b in itertools.product([0.1, 0.2], [1.0, 2.0, 3.0]):
        state = np.tanh(state @ weights + bias * b) + a
    for i, c in zip(itertools.count(), itertools.chain([1.0], (2.0,)), strict=False):
        state = state * c + i
    return np.sum(state) * a * b * c

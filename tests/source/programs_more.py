"""More programs: aliases, random draws, iterators, types that change. Each has the gradient of the plain function."""

import collections
import dataclasses
import functools
import itertools
import random

import numpy as np
import numpy as onp


@dataclasses.dataclass
class S:
    h: object
    c: object


def nested_alias_list(start, weights, bias):
    state = [start, [bias]]
    inner = state[1]
    for i in range(5):
        state = [np.tanh(state[0] @ weights + inner[0]), state[1]]
    return np.sum(state[0])


def list_iadd(start, weights, bias):
    ys, state = ([], start)
    for i in range(4):
        state = np.tanh(state @ weights + bias)
        ys += [state]
    return sum((np.sum(y) for y in ys))


def deque_only(start, weights, bias):
    d = collections.deque(maxlen=2)
    state = start
    for i in range(6):
        state = np.tanh(state @ weights + bias)
        d.append(state)
    return np.sum(d[0]) + 3 * np.sum(d[1])


def dict_or(start, weights, bias):
    d = {"h": start, "n": 0}
    for i in range(5):
        d = d | {"h": np.tanh(d["h"] @ weights + bias), "n": d["n"] + 1}
    return np.sum(d["h"]) * d["n"]


def dict_spread(start, weights, bias):
    d = {"h": start, "n": 0}
    for i in range(5):
        d = {**d, "h": np.tanh(d["h"] @ weights + bias), "n": d["n"] + 1}
    return np.sum(d["h"]) * d["n"]


def param_default_list(start, weights, bias, hist=[]):
    state = start
    for i in range(3):
        state = np.tanh(state @ weights + bias + len(hist) * 0.0)
    return np.sum(state)


def captured_list_of_weights(start, weights, bias):
    Ws = [weights, weights * 0.5, weights * 0.25]
    state = start
    for i in range(9):
        state = np.tanh(state @ Ws[i % 3] + bias)
    return np.sum(state)


def tuple_unpack_nested(start, weights, bias):
    p, (q, r) = (start, (bias, start * 2))
    for i in range(5):
        p, (q, r) = (q, (r, np.tanh(p @ weights + q)))
    return np.sum(p + 2 * q + 3 * r)


def swap_three(start, weights, bias):
    p, q, r = (start, bias, start * bias)
    for i in range(7):
        p, q, r = (q, r, np.tanh(p @ weights))
    return np.sum(p * q + r)


def inner_var_outer_read(start, weights, bias):
    state = start
    for i in range(4):
        for j in range(3):
            t = np.tanh(state @ weights + j)
            state = t * 0.5 + bias
        state = state + t
    return np.sum(state) + np.sum(t) * j * i


def inner_zero_trip(start, weights, bias):
    state = start
    t = bias
    for i in range(4):
        for j in range(i % 2):
            t = np.tanh(state @ weights + j)
        state = state * 0.5 + t
    return np.sum(state) + np.sum(t)


def inner_zero_unbound(start, weights, bias):
    state = start
    for i in range(4):
        for j in range(i):
            t = np.tanh(state @ weights + j)
            state = state + t * 0.1
        if i > 0:
            state = state + t
    return np.sum(state)


def inner_while_reset(start, weights, bias):
    state = start
    for i in range(4):
        n = 0
        while n < 3:
            state = np.tanh(state @ weights + bias * n)
            n += 1
        state = state * n
    return np.sum(state)


def inner_break_outer_continue(start, weights, bias):
    state = start
    for i in range(6):
        for j in range(4):
            state = np.tanh(state @ weights + bias * 0.1)
            if j == i:
                break
        else:
            state = state * 2
            continue
        state = state + 0.01
    return np.sum(state)


def break_in_inner_else(start, weights, bias):
    state = start
    for i in range(6):
        for j in range(2):
            state = np.tanh(state @ weights + bias)
        else:
            if i == 3:
                break
    return np.sum(state) * i


def return_in_try(start, weights, bias):
    state = start
    for i in range(8):
        try:
            state = np.tanh(state @ weights + bias)
            if i == 5:
                return np.sum(state) * i
        finally:
            state = state * 0.9
    return 0.0


def break_in_try_finally(start, weights, bias):
    state = start
    for i in range(8):
        try:
            state = np.tanh(state @ weights + bias)
            if i == 5:
                break
        finally:
            state = state * 0.9
    return np.sum(state)


def raise_out(start, weights, bias):
    state = start

    def f():
        raise KeyError("no")

    try:
        for i in range(8):
            state = np.tanh(state @ weights + bias)
            if i == 5:
                f()
    except KeyError as e:
        state = state * len(str(e))
    else:
        state = state * 100
    finally:
        state = state + 1
    return np.sum(state)


def while_try(start, weights, bias):
    state = start
    n = 0
    while True:
        try:
            state = np.tanh(state @ weights + bias)
            n += 1
            if n > 6:
                raise StopIteration
        except StopIteration:
            break
    return np.sum(state) * n


def exc_zero_division(start, weights, bias):
    state = start
    k = 3
    try:
        while True:
            state = np.tanh(state @ weights + bias)
            q = 10 / k
            k -= 1
            state = state * q * 0.1
    except ZeroDivisionError:
        pass
    return np.sum(state) + q


def random_module(start, weights, bias):
    random.seed(0)
    state = start
    for i in range(8):
        state = np.tanh(state @ weights + bias * random.random())
        if random.random() > 0.9:
            state = state * 2
    return np.sum(state) + random.random()


def rng_generator_private(start, weights, bias):
    g = onp.random.default_rng(3)
    state = start
    loss = 0
    for i in range(8):
        state = np.tanh(state @ weights + bias * g.standard_normal())
        loss = loss + np.sum(state) * g.standard_normal()
    return loss + g.standard_normal()


def rng_settle(start, weights, bias):
    np.random.seed(1)
    state = start
    acc = 0
    for i in range(8):
        state = np.tanh(state @ weights + bias * np.random.standard_normal())
        acc = acc + state
    return np.sum(acc) * np.random.standard_normal()


def rng_late_settle(start, weights, bias):
    np.random.seed(1)
    state = start
    best = None
    for i in range(12):
        state = np.tanh(state @ weights + bias * np.random.standard_normal())
        if i == 6:
            best = state * np.random.standard_normal()
    return np.sum(best) * np.random.standard_normal() + np.sum(state)


def rng_append_break(start, weights, bias):
    np.random.seed(1)
    state = start
    ys = []
    for i in range(30):
        state = 1.1 * state + 0.1 * bias * np.random.standard_normal()
        ys.append(state * np.random.standard_normal())
        if np.sum(state**2) > 3:
            break
    return sum((np.sum(y) for y in ys)) * np.random.standard_normal()


def rng_while_inner(start, weights, bias):
    np.random.seed(2)
    state = start
    for i in range(4):
        while np.random.standard_normal() < 0.5:
            state = np.tanh(state @ weights + bias * np.random.standard_normal())
        state = state + 0.1
    return np.sum(state)


def growing_then_fixed(start, weights, bias):
    w = [start]
    state = start
    for i in range(10):
        state = np.tanh(state @ weights + sum(w) * 0.1)
        w = (w + [state])[-3:]
    return np.sum(state) + np.sum(w[0])


def int_to_float(start, weights, bias):
    t = 0
    state = start
    for i in range(6):
        state = np.tanh(state @ weights + bias * t)
        t = t + 0.25
    return np.sum(state) * t


def int_div(start, weights, bias):
    n = 1
    state = start
    for i in range(6):
        state = np.tanh(state @ weights + bias / n)
        n = n * 3 % 7
    return np.sum(state) * n


def int_huge(start, weights, bias):
    n = 3
    state = start
    for i in range(6):
        n = n * n
        state = np.tanh(state @ weights + bias * (n % 11) * 0.1)
    return np.sum(state) * (n % 1000)


def bool_array(start, weights, bias):
    mask = start > 0
    state = start
    for i in range(6):
        state = np.where(mask, np.tanh(state @ weights), state + bias)
        mask = state > 0.1
    return np.sum(state[mask])


def scalar_box(start, weights, bias):
    t = np.sum(start)
    for i in range(6):
        t = np.tanh(t * weights[0, 1] + bias[i % 4])
    return t


def index_box_rows(start, weights, bias):
    state = start
    for i in range(8):
        state = np.tanh(weights[i % 4] * state[i % 4] + bias)
    return np.sum(state)


def default_mutable_carry(start, weights, bias):
    hist = (start,)
    for i in range(5):
        hist = (np.tanh(hist[0] @ weights + bias),)
    return np.sum(hist[0])


def dataclass_carry(start, weights, bias):
    s = S(start, bias)
    for i in range(5):
        s = S(np.tanh(s.h @ weights + s.c), s.c * 0.9)
    return np.sum(s.h * s.c)


def dataclass_replace(start, weights, bias):
    s = S(start, bias)
    for i in range(5):
        s = dataclasses.replace(s, h=np.tanh(s.h @ weights + s.c))
    return np.sum(s.h)


def partial_in_loop(start, weights, bias):
    state = start
    for i in range(5):
        f = functools.partial(lambda a, k: a * k, k=i)
        state = np.tanh(f(state) @ weights + bias)
    return np.sum(state)


def reduce_in_loop(start, weights, bias):
    state = start
    for i in range(5):
        state = functools.reduce(lambda a, w: np.tanh(a @ weights * w), [0.5, 1.0], state) + bias
    return np.sum(state)


def sorted_key(start, weights, bias):
    state = start
    order = [2, 0, 1]
    for k in sorted(order, key=lambda t: -t):
        state = np.tanh(state @ weights + bias * k)
    return np.sum(state)


def sorted_key_reads(start, weights, bias):
    state = start
    scale = 1.0
    for k in sorted([2, 0, 1], key=lambda t: t * scale):
        scale = scale * 0.5
        state = np.tanh(state @ weights + bias * k * scale)
    return np.sum(state)


def takewhile_lazy(start, weights, bias):
    state = start
    for k in itertools.takewhile(lambda t: t < 5, itertools.count()):
        state = np.tanh(state @ weights + bias * k)
    return np.sum(state) * k


def gen_function(start, weights, bias):

    def turns():
        for k in range(5):
            yield (k * 0.5)

    state = start
    for k in turns():
        state = np.tanh(state @ weights + bias * k)
    return np.sum(state)


def iter_callable(start, weights, bias):
    it = iter([3, 1, 2, 0, 5])
    state = start
    for k in iter(lambda: next(it), 0):
        state = np.tanh(state @ weights + bias * k)
    return np.sum(state) + next(it)

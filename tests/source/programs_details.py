"""Programs whose value hangs on a detail of Python: the order of targets, the type of a number, who raises when."""

import numpy as np


def tuple_item_then_index(x, W, b):
    u = x * 1.0
    i = 0
    h = b
    for k in range(3):
        u[i], i = h[0] * (k + 1), i + 1
        h = np.tanh(W @ h)
    return np.sum(u * b) + i


def chain_item_then_index(x, W, b):
    u = x * 1.0
    i = 0
    h = b
    for k in range(3):
        u[i] = i = k + 1
        h = np.tanh(W @ h + u)
    return np.sum(u * h) + i


def item_then_name(x, W, b):
    u = x * 1.0
    h = b
    for k in range(3):
        u[0], u = 5.0, np.tanh(W @ u + h)
    return np.sum(u)


def item_then_name_outside(x, W, b):
    u = x * 1.0
    i = 0
    u[i], i = 5.0, 2
    h = b
    for k in range(3):
        h = np.tanh(W @ h + u)
    return np.sum(h) + i


def star_with_item(x, W, b):
    u = x * 1.0
    rest = []
    for i in range(3):
        u[i], *rest = [b[i], b[i] * 2, i]
    return np.sum(u) + rest[0] + rest[1]


def nested_tuple_item(x, W, b):
    u = x * 1.0
    k = 0
    for i in range(3):
        (u[k], k), c = (b[i], k + 1), i * 2.0
    return np.sum(u * u) + k + c


def negative_and_positive_fill(x, W, b):
    out = np.zeros(3)
    h = x
    for i in range(-2, 2):
        h = np.tanh(W @ h + b)
        out[i] = np.sum(h)
    return np.sum(out * np.array([1.0, 2.0, 3.0]))


def fill_beyond(x, W, b):
    out = np.zeros(3)
    h = x
    try:
        for i in range(5):
            h = np.tanh(W @ h + b)
            out[i] = np.sum(h)
    except IndexError:
        h = h * 2
    return np.sum(out) + np.sum(h)


def fill_stepped_negative(x, W, b):
    out = np.zeros(5)
    h = x
    for i in range(-1, -4, -1):
        h = np.tanh(W @ h + b)
        out[i] = np.sum(h)
    return np.sum(out * np.array([1.0, 2.0, 3.0, 4.0, 5.0]))


def zip_strict_raises(x, W, b):
    s = 0.0
    try:
        for u, v in zip([1.0, 2.0, 3.0], [1.0, 2.0], strict=True):
            s = s + u * v * np.sum(x)
    except ValueError:
        s = s + np.sum(b)
    return s


def generator_raises(x, W, b):
    def gen():
        yield 1.0
        yield 2.0
        raise KeyError("no more")

    h = x
    try:
        for k in gen():
            h = np.tanh(W @ h * k + b)
    except KeyError:
        h = h * 3
    return np.sum(h) + k


def nested_function_called_after(x, W, b):
    h = x

    def show():
        return np.sum(h) * k

    for k in range(4):
        h = np.tanh(W @ h + b)
    return show()


def closure_after_two(x, W, b):
    f = lambda: np.sum(t) * j
    for i in range(3):
        t = np.tanh(W @ x * (i + 1))
        for j in range(2):
            t = t + b
    return f()


def closure_of_outer_index(x, W, b):
    def where():
        return i * 10 + j

    h = x
    for i in range(3):
        for j in range(2):
            h = np.tanh(W @ h + b)
    return np.sum(h) * where()


def type_float(x, W, b):
    t = 1.0
    h = x
    for i in range(5):
        h = np.tanh(W @ h + b) if type(t) is float else h * 100
        t = t * 0.5
    return np.sum(h) + t


def isinstance_float(x, W, b):
    t = 1.0
    h = x
    for i in range(5):
        h = np.tanh(W @ h + b * (1.0 if isinstance(t, float) else 50.0))
        t = t * 0.5
    return np.sum(h) + t


def isinstance_float_helper(x, W, b):
    def scale(v):
        return v if isinstance(v, float) else 50.0

    t = 1.0
    h = x
    for i in range(5):
        h = np.tanh(W @ h + b * scale(t))
        t = t * 0.5
    return np.sum(h) + t


def zero_division(x, W, b):
    t = 2.0
    h = x
    for i in range(5):
        try:
            h = np.tanh(W @ h + b * (1.0 / t))
        except ZeroDivisionError:
            h = h * 2
        t = t - 1.0
    return np.sum(h) + t


def float_in_string(x, W, b):
    t, name = 1.0, ""
    h = x
    for i in range(3):
        name = name + str(t)
        t = t / 2
        h = np.tanh(W @ h + b * len(name))
    return np.sum(h)


def float_key(x, W, b):
    table = {1.0: 0.3, 2.0: 0.4, 3.0: 0.5}
    t = 1.0
    h = x
    for i in range(3):
        h = np.tanh(W @ h + b * table[t])
        t = t + 1.0
    return np.sum(h)


def del_in_branch(x, W, b):
    h = x
    extra = b
    for i in range(4):
        if i == 3:
            del extra
        else:
            h = np.tanh(W @ h + extra)
    return np.sum(h)


def append_bool(x, W, b):
    ys = []
    h = x
    for i in range(4):
        h = np.tanh(W @ h + b)
        ys.append(i % 2 == 0)
    return np.sum(h) * sum(1 for y in ys if y is True)


def append_int_then_float(x, W, b):
    ys = []
    h = x
    for i in range(4):
        h = np.tanh(W @ h + b)
        ys.append(1 if i < 2 else 2.5)
    return np.sum(h) * sum(ys)


def list_holds_then_aug(x, W, b):
    hs = [None, None, None, None]
    h = x * 1.0
    for i in range(4):
        h += 0.1 * b
        hs[i] = h
    return sum(np.sum(v) * (k + 1) for k, v in enumerate(hs))

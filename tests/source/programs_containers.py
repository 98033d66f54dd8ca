"""Programs that append, fill, index and carry containers: each has the gradient of the plain function."""

import collections
import enum

import numpy as np

GLOBAL_K = 2.0
SCALE = 0.3


class Mode(enum.Enum):
    A = 1
    B = 2


def append_list(start, weights, bias):
    ys, state = ([], start)
    for i in range(30):
        state = np.tanh(state @ weights + bias)
        ys.append(state * i)
    return np.sum(np.array(ys) ** 2)


def array_rows(start, weights, bias):
    X = np.outer(np.linspace(0, 1, 25), start)
    state = bias
    for k, row in enumerate(X):
        state = np.tanh(state @ weights + row * k)
    return np.sum(state)


def row_gradient(start, weights, bias):
    X = np.outer(np.linspace(0, 1, 25), start)
    state = bias
    for row in X:
        state = np.tanh(state @ weights + row)
    return np.sum(state)


def item_store(start, weights, bias):
    out = np.zeros((20, 4))
    state = start
    for i in range(20):
        state = np.tanh(state @ weights + bias)
        out[i] = state
    return np.sum(out**3)


def item_store_read(start, weights, bias):
    state = start * 1.0
    for i in range(20):
        state[i % 4] = np.sum(state * bias) * 0.5
    return np.sum(state**2)


def augmented(start, weights, bias):
    state = start * 1.0
    for i in range(20):
        state += 0.1 * np.tanh(state @ weights + bias)
    return np.sum(state**2)


def dict_carry(start, weights, bias):
    s = {"h": start, "c": bias}
    for i in range(20):
        s = {"h": np.tanh(s["h"] @ weights + s["c"]), "c": 0.9 * s["c"]}
    return np.sum(s["h"] * s["c"])


def tuple_swap(start, weights, bias):
    p, q = (start, bias)
    for i in range(21):
        p, q = (q, np.tanh(p @ weights + 0.1 * q))
    return np.sum(p * q)


def dict_by_turn(start, weights, bias):
    d, state = ({}, start)
    for i in range(10):
        state = np.tanh(state @ weights + bias)
        d[i] = state
    return np.sum(state)


def dict_params(start, weights, bias):
    params = {"W": weights, "layers": [bias, bias * 2]}
    state = start
    for i in range(15):
        for layer in params["layers"]:
            state = np.tanh(state @ params["W"] + layer)
    return np.sum(state)


def list_carry(start, weights, bias):
    hs = [start, bias]
    for i in range(10):
        hs = [np.tanh(hs[1] @ weights), hs[0] * 0.9]
    return np.sum(hs[0]) + np.sum(hs[1])


def list_item(start, weights, bias):
    hs = [start, bias]
    for i in range(10):
        hs[i % 2] = np.tanh(hs[(i + 1) % 2] @ weights + 0.1 * hs[i % 2])
    return np.sum(hs[0] * hs[1])


def dict_item(start, weights, bias):
    s = {"h": start, "c": bias}
    for i in range(10):
        s["h"] = np.tanh(s["h"] @ weights + s["c"])
        s["c"] *= 0.9
    return np.sum(s["h"] * s["c"])


def append_two(start, weights, bias):
    ys, zs, state = ([], [bias], start)
    for i in range(10):
        state = np.tanh(state @ weights + bias)
        ys.append(state * i)
        zs.append((state, i))
    return np.sum(ys[3]) + np.sum(zs[4][0]) * zs[4][1] + np.sum(zs[0])


def append_break(start, weights, bias):
    ys, state = ([], start)
    for i in range(50):
        state = 1.1 * state + 0.02 * bias
        ys.append(state)
        if np.sum(state**2) > 4.0:
            break
    return np.sum(np.array(ys) ** 2) + len(ys)


def append_while(start, weights, bias):
    ys, state = ([], start)
    while np.sum(state**2) < 9.0:
        state = 1.1 * state + 0.02 * bias
        ys.append(np.sum(state))
    return sum(ys) * len(ys)


def append_twice(start, weights, bias):
    ys, state = ([], start)
    for i in range(10):
        state = np.tanh(state @ weights + bias)
        ys.append(state)
        ys.append(state * 2)
    return np.sum(np.array(ys))


def append_none(start, weights, bias):
    ys, state = ([], start)
    for i in range(10):
        state = np.tanh(state @ weights + bias)
        ys.append(None)
    return np.sum(state) * len(ys)


def append_strings(start, weights, bias):
    ys, state = ([], start)
    for i in range(10):
        state = np.tanh(state @ weights + bias)
        ys.append(str(i))
    return np.sum(state) * len("".join(ys))


def append_ints(start, weights, bias):
    ys, state = ([], start)
    for i in range(10):
        state = np.tanh(state @ weights + bias)
        ys.append(i)
    return np.sum(state) * ys[3] / (ys[5] // 2) * (10**5 if type(ys[0]) is int else 1)


def append_param(start, weights, bias, out=None):
    out = [] if out is None else out
    state = start
    for i in range(5):
        state = np.tanh(state @ weights + bias)
        out.append(state)
    return np.sum(out[2])


def append_mutated_value(start, weights, bias):
    ys, state = ([], start * 1.0)
    for i in range(5):
        state = state * 1.0
        state[0] = np.sum(state) * 0.5
        ys.append(state)
    return np.sum(ys[1]) + np.sum(ys[3] ** 2)


def nested_append(start, weights, bias):
    rows, state = ([], start)
    for i in range(4):
        parts = []
        for j in range(3):
            state = np.tanh(state @ weights + bias)
            parts.append(np.sum(state) * j)
        rows.append(sum(parts))
    return sum(rows)


def nested_append_outer(start, weights, bias):
    rows, state = ([], start)
    for i in range(4):
        for j in range(3):
            state = np.tanh(state @ weights + bias)
            rows.append(np.sum(state) * j * i)
    return sum(rows)


def item_swap(start, weights, bias):
    state = start * 1.0
    for i in range(6):
        state[0], state[1] = (state[1], state[0] * 0.5)
        state = np.tanh(state @ weights)
    return np.sum(state)


def item_aug(start, weights, bias):
    state = start * 1.0
    for i in range(6):
        state[i % 4] += np.sum(bias * state)
        state[1:3] *= 0.9
    return np.sum(state**2)


def item_view_ok(start, weights, bias):
    H = np.outer(start, bias)
    for i in range(6):
        row = H[i % 4] * 2.0
        H[(i + 1) % 4] = np.tanh(row)
    return np.sum(H**2)


def item_fill(start, weights, bias):
    out = np.zeros((10, 4))
    state = start
    for i in range(10):
        state = np.tanh(state @ weights + bias)
        out[i] = state
    return np.sum(out[3] * out[7])


def item_fill_partial(start, weights, bias):
    out = np.ones((12, 4))
    state = start
    for i in range(2, 11, 3):
        state = np.tanh(state @ weights + bias)
        out[i] = np.sum(state)
    return np.sum(out**2 * np.arange(12)[:, None])


def item_fill_read(start, weights, bias):
    out = np.zeros((10, 4))
    out[0] = start
    for i in range(1, 10):
        out[i] = np.tanh(out[i - 1] @ weights + bias)
    return np.sum(out**2)


def aug_alias_box(start, weights, bias):
    state = start * 1.0
    for i in range(6):
        prev = state
        state += 0.1 * np.tanh(state @ weights)
        state = state + 0.01 * prev * bias
    return np.sum(state)


def tuple_state(start, weights, bias):
    s = (start, "up", 0)
    for i in range(10):
        state, d, n = s
        s = (np.tanh(state @ weights + bias), "down" if d == "up" else "up", n + 1)
    return np.sum(s[0]) * s[2] + len(s[1])


def namedtuple_state(start, weights, bias):
    S = collections.namedtuple("S", "h c")
    s = S(start, bias)
    for i in range(10):
        s = S(np.tanh(s.h @ weights + s.c), s.c * 0.9)
    return np.sum(s.h * s.c)


def dict_items(start, weights, bias):
    p = {"a": start, "c": bias}
    state = start
    for k, v in p.items():
        state = np.tanh(state @ weights + v * len(k))
    return np.sum(state)


def matmul_aug(start, weights, bias):
    state = start * 1.0
    for i in range(5):
        state @= weights
        state += bias
    return np.sum(np.tanh(state))


def list_slice_loop(start, weights, bias):
    todo = [1.0, 2.0, 3.0]
    state = start
    while todo:
        t, todo = (todo[0], todo[1:])
        state = np.tanh(state @ weights + bias * t)
    return np.sum(state)


def swap_lists(start, weights, bias):
    cur, nxt = ([start], [])
    for i in range(4):
        nxt = [np.tanh(c @ weights + bias) for c in cur]
        cur, nxt = (nxt, cur)
    return np.sum(cur[0]) + np.sum(nxt[0])


def append_read(start, weights, bias):
    ys = [start]
    for i in range(10):
        ys.append(np.tanh(ys[-1] @ weights + bias))
    return np.sum(ys[-1]) + np.sum(ys[4])

"""Programs that are refused, in the line that says so: to run them as they are would give a wrong gradient, or none."""

import dataclasses
import enum

import numpy as np
import numpy as onp

GLOBAL_K = 2.0
SCALE = 0.3


class Mode(enum.Enum):
    A = 1
    B = 2


CALLS = []


@dataclasses.dataclass
class S:
    h: object
    c: object


def append_in_a_branch(start, weights, bias):
    log, state = ([], start)
    for i in range(10):
        state = np.tanh(state @ weights + bias)
        if i % 2:
            log.append(state)  # here
    return np.sum(state)


def attribute_of_an_object(start, weights, bias):

    class Box:
        pass

    o, state = (Box(), start)
    for i in range(10):
        state = np.tanh(state @ weights + bias)
        o.h = state  # here
    return np.sum(o.h)


def assigns_a_global(start, weights, bias):
    global GLOBAL_K
    state = start
    for i in range(10):
        GLOBAL_K = GLOBAL_K + 0.0  # here
        state = np.tanh(state @ weights + bias)
    return np.sum(state)


def two_names_two_items(start, weights, bias):
    u = start * 1.0
    v = u
    for i in range(10):
        u[0] = np.sum(v) * 0.5  # here
        v[1] = np.sum(u) * 0.25
    return np.sum(u) + np.sum(v)


def other_name_of_a_list(start, weights, bias):
    seen, state = ([], start)
    also = seen
    for i in range(10):
        state = np.tanh(state @ weights + bias + 0.01 * sum(also))
        also.append(i)  # here
    return np.sum(state)


def hidden_alias(start, weights, bias):
    seen, state = ([0], start)
    for i in range(10):
        mine = seen
        mine.append(i)  # here
        state = np.tanh(state @ weights + bias + 0.01 * len(seen))
    return np.sum(state)


def closure_escapes(start, weights, bias):
    fs, state = ([], start)
    for i in range(5):  # here
        state = np.tanh(state @ weights + bias)
        fs.append(lambda: state)
    return np.sum(fs[0]())


def list_concat(start, weights, bias):
    ys, state = ([], start)
    for i in range(10):  # here
        state = np.tanh(state @ weights + bias)
        ys = ys + [state]
    return np.sum(ys[-1])


def growing(start, weights, bias):
    state, seq = (start, start)
    for i in range(6):  # here
        state = np.tanh(state @ weights + bias)
        seq = np.concatenate([seq, state])
    return np.sum(seq**2)


def appends_to_a_global(start, weights, bias):
    state = start
    for i in range(12):
        state = np.tanh(state @ weights + bias)
        CALLS.append(i)  # here
    return np.sum(state)


def uses_locals(start, weights, bias):
    state = start
    for i in range(12):
        state = np.tanh(locals()["h"] @ weights + bias)  # here
    return np.sum(state)


def mutate_iterated(start, weights, bias):
    todo, state = ([1.0, 2.0, 3.0], start)
    for t in todo:
        state = np.tanh(state @ weights + bias * t)
        if len(todo) < 9:
            todo.append(t + 1)  # here
    return np.sum(state)


def late_closure(start, weights, bias):
    state = start

    def g(a):  # here
        return np.tanh(a @ weights + 0.1 * state)

    for i in range(10):
        state = g(state)
    return np.sum(state)


def late_lambda(start, weights, bias):
    state = start
    g = lambda: np.sum(state) * bias  # here
    for i in range(10):
        state = np.tanh(state @ weights + g())
    return np.sum(state)


def late_gen(start, weights, bias):
    state = start
    for v in (state * k for k in range(6)):  # here
        state = np.tanh(state + v)
    return np.sum(state)


def gen_before(start, weights, bias):
    state = start
    gen = (np.sum(state) * k for k in range(6))  # here
    for v in gen:
        state = np.tanh(state @ weights + v)
    return np.sum(state)


def gen_draws(start, weights, bias):
    np.random.seed(0)
    state = start
    for z in (np.random.standard_normal() for _ in range(8)):  # here
        state = np.tanh(state @ weights + z * bias * np.random.standard_normal())
    return np.sum(state)


def dict_alias(start, weights, bias):
    s = {"h": start, "c": bias}
    t = s
    for i in range(10):
        s["h"] = np.tanh(t["h"] @ weights + s["c"])  # here
    return np.sum(t["h"])


def list_of_lists(start, weights, bias):
    state = start
    log = [[]]
    for i in range(5):
        state = np.tanh(state @ weights + bias)
        log[0].append(state)  # here
    return np.sum(log[0][2])


def append_ragged(start, weights, bias):
    ys, state = ([], start)
    for i in range(4):  # here
        state = np.tanh(state @ weights + bias)
        ys.append(state[: i + 1])
    return sum((np.sum(y) for y in ys))


def append_alias(start, weights, bias):
    ys, state = ([], start)
    zs = ys
    for i in range(5):  # here
        state = np.tanh(state @ weights + bias + len(zs))
        ys.append(state)
    return np.sum(state)


def append_state_then_mutate(start, weights, bias):
    ys, state = ([], start * 1.0)
    for i in range(5):
        ys.append(state)
        state[0] = np.sum(state) * 0.5  # here
    return np.sum(ys[1]) + np.sum(ys[3] ** 2)


def item_view(start, weights, bias):
    H = np.outer(start, bias)
    for i in range(6):
        row = H[i % 4]
        row[0] = np.sum(H)  # here
        H = H * 0.5
    return np.sum(H)


def item_fill_alias(start, weights, bias):
    out = np.zeros((5, 4))
    view = out
    state = start
    for i in range(5):
        state = np.tanh(state @ weights + bias + np.sum(view))
        out[i] = state  # here
    return np.sum(state)


def aug_alias_plain(start, weights, bias):
    cnt = np.zeros(4)
    same = cnt
    state = start
    for i in range(6):
        cnt += 1.0  # here
        state = np.tanh(state @ weights + bias * np.sum(same) * 0.01)
    return np.sum(state)


def aug_alias_later(start, weights, bias):
    cnt = onp.zeros(4)
    s = onp.zeros(4)
    state = start
    for i in range(6):
        cnt += 1.0  # here
        state = np.tanh(state @ weights + bias * np.sum(s) * 0.01)
        s = cnt
    return np.sum(state)

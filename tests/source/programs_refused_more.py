"""Programs that are refused, in the line that says so: to run them as they are would give a wrong gradient, or none."""

import collections
import dataclasses
import enum
import functools

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


def captured_mutated_array(start, weights, bias):
    buf = onp.zeros(4)
    state = start
    for i in range(6):
        onp.add(buf, 1.0, out=buf)  # here
        state = np.tanh(state @ weights + bias * np.sum(buf) * 0.01)
    return np.sum(state)


def two_names_list(start, weights, bias):
    a = [0.0]
    c = a
    state = start
    for i in range(6):
        a[0] = a[0] + 1.0  # here
        state = np.tanh(state @ weights + bias * c[0] * 0.01)
    return np.sum(state)


def late_list_lambdas(start, weights, bias):
    fs = [lambda a: a * i for i in range(3)]  # here
    state = start
    for i in range(6):
        state = np.tanh(fs[i % 3](state) @ weights + bias)
    return np.sum(state)


def nonlocal_inner(start, weights, bias):
    n = 0

    def bump():
        nonlocal n  # here
        n += 1
        return n

    state = start
    for i in range(6):
        state = np.tanh(state @ weights + bias * bump() * 0.1)
    return np.sum(state) * n


def shared_iter(start, weights, bias):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    state = start
    for i in it:
        state = np.tanh(state @ weights + bias / i)
        j = next(it)  # here
        state = state * j * 0.3
    return np.sum(state)


def growing_list(start, weights, bias):
    hist = [start]
    for i in range(5):  # here
        hist = hist + [np.tanh(hist[-1] @ weights)]
    return np.sum(hist[-1])


def set_carry(start, weights, bias):
    seen = set()
    state = start
    for i in range(6):  # here
        seen = seen | {i % 3}
        state = np.tanh(state @ weights + bias * len(seen))
    return np.sum(state)


def object_stores_box(start, weights, bias):

    class C:
        m = 0.0

        def step(self, g):
            self.m = 0.9 * self.m + g
            return self.m

    c = C()
    state = start
    for i in range(6):  # here
        state = np.tanh(state @ weights + c.step(state * bias))
    return np.sum(state)


def lru(start, weights, bias):

    @functools.lru_cache(None)
    def f(k):
        return bias * k

    state = start
    for i in range(6):  # here
        state = np.tanh(state @ weights + f(i % 2))
    return np.sum(state)


def pop_list(start, weights, bias):
    todo = [1.0, 2.0, 3.0]
    state = start
    while todo:
        state = np.tanh(state @ weights + bias * todo.pop())  # here
    return np.sum(state)


def self_alias_reset(start, weights, bias):
    base = start * 1.0
    state = base
    for i in range(4):
        state[1] = state[1] * 2.0 + np.sum(bias)  # here
    return np.sum(base) + np.sum(state)


def list_mutated_via_alias(start, weights, bias):
    params = [start, bias]
    for i in range(4):
        p = params
        p[0] = np.tanh(p[0] @ weights + p[1])  # here
    return np.sum(params[0])


def list_extend(start, weights, bias):
    ys, state = ([], start)
    for i in range(4):
        state = np.tanh(state @ weights + bias)
        ys.extend([state, state * 2])  # here
    return sum((np.sum(y) for y in ys))


def list_insert(start, weights, bias):
    ys, state = ([], start)
    for i in range(4):
        state = np.tanh(state @ weights + bias)
        ys.insert(0, state)  # here
    return np.sum(ys[0]) + 2 * np.sum(ys[-1])


def deque_window(start, weights, bias):
    d = collections.deque([start, bias], maxlen=2)
    state = start
    for i in range(6):
        state = np.tanh((d[0] + d[1]) @ weights)
        d.append(state)  # here
    return np.sum(state)


def dict_update(start, weights, bias):
    d = {"h": start}
    for i in range(5):
        d.update(h=np.tanh(d["h"] @ weights + bias))  # here
    return np.sum(d["h"])


def dict_new_keys(start, weights, bias):
    d = {"h": start}
    for i in range(5):  # here
        d = {**d, f"k{i}": d["h"]}
    return np.sum(d["k3"])


def dataclass_mutate(start, weights, bias):
    s = S(start, bias)
    for i in range(5):
        s.h = np.tanh(s.h @ weights + s.c)  # here
    return np.sum(s.h)


def filter_lazy(start, weights, bias):
    state = start
    lim = 3
    for k in filter(lambda t: t < lim, range(6)):  # here
        lim = lim + 0.4
        state = np.tanh(state @ weights + bias * k)
    return np.sum(state)


def gen_function_reads(start, weights, bias):

    def turns():  # here
        while np.sum(state**2) < 4:
            yield 1.1

    state = start
    for k in turns():
        state = state * k
    return np.sum(state)


def del_then_branch(start, weights, bias):
    state = start
    for i in range(6):  # here
        if i % 2 == 0:
            t = state * 2
        if i % 2 == 1:
            state = np.tanh(state @ weights + t)
            del t
    return np.sum(state)


def fn_carried(start, weights, bias):
    state = start
    f = np.tanh
    for i in range(6):  # here
        state = f(state @ weights + bias)
        f = np.sin if i % 2 else np.tanh
    return np.sum(state)


def append_last_carry(start, weights, bias):
    ys = []
    state = start
    for i in range(6):
        if ys:
            state = state + 0.1 * ys[-1]
        state = np.tanh(state @ weights + bias)
        ys.append(state)  # here
    return np.sum(ys[-1])


def append_first_too(start, weights, bias):
    ys = [start, bias]
    for i in range(6):
        ys.append(np.tanh(ys[-1] @ weights + ys[0]))  # here
    return np.sum(ys[-1])


def tuple_grow(start, weights, bias):
    t = ()
    state = start
    for i in range(5):  # here
        t += (i,)
        state = np.tanh(state @ weights + bias * len(t))
    return np.sum(state)


def type_flip_carry(start, weights, bias):
    state = start
    q = None
    for i in range(8):  # here
        if q is not None:
            state = state + q * 0.1
        state = np.tanh(state @ weights + bias)
        q = state if i % 2 else None
    return np.sum(state)


def iterator_of_others(start, weights, bias):
    numbers = iter([0.1, 0.2, 0.3, 0.4, 0.5])
    state = start
    for i in range(5):
        state = np.tanh(state @ weights + bias * next(numbers))  # here
    return np.sum(state)


def item_of_an_item(start, weights, bias):
    table = [[start, bias], [bias, start]]
    for i in range(3):
        table[0][1] = np.tanh(table[1][0] @ weights)  # here
    return np.sum(table[0][1])


def carried_lambda(start, weights, bias):
    state, f = start, lambda a: a
    for i in range(4):  # here
        state = np.tanh(f(state) @ weights + bias)
        f = lambda a: a * state  # noqa: E731
    return np.sum(f(state))


def array_in_an_attribute(start, weights, bias):
    class Cell:
        def __init__(self):
            self.h = start

        def step(self, a):
            self.h = np.tanh((self.h + a) @ weights + bias)
            return self.h

    cell, state = Cell(), start
    for i in range(4):  # here
        state = cell.step(state)
    return np.sum(state) + np.sum(cell.h)


def list_copy_holds(x, W, b):
    st = [np.zeros(4), np.zeros(4)]
    v = x * 1.0
    s = 0.0
    for i in range(3):
        u = st.copy()
        u[0] = v  # here
        v[0] = b[0] * i
        s = s + np.sum(u[0]) * (i + 1)
    return s


def dict_holds_then_put(x, W, b):
    d = {}
    v = x * 1.0
    for i in range(3):
        d["last"] = v  # here
        v[0] = b[i]
    return np.sum(d["last"])


def holds_before_loop(x, W, b):
    d = {}
    v = x * 1.0
    d["v"] = v  # here
    s = 0.0
    for i in range(3):
        v[0] = b[i]
        s = s + np.sum(d["v"])
    return s


def dict_or(x, W, b):
    d = {"a": x}
    e = d
    for i in range(4):
        d |= {"a": np.tanh(W @ e["a"] + b)}  # here
    return np.sum(d["a"]) + np.sum(e["a"])


def append_last_index_error(x, W, b):
    ys = []
    for i in range(4):
        try:
            prev = ys[-1]
        except IndexError:
            prev = x
        ys.append(np.tanh(W @ prev + b))  # here
    return sum(np.sum(y) for y in ys)


def item_of_a_memoryview(start, weights, bias):
    numbers = onp.zeros(4)
    view = memoryview(numbers)
    state = start
    for i in range(6):  # here
        view[i % 4] = float(i)
        state = np.tanh(state @ weights + bias * numbers)
    return np.sum(state)

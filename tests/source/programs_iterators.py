"""More programs: aliases, random draws, iterators, types that change. Each has the gradient of the plain function."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class S:
    h: object
    c: object


def mutate_then_read_captured(start, weights, bias):
    cfg = {"k": 1.0}
    state = start

    def bump():
        cfg["k"] *= 0.9

    for i in range(5):
        bump()
        state = np.tanh(state @ weights + bias * cfg["k"])
    return np.sum(state) * cfg["k"]


def captured_dict_rebound_later(start, weights, bias):
    cfg = {"k": 1.0}
    state = start
    for i in range(5):
        state = np.tanh(state @ weights + bias * cfg["k"])
    cfg["k"] = 100.0
    return np.sum(state)


def loop_var_shadow_param(start, weights, bias):
    for start in [start, start * 2, bias]:
        y = np.tanh(start @ weights)
    return np.sum(y) + np.sum(start)


def shadow_in_comp(start, weights, bias):
    state = start
    for i in range(4):
        state = np.tanh(state @ weights + sum([state * 0.1 for state in (bias, bias * 2)]))
    return np.sum(state)


def lambda_param_shadow(start, weights, bias):
    state = start
    g = lambda state: state * 2.0
    for i in range(4):
        state = np.tanh(g(state) @ weights + bias)
    return np.sum(state)


def class_in_loop(start, weights, bias):
    state = start
    for i in range(4):

        class Cell:
            k = i * 0.1

            def __call__(self, a):
                return np.tanh(a @ weights + bias * self.k)

        state = Cell()(state)
    return np.sum(state)


def conditional_def(start, weights, bias):
    state = start
    for i in range(6):
        if i % 2:
            f = np.tanh
        else:
            f = np.sin
        state = f(state @ weights + bias)
    return np.sum(state)


def ternary_exit(start, weights, bias):
    state = start
    i = 0
    while (i := (i + 1)) < 6:
        state = np.tanh(state @ weights + bias * i)
    return np.sum(state) * i


def while_walrus_and(start, weights, bias):
    state = start
    n = 0
    while n < 50 and (e := np.sum(state**2)) < 5.0:
        state = 1.2 * state + 0.02 * bias
        n += 1
    return np.sum(state) * n + e


def for_else_break_var(start, weights, bias):
    state = start
    for k in (1.0, 2.0, 3.0, 4.0):
        state = np.tanh(state @ weights + bias)
        if k == 3.0:
            found = state * k
            break
    else:
        found = bias
    return np.sum(found) * k


def nested_func_loop(start, weights, bias):

    def run(state, n):
        for j in range(n):
            state = np.tanh(state @ weights + bias)
        return state

    state = start
    for i in range(3):
        state = run(state, i + 1)
    return np.sum(state)


def recursion(start, weights, bias, depth=2):
    state = start
    for i in range(3):
        state = np.tanh(state @ weights + bias)
    if depth:
        return np.sum(state) + recursion(state, weights, bias, depth - 1)
    return np.sum(state)


def two_outputs_same_value(start, weights, bias):
    ys, zs, state = ([], [], start)
    for i in range(6):
        state = np.tanh(state @ weights + bias)
        ys.append(state)
        zs.append(state)
    return np.sum(ys[2] * zs[4])


def output_is_state_then_changed(start, weights, bias):
    ys, state = ([], start * 1.0)
    for i in range(6):
        ys.append(state)
        state += bias
    return sum((np.sum(y**2) for y in ys))


def append_then_read(start, weights, bias):
    ys = [start]
    for i in range(6):
        ys.append(np.tanh(ys[-1] @ weights + bias))
        z = ys[-1] * 2
    return np.sum(z) + len(ys)


def fill_twice(start, weights, bias):
    out = np.zeros((6, 4))
    state = start
    for i in range(6):
        state = np.tanh(state @ weights + bias)
        out[i] = state
        out[i] = out[i] * 2
    return np.sum(out[2])


def fill_reverse(start, weights, bias):
    out = np.zeros((6, 4))
    state = start
    for i in range(5, -1, -1):
        state = np.tanh(state @ weights + bias)
        out[i] = state
    return np.sum(out * np.arange(24.0).reshape(6, 4))


def fill_two_dims(start, weights, bias):
    out = np.zeros((3, 4))
    state = start
    for i in range(3):
        for j in range(4):
            state = np.tanh(state @ weights + bias)
            out[i, j] = np.sum(state) * j
    return np.sum(out * np.arange(12.0).reshape(3, 4))


def fill_slice(start, weights, bias):
    out = np.zeros(12)
    state = start
    for i in range(3):
        state = np.tanh(state @ weights + bias)
        out[4 * i : 4 * i + 4] = state
    return np.sum(out * np.arange(12.0))


def fill_mask(start, weights, bias):
    state = start * 1.0
    for i in range(4):
        state[state > 0] = np.sum(bias) * 0.1
        state = np.tanh(state @ weights + start)
    return np.sum(state)


def fill_break(start, weights, bias):
    out = np.zeros((10, 4))
    state = start
    for i in range(10):
        state = 1.3 * state + bias
        if np.sum(state**2) > 20:
            break
        out[i] = state
    return np.sum(out**2) + i


def fill_int_array(start, weights, bias):
    out = np.zeros(5, dtype=int)
    state = start
    for i in range(5):
        state = np.tanh(state @ weights + bias)
        out[i] = i * 2
    return np.sum(state) * out[3]


def zeros_like_store(start, weights, bias):
    y = np.zeros_like(start)
    for i in range(4):
        y[i] = np.tanh(start[i] * bias[i] + (y[i - 1] if i else 0.0))
    return np.sum(y**2)


def view_of_param(start, weights, bias):
    state = start.reshape(2, 2)
    for i in range(4):
        state = np.tanh(state * 1.1 + bias.reshape(2, 2))
    return np.sum(state)


def global_np_alias(start, weights, bias):
    t = np.tanh
    state = start
    for i in range(5):
        state = t(state @ weights + bias)
    return np.sum(state)


def chained_compare(start, weights, bias):
    state = start
    for i in range(8):
        if 2 < i < 6:
            state = np.tanh(state @ weights)
        elif i in (6, 7):
            state = state + bias
        else:
            state = state * 0.9
    return np.sum(state)


def early_return_before(start, weights, bias):
    if np.sum(start) > 1000000000.0:
        return 0.0
    state = start
    for i in range(4):
        state = np.tanh(state @ weights + bias)
    return np.sum(state)


def loop_after_return_loop(start, weights, bias):
    state = start
    for i in range(4):
        state = np.tanh(state @ weights + bias)
        if i > 10:
            return 1.0
    for j in range(3):
        state = state * (i + 1) * 0.3
        if j == 1:
            return np.sum(state) * j
    return np.sum(state)


def one_line(start, weights, bias):
    state = start
    for i in range(4):
        state = np.tanh(state @ weights + bias)
        k = state
    return np.sum(k)


def pass_loop(start, weights, bias):
    for i in range(4):
        pass
    return np.sum(start * bias) * i


def counts_only(start, weights, bias):
    n = 0
    for i in range(4):
        n += i
    return np.sum(start * bias) * n


def string_build(start, weights, bias):
    s = ""
    state = start
    for i in range(5):
        s += "ab"
        state = np.tanh(state @ weights + bias * len(s))
    return np.sum(state) * len(s)


def type_flip(start, weights, bias):
    state = start
    q = None
    for i in range(8):
        state = np.tanh(state @ weights + bias)
        q = state if i % 2 else None
        if q is not None:
            state = state + q * 0.1
    return np.sum(state) + (0 if q is None else np.sum(q))


def nan_carry(start, weights, bias):
    best = float("inf")
    state = start
    for i in range(6):
        state = np.tanh(state @ weights + bias)
        v = np.sum(state**2)
        best = v if v < best else best
    return best + np.sum(state)


def max_loop(start, weights, bias):
    m = -1000000000.0
    state = start
    for i in range(6):
        state = np.tanh(state @ weights + bias)
        m = max(m, np.sum(state))
    return m


def abs_total(start, weights, bias):
    tot = 0.0
    state = start
    for k, v in {"a": 1.0, "c": 2.0}.items():
        state = np.tanh(state @ weights + bias * v)
        tot += np.sum(state) if k == "a" else 0
    return tot


def enumerate_generator(start, weights, bias):
    state = start
    for i, v in enumerate((k * 0.1 for k in range(5))):
        state = np.tanh(state @ weights + bias * v * i)
    return np.sum(state) * i


def zip_uneven(start, weights, bias):
    it = iter([1.0, 2.0, 3.0, 4.0])
    state = start
    for u, v in zip([1.0, 2.0], it):
        state = np.tanh(state @ weights + bias * u * v)
    return np.sum(state) * sum(it)


def zip_uneven2(start, weights, bias):
    it = iter([1.0, 2.0, 3.0, 4.0])
    state = start
    for u, v in zip(it, [1.0, 2.0]):
        state = np.tanh(state @ weights + bias * u * v)
    return np.sum(state) * sum(it)


def zip_strict(start, weights, bias):
    state = start
    for u, v in zip([1.0, 2.0], [3.0, 4.0], strict=True):
        state = np.tanh(state @ weights + bias * u * v)
    return np.sum(state)


def range_float_error(start, weights, bias):
    n = np.sum(np.abs(start))
    state = start
    for i in range(int(3)):
        state = np.tanh(state @ weights + bias * n)
    return np.sum(state)


def string_loop(start, weights, bias):
    state = start
    for c in "abac":
        state = np.tanh(state @ weights) if c == "a" else state + bias
    return np.sum(state)


def set_loop(start, weights, bias):
    state = start
    for c in sorted({3, 1, 2}):
        state = np.tanh(state @ weights + bias * c)
    return np.sum(state)


def file_like(start, weights, bias):
    import io

    state = start
    for line in io.StringIO("1\n2\n3\n"):
        state = np.tanh(state @ weights + bias * float(line))
    return np.sum(state)


def counter_with_the_name_in_a_generator(start, weights, bias):
    x, j = start, 0
    for k in (j for j in range(6)):
        x = np.tanh(x @ weights + bias * k)
        j += 2
    return np.sum(x) * j

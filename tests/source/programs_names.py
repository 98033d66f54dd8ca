"""Programs about names: scopes, closures, values that settle. Each has the gradient of the plain function."""

import enum
import math

import numpy as np

GLOBAL_K = 2.0
SCALE = 0.3


class Mode(enum.Enum):
    A = 1
    B = 2


def loop_var_after(start, weights, bias):
    state = start
    for i in range(25):
        last = np.tanh(state @ weights)
        state = last + 0.1 * bias
    return np.sum(last) * i + np.sum(state)


def undefined_before(start, weights, bias):
    state = start
    for i in range(20):
        if i == 0:
            momentum = bias * 0.0
        momentum = 0.9 * momentum + state
        state = np.tanh(momentum @ weights)
    return np.sum(momentum)


def walrus(start, weights, bias):
    state = start
    for i in range(20):
        if (s := np.sum(state)) > 0:
            state = state - 0.01 * s * bias
        state = np.tanh(state @ weights) + [s for s in (0.1, 0.2)][1]
    return np.sum(state) + s


def star_targets(start, weights, bias):
    state = start
    for i, *rest in [(1.0, start, bias), (2.0, bias, start)] * 6:
        state = np.tanh(state @ weights + rest[0] * i - rest[1])
    return np.sum(state)


def comprehension(start, weights, bias):
    state = start
    for i in range(15):
        parts = [state * k for k in range(3)]
        state = np.tanh(sum(parts) @ weights)
    return np.sum(state)


def rebound_after(start, weights, bias):
    state, k = (start, 0.5)
    for i in range(20):
        state = np.tanh(k * state @ weights + bias)
    k = 100.0
    bias = bias * 0.0
    return np.sum(state * k)


def with_default(start, weights, bias, scale=0.5):
    state = start
    for i in range(20):
        state = np.tanh(scale * state @ weights + bias) * GLOBAL_K
    return np.sum(state)


def string_flag(start, weights, bias):
    state, mode = (start, "grow")
    for i in range(20):
        if mode == "grow":
            state = 1.1 * state + 0.1 * bias
            if np.sum(state**2) > 10:
                mode = "fold"
        else:
            state = np.tanh(state @ weights)
    return np.sum(state)


def lambda_inside(start, weights, bias):
    state = start
    for i in range(20):
        f = lambda a: np.tanh(a @ weights + state * 0.1)
        state = f(state) + bias * 0.01
    return np.sum(state)


def for_else_none(start, weights, bias):
    state = start
    for i in range(10):
        if np.sum(state) > 1000000000.0:
            break
        state = np.tanh(state @ weights + bias)
    else:
        state = state * 3.0
    return np.sum(state)


def del_local(start, weights, bias):
    state = start
    for i in range(10):
        t = state @ weights
        state = np.tanh(t + bias)
        del t
    return np.sum(state)


def helper_mutates(start, weights, bias):
    seen, state = ([], start)

    def note(v):
        seen.append(1.0)
        return v * len(seen) * 0.1

    for i in range(10):
        state = np.tanh(state @ weights + note(bias))
    return np.sum(state)


def none_prev(start, weights, bias):
    prev, state, loss = (None, start, 0.0)
    for i in range(20):
        state = np.tanh(state @ weights + bias)
        if prev is not None:
            loss = loss + np.sum((state - prev) ** 2)
        prev = state
    return loss


def int_total(start, weights, bias):
    total, state = (0, start)
    for i in range(20):
        state = np.tanh(state @ weights + bias)
        total += np.sum(state)
    return total


def bigint(start, weights, bias):
    f, state = (1, start)
    for i in range(1, 30):
        f = f * i
        state = np.tanh(state @ weights + bias)
    return np.sum(state) * (f % 1000003)


def bool_flag(start, weights, bias):
    state, up = (start, True)
    for i in range(15):
        if up is True:
            state = 1.1 * state + 0.05 * bias
        else:
            state = np.tanh(state @ weights)
        up = not up
    return np.sum(state)


def shadowed(start, weights, bias):
    np_sum, range_ = (np.sum, range)
    for x_ in [start]:
        pass
    state = x_
    for W_ in [weights, weights * 0.5] * 5:
        W2 = W_
        state = np.tanh(state @ W2 + bias)
    return np_sum(state) + np_sum(W_) * 0


def global_rng(start, weights, bias):
    np.random.seed(3)
    state = start
    for i in range(20):
        state = np.tanh(state @ weights + bias * np.random.standard_normal())
    return np.sum(state)


def underscore(start, weights, bias):
    _carry, _x = (start, bias)
    for _ in range(10):
        _carry = np.tanh(_carry @ weights + _x)
    return np.sum(_carry)


def break_before_assign(start, weights, bias):
    state = start
    q = bias
    for i in range(30):
        if np.sum(state**2) > 3.0:
            break
        q = state * 2.0
        state = 1.2 * state + 0.05 * bias
    return np.sum(q) + np.sum(state)


def continue_before_assign(start, weights, bias):
    state = start
    for i in range(20):
        state = np.tanh(state @ weights + bias)
        if i % 4 == 3:
            continue
        q = state * i
    return np.sum(q)


def one_branch(start, weights, bias):
    state = start
    for i in range(20):
        state = np.tanh(state @ weights + bias)
        if i == 7:
            special = state * 2.0
    return np.sum(special) + np.sum(state)


def one_branch_last(start, weights, bias):
    state = start
    for i in range(20):
        state = np.tanh(state @ weights + bias)
        if i == 19:
            special = state * 2.0
    return np.sum(special) + np.sum(state)


def del_carried(start, weights, bias):
    state = start
    for i in range(10):
        if i:
            state = state + prev
            del prev
        state = np.tanh(state @ weights + bias)
        prev = state * 0.1
    return np.sum(state)


def shadow_builtin(start, weights, bias):
    state = start
    sum = np.sum
    range = lambda n: [3, 1, 2]
    for i in range(10):
        state = np.tanh(state @ weights + bias * i)
    return sum(state)


def comp_scope(start, weights, bias):
    i = 5.0
    state = start
    for k in range(8):
        parts = [i * state for i in (0.1, 0.2)]
        state = np.tanh(parts[0] + parts[1] @ weights + i * 0.01)
    return np.sum(state) * i


def walrus_comp(start, weights, bias):
    state = start
    last = 0.0
    for k in range(8):
        ys = [(last := (last + np.sum(state) * j * 0.1)) for j in range(3)]
        state = np.tanh(state @ weights + ys[-1] * bias)
    return np.sum(state) + last


def walrus_while(start, weights, bias):
    state = start
    while (s := np.sum(state**2)) < 10.0:
        state = 1.2 * state + 0.05 * bias
    return np.sum(state) * s


def star_rest(start, weights, bias):
    state = start
    for i in range(8):
        first, *rest = [state, bias, start]
        state = np.tanh(first @ weights + rest[0] * rest[-1])
    return np.sum(state) + np.sum(rest[0])


def loop_var_modified(start, weights, bias):
    state = start
    for i in range(8):
        i = i * 2
        state = np.tanh(state @ weights + bias * i / 10)
    return np.sum(state) * i


def loop_var_prior(start, weights, bias):
    i = 100
    state = start
    for i in range(0):
        state = state * 2
    return np.sum(state) * i


def settle_shape(start, weights, bias):
    acc = 0
    state = start
    for i in range(9):
        state = np.tanh(state @ weights + bias)
        acc = acc + state * i
    return np.sum(acc)


def settle_late(start, weights, bias):
    state = start
    best = None
    for i in range(12):
        state = np.tanh(state @ weights + bias)
        if i == 5:
            best = state
    return np.sum(best) + np.sum(state)


def settle_two(start, weights, bias):
    state = start
    p = None
    q = None
    for i in range(14):
        state = np.tanh(state @ weights + bias)
        if i == 3:
            p = state * 2
        if i == 9:
            q = state * 3
        if p is not None:
            state = state + 0.1 * p
    return np.sum(p) + np.sum(q) + np.sum(state)


def default_arg(start, weights, bias):
    state = start
    for i in range(6):
        f = lambda a, k=i: a * k * 0.1
        state = np.tanh(f(state) @ weights + bias)
    return np.sum(state)


def lambda_after(start, weights, bias):
    state = start
    for i in range(6):
        state = np.tanh(state @ weights + bias)
    f = lambda: np.sum(state) * i
    return f()


def lambda_before_called_after(start, weights, bias):
    state = start
    f = lambda: np.sum(state)
    for i in range(6):
        state = np.tanh(state @ weights + bias)
    return f()


def def_in_loop(start, weights, bias):
    state = start
    for i in range(6):

        def cell(a):
            return np.tanh(a @ weights + bias * i)

        state = cell(state)
    return np.sum(state) + np.sum(cell(state))


def captured_rebound(start, weights, bias):
    state = start
    k = 1.0
    for i in range(6):
        state = np.tanh(state @ weights + bias * k)
    k = 50.0
    for i in range(3):
        state = state * k * 0.02
    return np.sum(state)


def unbound_captured(start, weights, bias):
    if np.sum(start) > 1000000000.0:
        scale = 2.0
    state = start
    for i in range(6):
        if np.sum(state) > 1000000000.0:
            state = state * scale
        state = np.tanh(state @ weights + bias)
    return np.sum(state)


def enum_mode(start, weights, bias):
    state, mode = (start, Mode.A)
    for i in range(10):
        if mode is Mode.A:
            state = 1.2 * state
            mode = Mode.B
        else:
            state = np.tanh(state @ weights + bias)
            mode = Mode.A
    return np.sum(state) * mode.value


def int_overflow(start, weights, bias):
    state = start
    for i in range(60, 70):
        state = np.tanh(state @ weights + bias * (2**i % 1000) * 0.001)
    return np.sum(state)


def int_type(start, weights, bias):
    state = start
    s = ""
    for i in range(5):
        state = np.tanh(state @ weights + bias * len(f"{i!r}"))
        s = s + str(i)
    return np.sum(state) * int(s or 0)


def enumerate_start(start, weights, bias):
    X = np.outer(np.arange(6.0), start)
    state = bias
    for k, row in enumerate(X, 3):
        state = np.tanh(state @ weights + row / k)
    return np.sum(state)


def enumerate_zip(start, weights, bias):
    state = bias
    for k, (u, v) in enumerate(zip([start, bias, start], [1.0, 2.0, 3.0]), start=1):
        state = np.tanh(state @ weights + u * v * k)
    return np.sum(state) * k


def counter_object(start, weights, bias):

    class C:
        n = 0

        def tick(self):
            self.n += 1
            return self.n

    c = C()
    state = start
    for i in range(6):
        state = np.tanh(state @ weights + bias * c.tick() * 0.1)
    return np.sum(state) * c.n


def chained_assign(start, weights, bias):
    state = g = start
    for i in range(6):
        state = g = np.tanh(state @ weights + g * bias)
    return np.sum(state + g)


def comp_over_loop_var(start, weights, bias):
    state = start
    for i in range(5):
        state = np.tanh(sum((state * j for j in range(i + 1))) @ weights + bias)
    return np.sum(state)


def star_args(start, *rest):
    weights, bias = rest
    state = start
    for i in range(5):
        state = np.tanh(state @ weights + bias)
    return np.sum(state)


def kwonly(start, weights, bias, *, scale=0.5, **kw):
    state = start
    for i in range(5):
        state = np.tanh(scale * state @ weights + bias * kw.get("q", 1.0))
    return np.sum(state)


def import_inside(start, weights, bias):
    import numpy as np2

    state = start
    for i in range(5):
        state = np2.tanh(state @ weights + bias * math.sin(i))
    return np2.sum(state)


def global_read(start, weights, bias):
    state = start
    for i in range(5):
        state = np.tanh(state @ weights + bias * SCALE)
    return np.sum(state)


def return_none_branch(start, weights, bias):
    state = start
    for i in range(6):
        state = np.tanh(state @ weights + bias)
        if np.sum(state) > 1000000000.0:
            return
    return np.sum(state)

"""Programs with two names for one object that a loop changes: whatever way the second one came about."""

import functools

import numpy as np


class Holder:
    """An object that leads to another."""

    def __init__(self, held):
        self.held = held


def chained_targets(start, weights, bias):
    a = b = np.ones(4)
    for i in range(5):
        a += 0.5  # here
        start = np.tanh(start @ weights) * b
    return np.sum(start)


def repeated_object(start, weights, bias):
    a, b = [np.ones(4)] * 2
    for i in range(5):
        a += 0.5  # here
        start = np.tanh(start @ weights) * b
    return np.sum(start)


def repeated_rows(start, weights, bias):
    rows = [np.ones(4)] * 2
    for i in range(5):
        rows[0] += 0.5  # here
        start = np.tanh(start @ weights) * rows[1]
    return np.sum(start)


def shallow_copy(start, weights, bias):
    rows = [np.ones(4), np.zeros(4)]
    same = rows.copy()
    for i in range(5):
        rows[0] += 0.5  # here
        start = np.tanh(start @ weights) * same[0]
    return np.sum(start)


def annotated(start, weights, bias):
    a, s = start * 1.0, np.sum(bias)
    for i in range(6):
        y: object = a
        a[0] = np.sin(s)  # here
        s = s + y[0] * 2.0
    return s


def matched(start, weights, bias):
    a, s = start * 1.0, np.sum(bias)
    for i in range(6):
        match (a,):
            case (y,):
                pass
        a[0] = np.sin(s)  # here
        s = s + y[0] * 2.0
    return s


def named_in_a_test(start, weights, bias):
    a, s = start * 1.0, np.sum(bias)
    for i in range(6):
        if (y := a) is not None:
            a[0] = np.sin(s)  # here
            s = s + y[0] * 2.0
    return s


def default_of_a_lambda(start, weights, bias):
    a, s = start * 1.0, np.sum(bias)
    for i in range(6):
        first = lambda q=a: q[0]
        a[0] = np.sin(s)  # here
        s = s + first() * 2.0
    return s


def argument_of_a_partial(start, weights, bias):
    a, s = start * 1.0, np.sum(bias)
    for i in range(6):
        total = functools.partial(np.sum, a)
        a[0] = np.sin(s)  # here
        s = s + total() * 0.2
    return s


def comprehended(start, weights, bias):
    a, s = start * 1.0, np.sum(bias)
    for i in range(6):
        both = {k: a for k in (0, 1)}
        a[0] = np.sin(s)  # here
        s = s + both[1][0] * 2.0
    return s


def diagonal_view(start, weights, bias):
    a, s = np.eye(4), np.sum(start)
    for i in range(4):
        d = np.diag(a)
        a[1, 1] = 2.0 + i  # here
        s = np.sin(s) + d[1]
    return s


def copy_that_is_none(start, weights, bias):
    a, s = np.ones(4), np.sum(start)
    for i in range(4):
        same = a.astype(float, copy=False)
        a[1] = 2.0 + i  # here
        s = np.sin(s) + same[1]
    return s


def annotated_list(start, weights, bias):
    ys = []
    zs: list = ys
    for i in range(6):  # here
        start = np.sin(start) + len(zs)
        ys.append(start)
    return np.sum(start)


def list_in_an_object(start, weights, bias):
    ys = []
    holder = Holder(ys)
    for i in range(6):  # here
        start = np.sin(start) + len(holder.held)
        ys.append(start)
    return np.sum(start)


def array_in_an_object(start, weights, bias):
    a = np.ones(4)
    holder = Holder(a)
    for i in range(5):
        a[1] = 2.0 + i  # here
        start = np.tanh(start @ weights) * holder.held
    return np.sum(start) + np.sum(a)


def read_after_the_loop(start, weights, bias):
    a = np.ones(4)
    first = [a]
    for i in range(5):
        a += 0.5  # here
        start = np.tanh(start @ weights) * a
    return np.sum(start) + np.sum(first[0])


def item_of_what_is_iterated_over(start, weights, bias):
    a = np.ones((3, 4))
    for row in a:
        start = np.tanh(start @ weights)
        row[:] = 0.5  # here
    return np.sum(start) * np.sum(a)


def changed_before_it_is_appended(start, weights, bias):
    a, seen = np.zeros(4), []
    for i in range(4):
        start = np.tanh(start @ weights)
        a[i] = 1.0  # here
        seen.append(a)
    return np.sum(start) * np.sum(seen[0])


def view_that_is_appended(start, weights, bias):
    a, seen = np.zeros(4), []
    for i in range(4):
        start = np.tanh(start @ weights)
        a[i] = 1.0  # here
        seen.append((i, a[1:3]))
    return np.sum(start) * np.sum(seen[0][1])


def dict_that_is_appended(start, weights, bias):
    record = {"total": 0.0}
    seen = []
    for i in range(4):
        start = np.tanh(start @ weights + bias)
        record["total"] = np.sum(start)  # here
        seen.append(record)
    return seen[0]["total"]


def item_of_a_record_that_a_list_holds(start, weights, bias):
    record, history = {"x": start * 1.0}, []
    for _ in range(6):
        history.append(record["x"])
        record["x"] += 1.0  # here
        start = np.tanh(start @ weights + bias * record["x"])
    return np.sum(start) + np.sum(history[3])


def length_of_a_list_under_two_names(start, weights, bias):
    seen = []
    also = seen
    for i in range(10):  # here
        start = np.tanh(start @ weights + bias + 0.01 * len(also) + 0.1 * len(seen))
        also.append(i)
    return np.sum(start)


def item_that_is_shared_beside_a_number(start, weights, bias):
    ones = np.ones(4)
    u, state = ones, {"u": ones, "n": 0}
    for i in range(5):
        state["u"] += 1.0  # here
        state["n"] += i
        u = np.tanh(u * start)
    return np.sum(state["u"] * u) + state["n"]


def dict_that_another_name_reads(start, weights, bias):
    x, tape = start, {}
    other = tape
    for i in range(9):
        x = np.tanh(x @ weights + bias) + len(other)
        tape[f"{i}"] = x  # here
    return np.sum(x) + len(tape)

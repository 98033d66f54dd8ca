"""Programs in which several names might be one object that a loop changes, and are not when it runs."""

import numpy as np


def alias_swap_put(start, weights, bias):
    u, v = (start * 1.0, bias * 1.0)
    for i in range(6):
        u, v = (v, u)
        u[0] = np.sum(v) * 0.3
    return np.sum(u * v)


def swapped_items(start, weights, bias):
    a = start * 1.0
    for i in range(5):
        a[0], a[2] = a[2] * 1.1, a[0]
        a = np.tanh(a @ weights + bias)
    return np.sum(a)


def mean_of_an_inner_list(start, weights, bias):
    x = start
    for i in range(4):
        ls = []
        for j in range(3):
            ls.append(x * (j + 1) + bias)
        x = np.tanh(sum(ls) / len(ls))
    return np.sum(x)


def view_that_is_not_read_again(start, weights, bias):
    a = np.outer(start, bias)
    for i in range(5):
        row = a[1]
        a[2] = np.tanh(row @ weights)
        row = None
    return np.sum(a)


def copy_by_another_name(start, weights, bias):
    a = start * 1.0
    for i in range(5):
        before: object = a.copy()
        a[0] = np.sum(before) * 0.3
        a = a + before[1] * bias
    return np.sum(a)


def items_beside_others(start, weights, bias):
    rows = [start * 1.0, bias * 1.0]
    for i in range(5):
        rows[0] += 0.1 * rows[1]
        rows[1] = np.tanh(rows[0] @ weights)
    return np.sum(rows[0] * rows[1])


def closure_over_the_changed_name(start, weights, bias):
    a = start * 1.0
    for i in range(5):
        first = lambda: a[0]
        a[0] = np.sum(a) * 0.3
        a = a + first() * bias
    return np.sum(a)


def number_beside_a_shared_array(start, weights, bias):
    ones = np.ones(4)
    u, state = ones, {"u": ones, "n": 0}
    for i in range(5):
        u = np.tanh(u * start)
        state["u"] = np.tanh(state["u"] @ weights + u)
        state["n"] += i
    return np.sum(state["u"] * bias) + state["n"] * np.sum(u)

"""Loops that change what they iterate over: right if the item is not read again, otherwise refused."""

import numpy as np


def push(work, value):
    if len(work) < 6:
        work.append(value)


def add_key(table, key):
    table[key + "x"] = 1.0


def bump(values, k):
    if k < 2:
        values[k + 1] += 5.0


def take(iterator):
    return next(iterator)


class Queue:
    def __init__(self):
        self.values = [1.0]

    def note(self, value):
        if len(self.values) < 6:
            self.values.append(value)

    def taken(self):
        k = 0
        while k < len(self.values):
            yield self.values[k]
            k += 1


def assigns_its_own_item(start, weights, bias):
    u = [start, 2 * start, 3 * start]
    for k, v in enumerate(u):
        u[k] = np.tanh(v @ weights + bias)
    return np.sum(u[0]) + 2 * np.sum(u[1]) + 3 * np.sum(u[2])


def assigns_the_value_of_its_key(start, weights, bias):
    d = {"a": start, "b": 2 * start, "c": 3 * start}
    for k in d:
        d[k] = np.tanh(d[k] @ weights + bias)
    return np.sum(d["a"]) + 2 * np.sum(d["c"])


def assigns_the_value_of_its_item(start, weights, bias):
    d = {"a": start, "b": 2 * start, "c": 3 * start}
    for k, v in d.items():
        d[k] = np.tanh(v @ weights + bias)
    return np.sum(d["a"]) + 2 * np.sum(d["c"])


def iterates_over_a_copy(start, weights, bias):
    u = [start, 2 * start, 3 * start]
    for k, v in enumerate(list(u)):
        if k < 2:
            u[k + 1] = u[k + 1] + 0.5 * v @ weights
    return np.sum(u[2]) + np.sum(bias)


def assigns_the_next_item(start, weights, bias):
    u = [start, 2 * start, 3 * start]
    for k, v in enumerate(u):
        if k < 2:
            u[k + 1] = u[k + 1] + 0.5 * v  # here
    return np.sum(u[2] @ weights + bias)


def assigns_the_next_row(start, weights, bias):
    rows = weights * 1.0
    for k, row in enumerate(rows):
        if k < 3:
            rows[k + 1] = np.tanh(rows[k + 1] + 0.5 * row)  # here
    return np.sum(rows[3] * start + bias)


def augments_the_next_item(start, weights, bias):
    u = [1.0, 2.0, 3.0]
    for k, v in enumerate(u):
        start = np.tanh(start @ weights + bias * v)
        if k < 2:
            u[k + 1] += v  # here
    return np.sum(start)


def assigns_an_item_by_value(start, weights, bias):
    u = [2, 0, 1]
    for k in u:  # here
        start = np.tanh(start @ weights + bias * k)
        u[k] = k + 1
    return np.sum(start)


def extends_by_augmenting(start, weights, bias):
    u = [1.0, 2.0]
    for v in u:
        start = np.tanh(start @ weights + bias * v)
        u += [v] * (len(u) < 5)  # here
    return np.sum(start)


def adds_keys(start, weights, bias):
    d = {"a": 1.0, "b": 2.0}
    for k in d:
        start = np.tanh(start @ weights + bias * d[k])
        d[k + "x"] = 1.0  # here
    return np.sum(start)


def another_name_is_iterated(start, weights, bias):
    u = [1.0, 2.0, 3.0]
    for v in (w := u):
        start = np.tanh(start @ weights + bias * v)
        u[2] = u[2] + v  # here
    return np.sum(start) + len(w)


def a_list_of_rows_is_iterated(start, weights, bias):
    rows = np.ones((4, 4))
    for k, row in enumerate(list(rows)):  # here
        start = np.tanh(start @ weights + bias * row)
        if k < 3:
            rows[k + 1] = 0.5
    return np.sum(start) + np.sum(rows)


def a_helper_appends(start, weights, bias):
    work = [1.0, 2.0]
    for v in work:  # here
        start = np.tanh(start @ weights + bias * v)
        push(work, v + 1.0)
    return np.sum(start)


def a_helper_appends_to_what_is_zipped(start, weights, bias):
    work = [1.0, 2.0]
    for v, _ in zip(work, range(9)):  # here
        start = np.tanh(start @ weights + bias * v)
        push(work, v + 1.0)
    return np.sum(start)


def a_helper_adds_keys(start, weights, bias):
    table = {"a": 1.0, "b": 2.0}
    for k, v in table.items():  # here
        start = np.tanh(start @ weights + bias * v)
        add_key(table, k)
    return np.sum(start)


def a_helper_changes_an_array(start, weights, bias):
    values = np.array([1.0, 2.0, 3.0])
    for k, v in enumerate(values):  # here
        start = np.tanh(start @ weights + bias * v)
        bump(values, k)
    return np.sum(start)


def a_helper_takes_items(start, weights, bias):
    items = iter([0.5, 1.0, 2.0, 0.25, 0.7])
    for _ in range(4):  # here
        start = np.tanh(start @ weights + bias * take(items))
    return np.sum(start)


def a_method_takes_items(start, weights, bias):
    advance = iter([0.5, 1.0, 2.0, 0.25, 0.7]).__next__
    for _ in range(4):  # here
        start = np.tanh(start @ weights + bias * advance())
    return np.sum(start)


def an_iterator_changes_what_the_loop_reads(start, weights, bias):
    seen = []
    for v in map(lambda k: seen.append(k) or k, [1.0, 2.0, 3.0]):  # here
        start = np.tanh(start @ weights + bias * v * len(seen))
    return np.sum(start)


def an_iterator_reads_what_the_loop_changes(start, weights, bias):
    queue = Queue()
    for v in queue.taken():  # here
        start = np.tanh(start @ weights + bias * v)
        queue.note(v + 1.0)
    return np.sum(start)


RIGHT = [
    assigns_its_own_item,
    assigns_the_value_of_its_key,
    assigns_the_value_of_its_item,
    iterates_over_a_copy,
]
HELPERS = [push, add_key, bump, take]

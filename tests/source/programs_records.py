"""Programs that look back at what they have appended, keep records in dicts, and count in attributes."""

import numpy as np


def last_two_items(start, weights, bias):
    ys = [start, start * 0.5]
    for _ in range(10):
        ys.append(np.tanh(ys[-1] @ weights + 0.3 * ys[-2] + bias))
    return np.sum(ys[-1]) + np.sum(ys[3])


def an_item_that_is_not_there_at_first(start, weights, bias):
    ys = [start]
    for i in range(8):
        ys.append(np.tanh(ys[-1] @ weights) if i < 2 else np.tanh(ys[-1] + ys[-3] * bias))
    return np.sum(ys[-1]) + np.sum(ys[2])


def two_lists_that_look_back(start, weights, bias):
    ys, zs = [start], [start, bias]
    for _ in range(6):
        ys.append(np.tanh(ys[-1] @ weights * zs[-2]))
        zs.append(ys[-1] + zs[-1])
        zs.append(zs[-2] * 0.5)
    return np.sum(ys[-1]) + np.sum(zs[5])


def a_record_and_a_list_in_one_assignment(start, weights, bias):
    record, history = {"x": start, "v": bias}, []
    for _ in range(8):
        record["v"] = np.tanh(record["v"] @ weights + record["x"])
        record["x"] = record["x"] + 0.1 * record["v"]
        history.append(record["x"])
    return np.sum(record["x"]) + np.sum(history[2] * history[5])


def a_list_of_items_that_are_replaced(start, weights, bias):
    pair = [start, bias]
    history = []
    for i in range(8):
        pair[i % 2] = np.tanh(pair[1 - i % 2] @ weights + 0.1 * i)
        history.append(pair[0])
    return np.sum(history[3]) + np.sum(pair[1])


def the_length_of_a_list(start, weights, bias):
    ys = [bias]
    while len(ys) < 8:
        start = np.tanh(start @ weights + bias / len(ys))
        ys.append(start)
        start = start * len(ys)
    return np.sum(ys[2] + ys[-1]) * len(ys)


def an_end_by_the_length(start, weights, bias):
    energies = []
    for i in range(9):
        start = np.tanh(3.0 * (start @ weights))
        energies.append(np.sum(start * bias))
        if len(energies) > 5 and energies[-1] < energies[-2] + 10.0:
            break
    return energies[-1] * i


def the_length_under_another_name(start, weights, bias):
    seen, state = ([], start)
    also = seen
    for i in range(10):
        state = np.tanh(state @ weights + bias + 0.01 * len(also))
        also.append(i)
    return np.sum(state) * len(also)


class Counting:
    def __init__(self):
        self.n = 0


def a_counter_in_an_attribute(start, weights, bias):
    counting = Counting()
    for _ in range(9):
        counting.n += 1
        start = np.tanh(start @ weights + bias / counting.n)
    return np.sum(start) * counting.n


def a_counter_that_ends_the_loop(start, weights, bias):
    counting = Counting()
    while True:
        counting.n += 1
        start = np.tanh(start @ weights + bias / counting.n)
        if counting.n >= 6:
            break
    return np.sum(start) * counting.n


def a_counter_in_an_inner_loop(start, weights, bias):
    counting = Counting()
    for _ in range(4):
        for _ in range(3):
            counting.n += 1
            start = np.tanh(start @ weights + bias * counting.n)
        counting.n -= 1
    return np.sum(start) * counting.n


def an_array_is_filled_before_a_list_is_appended_to(start, weights, bias):
    out, ys = np.zeros((6, 4)), []
    for i in range(6):
        start = np.tanh(start @ weights + bias)
        out[i] = start
        ys.append(np.sum(start) * 10)
    return np.sum(ys[2]) + np.sum(out[3] * bias) + np.sum(out)


def two_lists_around_an_array(start, weights, bias):
    out, ys, zs = np.zeros((6, 4)), [], []
    for i in range(6):
        ys.append(start * 2)
        start = np.tanh(start @ weights + bias)
        out[i] = start
        zs.append(np.sum(start) * 10)
    return np.sum(ys[2]) + np.sum(out[3] * bias) + zs[1] * zs[4]

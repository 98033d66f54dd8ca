"""Griewank and Walther, Algorithm 799: Revolve (2000): advances p(n, s) with s states, the initial one included."""

import pytest

from remat import Loop, plan
from remat.planners.bounds import states_only
from remat.schedule.revolve import advances, advances_of, beta, repetition

SLOTS = (1, 2, 3, 5, 8, 10, 20, 31, 50, 100)
TABLE = {
    10: (45, 20, 15, 13, 10, 9, 9, 9, 9, 9),
    100: (4950, 845, 490, 316, 245, 222, 178, 167, 148, 99),
    1000: (499500, 28820, 12155, 6284, 4285, 3636, 2747, 2439, 1948, 1898),
}
FORWARD_STEPS = {(10, 1): 55, (10, 3): 25, (100, 10): 322, (256, 32): 734, (512, 64): 1470, (1000, 31): 3439}


@pytest.mark.parametrize(("n", "row"), TABLE.items())
def test_the_table_of_advances(n, row):
    assert tuple(advances(n, s) for s in SLOTS) == row
    assert tuple(plan(Loop(n), slots=s, planner="binomial").advances for s in SLOTS) == row


@pytest.mark.parametrize(("case", "steps"), FORWARD_STEPS.items())
def test_forward_steps_count_the_first_sweep(case, steps):
    n, s = case
    assert plan(Loop(n), slots=s).forward_steps == steps == states_only(n, s)


def test_fifty_steps_in_seven_slots():
    assert advances(50, 7) == 105


def test_the_closed_form_solves_the_recurrence():
    best = {(1, 0): 0}
    for s in range(1, 9):
        for n in range(1, 70):
            rest = [i for i in range(1, n) if (n - i, s - 1) in best]
            best[n, s] = min((i + best[i, s] + best[n - i, s - 1] for i in rest), default=0)
            assert advances(n, s) == best[n, s]


def test_the_repetition_number_is_the_least():
    for s in (1, 2, 3, 10, 1000):
        for n in (2, 3, 10, 999, 10**6, 10**9):
            r = repetition(n, s)
            assert beta(s, r - 1) < n <= beta(s, r)


def test_arrays_of_lengths_are_the_same():
    for s in (1, 2, 3, 7, 50):
        assert advances_of(range(300), s).tolist() == [advances(n, s) for n in range(300)]
    assert advances_of([0, 1], 0).tolist() == [0, 0]
    assert advances_of([2], 0)[0] > 2**60

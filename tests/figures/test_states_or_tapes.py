"""Maddison (2024) and Gruslys et al. (2016): states or tapes, a tape of the size of a state or of any other."""

import pytest

from remat import Loop, plan
from remat.planners.bounds import anything_restarts

MADDISON = {
    10: {1: 54, 2: 26, 3: 19, 4: 17, 5: 15, 8: 12, 10: 10},
    100: {1: 5049, 2: 931, 3: 554, 4: 421, 5: 352, 8: 263, 10: 237},
    1000: {10: 3921, 31: 2488, 100: 1909},
}
GRUSLYS_ISM = {
    1000: {10: 3640, 31: 2442, 50: 1950, 100: 1900},
    10: dict(enumerate((55, 24, 18, 16, 15, 14, 13, 12, 11, 10, 10), 1)),
}


@pytest.mark.parametrize(("n", "row"), MADDISON.items())
def test_tapes_as_large_as_states(n, row):
    assert {s: plan(Loop(n), slots=s, planner="mixed").forward_steps for s in row} == row


@pytest.mark.parametrize(("n", "row"), GRUSLYS_ISM.items())
def test_internal_states_only_with_the_initial_state_for_free(n, row):
    """Their m internal states beside a free start are m units less the one in use: our bound with a start more."""
    assert {m: anything_restarts(n + 1, m) - 1 for m in row} == row


def brute(n, m, alpha, restartable):
    """A(n, m) and B(n, m) of the two-table recurrence, as it is written."""
    infinite = 10**9
    table = {}

    def get(kind, t, units):
        return infinite if units < 0 else table[kind, t, units]

    rest = "B" if restartable else "A"
    for t in range(n + 1):
        for u in range(m + 1):
            if t <= 1:
                table["A", t, u] = table["B", t, u] = t
                continue
            table["B", t, u] = min(
                min(y + get("A", t - y, u) + get("B", y, u) for y in range(1, t)),
                min(y + get(rest, t - y, u - alpha) + get("B", y - 1, u) for y in range(1, t)),
            )
            table["A", t, u] = min(
                1 + get(rest, t - 1, u - alpha),
                get("B", t, u - 1),
                min(y + get("A", t - y, u - 1) + get("A", y, u) for y in range(1, t)),
                min((y + get(rest, t - y, u - 1 - alpha) + get("A", y - 1, u) for y in range(2, t)), default=infinite),
            )
    return table


@pytest.mark.parametrize("restartable", [False, True])
@pytest.mark.parametrize("alpha", [1, 2, 3, 7])
def test_any_ratio_of_tape_to_state(alpha, restartable):
    table = brute(30, 12, alpha, restartable)
    for n in range(31):
        for m in range(1, 13):
            loop = Loop(n, state=1, tape=alpha, restartable=restartable)
            assert plan(loop, slots=m, planner="mixed").forward_steps == table["A", n, m]

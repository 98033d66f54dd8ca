"""Stumm and Walther (2010), Wang, Moin and Iaccarino (2009), and what equinox's loop does: length not known."""

import pytest

from remat import Loop, Memory, plan
from remat.planners.dp.online_placement import Sweep, reversal_advances
from remat.schedule.revolve import advances

# (n, slots) → advances of equinox's sweep and bisection, of the same sweep and a binomial reversal, offline optimum
KNOWN = {(1000, 10): (5469, 4597, 3636), (1000, 31): (3250, 2465, 2439), (10_000, 100): (35272, 24950, 24747)}


@pytest.mark.parametrize(("case", "known"), KNOWN.items())
def test_close_to_the_offline_optimum_and_far_below_what_is_known(case, known):
    n, slots = case
    found = plan(Loop(n), slots=slots, planner="online").advances
    assert known[2] <= found <= 1.0001 * known[2] < known[1]


def every_length(slots, longest):
    """(length, advances) as the sweep goes on, were the loop to end there."""
    sweep = Sweep(slots)
    for n in range(1, longest + 1):
        yield n, n - 1 + (reversal_advances(sweep.kept, n - 1, slots) if sweep.kept else 0)
        sweep.pass_over(n - 1)


@pytest.mark.parametrize("slots", range(1, 21))
def test_optimal_at_every_length_up_to_beta_2(slots):
    longest = (slots + 1) * (slots + 2) // 2 + 1
    assert [found for _, found in every_length(slots, longest)] == [advances(n, slots) for n in range(1, longest + 1)]


@pytest.mark.parametrize(("slots", "factor"), [(2, 1.13), (3, 1.06), (5, 1.03), (10, 1.008), (31, 1.001)])
def test_never_far_from_the_offline_optimum(slots, factor):
    assert max(found / advances(n, slots) for n, found in every_length(slots, 3000) if n > 1) <= factor


def test_a_driver_gives_the_same_schedule_as_its_finished_plan():
    driver = plan(Loop(None), Memory(slots=5)).start()
    ops = [op for _ in range(99) for op in driver.advance()]
    ops += driver.last()
    assert tuple(ops) == driver.plan().schedule.ops()
    assert driver.plan().problem.steps == 100

"""Chains of unit stages and a loss: the table of the literature, and that of graphs whose tapes hold their input."""

import pytest

from remat import Chain, InfeasibleError, Option, Stage, plan
from remat.testing import check_plan

UNPINNED = {
    10: {4: 66, 5: 35, 6: 29, 8: 26, 13: 21},
    20: {4: 231, 5: 91, 6: 70, 7: 63, 8: 56, 10: 54, 12: 52, 15: 49, 20: 44, 23: 41, 99: 41},
}
PINNED = {
    10: {5: 75, 6: 41, 7: 33, 8: 29, 10: 26, 12: 24, 15: 21, 99: 21},
    20: {5: 250, 6: 105, 7: 80, 8: 69, 10: 58, 12: 55, 15: 51, 20: 46, 23: 43, 24: 41},
}


def unit_chain(stages, holds_input):
    """Stages that take 1 forward and 1 backward, whose tape is their output, and a loss that takes 1 backward."""
    unit = Stage(1, 1, output=1, tape=0, holds_input=holds_input)
    return Chain([unit] * stages + [Stage(0, 1, output=1, tape=0, holds_input=holds_input)])


@pytest.mark.parametrize("holds_input", [False, True])
def test_unit_chains_take_what_is_known_of_them(holds_input):
    for stages, table in (PINNED if holds_input else UNPINNED).items():
        chain = unit_chain(stages, holds_input)
        for memory, seconds in table.items():
            found = plan(chain, memory)
            assert found.seconds == seconds, (stages, memory)
            assert found.claim.optimal
            check_plan(found)
        least = min(table)
        with pytest.raises(InfeasibleError, match=f"the smallest that works is {least} B") as error:
            plan(chain, least - 1)
        assert error.value.minimum == least


def test_a_chain_with_options_takes_what_exhaustive_search_finds():
    states, running, forward = [4, 6, 3, 5, 2], [8, 5, 6, 4], [3, 2, 4, 1]
    options = [  # held after recording with the output, peaks of record and pullback, seconds of the pullback
        [(12, 13, 20, 5), (6, 9, 20, 8)],
        [(10, 11, 18, 4), (3, 6, 18, 6)],
        [(9, 10, 17, 6), (5, 7, 17, 8)],
        [(2, 4, 9, 2)],
    ]
    stages = [
        Stage(
            forward[i],
            output=states[i + 1],
            forward_workspace=running[i] - states[i + 1],
            options=[Option(held - states[i + 1], forward[i], b, r, p) for held, r, p, b in options[i]],
        )
        for i in range(4)
    ]
    chain = Chain(stages, input=4)
    for memory, seconds in {28: 35, 30: 34, 31: 32, 36: 31, 37: 29, 44: 27, 99: 27}.items():
        found = plan(chain, memory)
        assert found.seconds == seconds == plan(chain, memory, planner="chain-exhaustive").seconds
        check_plan(found)
    with pytest.raises(InfeasibleError, match="28 B"):
        plan(chain, 27)

"""Costs equal those of checkpoint_schedules where it is right."""

import pytest
from checkpoint_schedules import Forward, HRevolve, Move, MultistageCheckpointSchedule, Revolve
from checkpoint_schedules.mixed import optimal_steps_mixed
from checkpoint_schedules.multistage import optimal_extra_steps

from remat import Level, Loop, Memory, plan
from remat.schedule.revolve import advances


def test_binomial_counts():
    for n in range(2, 60):
        for s in range(1, n):
            assert advances(n, s) == optimal_extra_steps(n, s)


@pytest.mark.parametrize(("n", "s"), [(10, 3), (25, 4), (60, 7)])
def test_forward_steps_of_its_schedules(n, s):
    for theirs in (Revolve(n, s), MultistageCheckpointSchedule(n, s, 0)):
        forward = sum(action.n1 - action.n0 for action in theirs if isinstance(action, Forward))
        assert forward == plan(Loop(n), slots=s, planner="binomial").forward_steps


def test_mixed_counts():
    for n in (5, 12, 40, 70):
        for s in range(1, min(n, 12)):
            assert plan(Loop(n), slots=s, planner="mixed").forward_steps == optimal_steps_mixed(n, s)


@pytest.mark.parametrize(("n", "ram", "disk", "cost"), [(10, 1, 1, 2), (20, 2, 3, 2), (30, 3, 3, 5), (40, 4, 2, 3)])
def test_level_costs(n, ram, disk, cost):
    theirs = 0
    for action in HRevolve(n, ram, disk, uf=1, ub=1, wd=cost, rd=cost):
        if isinstance(action, Forward):
            theirs += action.n1 - action.n0
            theirs += cost if action.write_ics and action.storage.name == "DISK" else 0
        elif isinstance(action, Move) or type(action).__name__ == "Copy":
            theirs += cost if action.from_storage.name == "DISK" else 0
    memory = Memory(levels=[Level("ram", slots=ram), Level("disk", slots=disk, read=cost, write=cost)])
    ours = plan(Loop(n, tape=99, forward=1, record=1, backward=0), memory, planner="levels")
    assert ours.seconds == theirs

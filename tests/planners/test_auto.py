"""What auto picks, and the reason it gives."""

import pytest

from remat import InfeasibleError, Level, Loop, Memory, plan, sweep
from remat.testing import check_plan


@pytest.mark.parametrize(
    ("loop", "memory", "planner", "reason"),
    [
        (Loop(100), Memory(slots=5), "binomial", "slots count states"),
        (Loop(100, 1, 9), Memory(10_000), "keep-all", "all tapes fit"),
        (Loop(100, 1, 9), Memory(100), "mixed", "least recomputation"),
        (Loop(1000, 1, 2, per_range=50), Memory(300), "chunks", "mixed would take"),
        (
            Loop(100, 1, 9),
            Memory(levels=[Level("ram", 40), Level("disk", read=0.1, write=0.1)]),
            "levels",
            "mixed would",
        ),
        (
            Loop(100, 1, 9),
            Memory(levels=[Level("ram", 400), Level("disk", read=1e6, write=1e6)]),
            "mixed",
            "levels would",
        ),
        (Loop(100, 1, 9), Memory(levels=[Level("ram", 2000), Level("disk")]), "keep-all", "all tapes fit"),
        (Loop(None), Memory(slots=5), "online", "not known"),
    ],
)
def test_auto_picks_and_says_why(loop, memory, planner, reason):
    found = plan(loop, memory)
    assert found.planner == planner
    assert reason in found.reason
    assert found.memory == memory
    if loop.steps is not None:
        check_plan(found)


def test_auto_is_never_slower_than_another_planner_in_bytes():
    for budget in (20, 50, 200, 900):
        for per_range in (0.0, 10.0):
            loop = Loop(200, 2, 7, per_range=per_range)
            best = plan(loop, budget).seconds
            for name in ("mixed", "chunks", "binomial", "levels", "keep-all"):
                try:
                    assert best <= plan(loop, budget, planner=name).seconds + 1e-9
                except InfeasibleError:
                    continue


def test_the_smallest_memory_is_an_attribute_and_works():
    loop = Loop(1000, "1 MiB", "9 MiB")
    with pytest.raises(InfeasibleError, match=r"no plan fits ram 12 MiB: the smallest that works is 13 MiB") as caught:
        plan(loop, "12 MiB")
    assert (caught.value.minimum, caught.value.unit) == (13 * 2**20, "bytes")
    assert plan(loop, caught.value.minimum).peak == caught.value.minimum
    with pytest.raises(InfeasibleError):
        plan(loop, caught.value.minimum - 1)


def test_the_trade_off_curve_falls():
    curve = sweep(Loop(300, 2, 5), points=12)
    steps = [point.forward_steps for point in curve]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] == 300
    assert all(point.peak <= point.budget for point in curve)
    assert len(curve) == len(curve.points) == 12


def test_a_curve_lists_what_does_not_fit_apart():
    curve = sweep(Loop(10), memory=[1, 20, "1 KiB"])
    assert [point.budget for point in curve] == [20, 1024]
    assert curve.infeasible == ((1, 5),)
    assert "1 B does not fit: 5 B would" in str(curve)
    with pytest.raises(InfeasibleError):
        sweep(Loop(10), memory=[1, 2])

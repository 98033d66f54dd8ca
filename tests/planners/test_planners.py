"""What holds of every planner: legal, inside its memory, costing what it predicts, and honest about what it refuses."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat import (
    Chain,
    InfeasibleError,
    Level,
    Loop,
    Memory,
    PlannerError,
    ProblemError,
    Schedule,
    Stage,
    plan,
    simulate,
    verify,
)
from remat.planners import PLANNERS, Chunks, Levels, Mixed, Prediction
from remat.planners.loop.pooled import best_pool
from remat.testing import check_plan, loops, memories

KNOWN_LENGTH = [name for name, planner in PLANNERS.items() if planner.problem_type is Loop and name != "exhaustive"]


def or_minimum(problem, memory, planner):
    """The plan, or if nothing fits the plan for the smallest memory that does."""
    try:
        return plan(problem, memory, planner=planner)
    except InfeasibleError as caught:
        error, device = caught, memory.device
    size = {"slots": error.minimum} if error.unit == "slots" else {"capacity": error.minimum}
    assert error.minimum > (device.slots if error.unit == "slots" else device.capacity)
    assert "smallest that works" in str(error)
    level = Level(device.name, **size, read=device.read, write=device.write)
    return plan(problem, Memory(levels=[level, *memory.levels[1:]]), planner=planner)


@given(loops(), memories())
def test_a_pool_of_levels_costs_what_it_predicts(loop, memory):
    ranked = sorted(memory.levels, key=lambda level: level.read + level.write)
    found = best_pool(loop, memory, ranked, [level.slots or 3 for level in ranked])
    if found is not None:
        trace = simulate(Schedule(found[0]), loop, memory)
        assert found[1].agrees(Prediction.of(trace))


@pytest.mark.parametrize("host", ["6 GB", pytest.param("64 GB", marks=pytest.mark.full)])
def test_long_loops_in_levels_are_faster_than_keeping_every_state_in_the_slow_one(host):
    loop = Loop(4000, 3_000_000, 20_000_000, 0.002, 0.003, 0.006)
    found = plan(loop, Memory(levels=[Level("gpu", "500 MB"), Level("host", host, read="25 GB/s", write="25 GB/s")]))
    check_plan(found)
    slow = plan(loop, Memory(levels=[Level("host", host, read="25 GB/s", write="25 GB/s")]), planner="levels")
    assert found.seconds < slow.seconds


@pytest.mark.parametrize("name", KNOWN_LENGTH)
@given(loops(), memories())
def test_every_plan_is_legal_fits_and_costs_what_it_predicts(name, loop, memory):
    if PLANNERS[name]().accepts(loop, memory) is not None:
        memory = Memory(levels=[Level("ram", memory.device.capacity, slots=memory.device.slots)])
    found = or_minimum(loop, memory, name)
    check_plan(found)
    assert found.records == loop.steps
    assert found.recomputed == found.advances
    assert found.claim.factor is None or found.claim.factor >= 1.0
    assert found.schedule == found.schedule


@given(loops(), st.integers(0, 200), st.booleans())
def test_the_guided_search_is_legal_and_within_its_factor_of_the_exact_table(loop, budget, in_slots):
    memory = Memory(slots=budget % 12) if in_slots else Memory(budget)
    guided, exact = (or_minimum(loop, memory, Mixed(most)) for most in (0, inf))
    check_plan(guided)
    assert exact.forward_steps <= guided.forward_steps
    assert guided.forward_steps <= guided.claim.factor * exact.forward_steps + 1e-9


@given(loops(), st.integers(1, 9), st.integers(0, 9))
def test_chunks_of_any_length(loop, k, slots):
    found = or_minimum(loop, Memory(slots=slots), Chunks(k))
    check_plan(found)
    assert max((op.stop - op.start for op in found.schedule if type(op).__name__ == "Record"), default=0) <= k


@settings(max_examples=40)
@given(loops(6), st.integers(0, 3))
def test_slots_equal_exhaustive_search(loop, slots):
    loop = Loop(loop.steps, loop.state, loop.tape, 1, 1, 2, loop.restartable)
    oracle, found = (or_minimum(loop, Memory(slots=slots), name) for name in ("exhaustive", "mixed"))
    assert found.forward_steps == oracle.forward_steps
    assert oracle.memory == found.memory
    check_plan(oracle)


@settings(max_examples=30)
@given(loops(5), st.integers(0, 45))
def test_bytes_of_peak_equal_exhaustive_search(loop, budget):
    loop = Loop(loop.steps, loop.state, loop.tape, 1, 1, 2, loop.restartable)
    oracle, found = (or_minimum(loop, Memory(budget), name) for name in ("exhaustive", "mixed"))
    assert found.forward_steps == oracle.forward_steps
    assert oracle.memory == found.memory
    check_plan(oracle)


@settings(max_examples=30)
@given(loops(5), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3))
def test_levels_equal_exhaustive_search_where_they_are_ordered_by_cost(loop, levels):
    write, read = sorted(w / 2 for _, w, _ in levels), sorted(r / 2 for _, _, r in levels)
    memory = Memory(
        levels=[Level(f"l{k}", slots=c, write=write[k], read=read[k]) for k, (c, _, _) in enumerate(levels)]
    )
    loop = Loop(loop.steps, 1, 99, loop.forward, loop.record, loop.backward)  # tapes too large to be held
    oracle, found = (or_minimum(loop, memory, name) for name in ("exhaustive", "levels"))
    assert found.claim.within == "states in levels"
    assert found.seconds == pytest.approx(oracle.seconds)


@settings(max_examples=30)
@given(loops(5), st.permutations([0, 1, 2]), st.lists(st.integers(0, 4), min_size=6, max_size=6))
def test_levels_in_any_order_are_never_better_than_exhaustive_search(loop, order, costs):
    levels = [Level(f"l{k}", slots=order[k], write=costs[k], read=costs[k + 3]) for k in range(3)]
    loop = Loop(loop.steps, 1, 99, loop.forward, loop.record, loop.backward)
    oracle, found = (or_minimum(loop, Memory(levels=levels), name) for name in ("exhaustive", "levels"))
    assert found.seconds >= oracle.seconds - 1e-9


def test_a_long_loop_in_levels_is_grouped_legal_and_says_its_factor():
    memory = Memory(levels=[Level("ram", slots=12), Level("disk", slots=150, read=3, write=3)])
    found = plan(Loop(6000), memory, planner=Levels())
    assert 1.0 < found.claim.factor < 1.5
    check_plan(found)


@pytest.mark.parametrize("name", KNOWN_LENGTH)
@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("slots", [0, 1, 5])
def test_tiny_loops_are_planned_or_need_one_slot(name, steps, slots):
    found = or_minimum(Loop(steps), Memory(slots=slots), name)
    check_plan(found)
    assert found.memory.device.slots <= max(slots, 1)


def test_two_steps_without_a_slot_need_one():
    for name in ("auto", "binomial", "mixed", "levels", "online", "keep-all"):
        with pytest.raises(InfeasibleError) as caught:
            plan(Loop(2), slots=0, planner=name)
        assert (caught.value.minimum, caught.value.unit) == (1, "slots")


def test_slots_at_least_n_keep_every_state():
    assert plan(Loop(10), slots=10).forward_steps == plan(Loop(10), slots=10**6).forward_steps == 19
    assert plan(Loop(10), slots=9, planner="mixed").forward_steps == 10


def test_a_billion_steps_are_counted_at_once():
    for s in (1, 2, 100, 10**9):
        assert plan(Loop(10**9), slots=s).forward_steps >= 10**9
    assert plan(Loop(10**9), slots=1).forward_steps == 10**9 * (10**9 + 1) // 2


def test_the_square_root_scheme_has_a_slot_for_every_chunk():
    found = plan(Loop(1000), slots=31, planner="chunks")
    assert found.forward_steps == 1000 + 1000 - 32  # 32 chunks of up to 32; only the last is not run twice
    assert found.claim.within == "states only and ranges of 32 steps"


@given(loops(40), st.integers(0, 200))
def test_the_chosen_length_of_ranges_is_the_best(loop, budget):
    found = or_minimum(loop, Memory(budget), "chunks")
    for k in range(1, loop.steps + 1):
        try:
            other = plan(loop, found.memory, planner=Chunks(k))
        except InfeasibleError:
            continue
        assert found.seconds <= other.seconds + 1e-9


def test_chunks_weigh_the_cost_of_a_range_against_recomputation():
    def seconds(loop, k):
        try:
            return plan(loop, 60, planner=Chunks(k)).seconds
        except InfeasibleError:
            return float("inf")

    chosen = set()
    for per_range in (0.0, 5.0, 100.0):
        loop = Loop(1000, per_range=per_range)
        found = plan(loop, 60, planner="chunks")
        assert found.seconds == pytest.approx(min(seconds(loop, k) for k in range(1, 60)))
        chosen.add(found.claim.within)
    assert len(chosen) == 3


@pytest.mark.parametrize(
    ("problem", "arguments", "error", "said"),
    [
        (5000, {"slots": 3}, ProblemError, r"did you mean Loop\(5000\)"),
        (Loop(5), {}, ProblemError, "give a budget"),
        (Loop(5), {"memory": 5, "slots": 5}, ProblemError, "both"),
        (Loop(5), {"memory": 0.5}, ProblemError, "fraction"),
        (Loop(5), {"slots": 1.5}, ProblemError, "slots"),
        (Loop(5), {"slots": -1}, ProblemError, "slots"),
        (Loop(5), {"memory": "plenty"}, ProblemError, "not a size"),
        (Loop(5), {"slots": 1, "planner": "magic"}, PlannerError, "there are auto, keep-all"),
        (Loop(None), {"slots": 1, "planner": "binomial"}, PlannerError, "online"),
        (Loop(9), {"slots": 1, "planner": "exhaustive"}, PlannerError, "8 steps"),
        (Chain([Stage()]), {"slots": 3}, PlannerError, "give bytes"),
        (Chain([Stage()]), {"memory": 100, "planner": "mixed"}, PlannerError, "chain"),
        (
            Loop(5),
            {"memory": Memory(levels=[Level("a", 9), Level("b", 9)]), "planner": "mixed"},
            PlannerError,
            "levels",
        ),
        (Loop(5), {"memory": Memory(levels=[Level("a", 99, read=1)]), "planner": "binomial"}, PlannerError, "costs"),
        (Loop(None), {"memory": Memory(levels=[Level("a")])}, PlannerError, "limit"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_reason(problem, arguments, error, said):
    with pytest.raises(error, match=said):
        plan(problem, **arguments)


def test_a_chunk_length_must_be_a_whole_number():
    with pytest.raises(ProblemError):
        Chunks(0)
    assert Chunks(np.int64(3)) == Chunks(3)
    assert type(Chunks(np.int64(3)).k) is int


def test_a_byte_budget_says_how_many_states_its_claim_is_about():
    """One more state may fit before the turn, where there is no cotangent; mixed makes use of it."""
    binomial = plan(Loop(5, tape=1000), 1004, planner="binomial")
    assert binomial.claim.within == "at most 1 kept state"
    assert binomial.forward_steps == 15 > plan(Loop(5, tape=1000), 1004, planner="mixed").forward_steps == 12
    assert plan(Loop(3, tape=1000), 1004, planner="levels").claim.within == "states in levels, at most 1 in ram"


def test_a_cost_per_range_is_not_part_of_the_claim_of_mixed():
    loop = Loop(6, tape=3, per_range=5)
    assert "counting forward steps" in str(plan(loop, 14, planner="mixed").claim)
    assert plan(loop, 14).planner == "chunks"


def test_keep_all_holds_its_tapes_in_slots():
    found = plan(Loop(8), slots=7, planner="keep-all")
    check_plan(found)
    assert verify(found.schedule, found.problem, Memory(slots=6)).rule == 9


@pytest.mark.parametrize("disk", [None, 1000, pytest.param(50_000, marks=pytest.mark.full)])
def test_a_long_loop_with_hardly_any_fast_memory(disk):
    memory = Memory(levels=[Level("ram", slots=1), Level("disk", slots=disk, read=0.01, write=0.01)])
    found = plan(Loop(8000), memory, planner="levels")
    check_plan(found)
    assert found.claim.factor < 1.02


def test_a_long_loop_without_fast_memory_is_planned():
    memory = Memory(levels=[Level("ram", slots=0), Level("disk", slots=400)])
    check_plan(plan(Loop(2000), memory, planner="levels"))


@pytest.mark.parametrize("name", ["chunks", "binomial", "levels", "mixed", "auto"])
def test_a_billion_steps_are_no_hang(name):
    levels = [Level("ram", "20 GB"), Level("disk", slots=50, read=1, write=1)]
    memory = Memory(levels=levels) if name in ("levels", "auto") else Memory("20 GB")
    assert (
        plan(Loop(10**9, 10**7, 10**8), memory, planner=name if name != "keep-all" else "auto").forward_steps >= 10**9
    )


def test_many_slots_cost_an_online_loop_nothing_while_they_are_free():
    driver = plan(Loop(None), "16 MiB").start()
    assert len([op for _ in range(1000) for op in driver.advance()]) == 2000
    driver.last()
    assert driver.plan().recomputed == 1000


def test_thousands_of_slots_in_use_are_still_quick():
    driver = plan(Loop(None), slots=3000).start()
    for _ in range(8000):
        driver.advance()
    driver.last()
    assert driver.plan().claim.factor < 1.01


@pytest.mark.parametrize("steps", [500, 30_000, 10**6])
def test_tiny_tapes_and_large_states_at_the_least_memory(steps):
    loop = Loop(steps, state=5 * steps - 5, tape=10)
    with pytest.raises(InfeasibleError) as caught:
        plan(loop, 0, planner="mixed")
    found = plan(loop, caught.value.minimum, planner="mixed")
    assert found.peak == caught.value.minimum == 5 * steps + 3 * loop.state
    if steps < 10**5:
        check_plan(found)


def test_times_of_nothing_have_no_factor():
    memory = Memory(levels=[Level("ram", slots=10), Level("disk", slots=100, read=1, write=1)])
    assert plan(Loop(10**5, forward=0, backward=0), memory, planner="levels").claim.factor is None


def test_planners_are_values():
    assert Chunks(3) == Chunks(3) != Chunks(4)
    assert hash(Mixed()) == hash(Mixed())


def test_a_million_steps_of_mixed_are_planned_and_legal_where_they_are_looked_at():
    found = plan(Loop(10**6, tape=9), slots=100, planner="mixed")
    assert found.claim.factor < 1.01
    assert verify(
        plan(Loop(20_000, tape=9), slots=50, planner="mixed").schedule, Loop(20_000, tape=9), Memory(slots=50)
    )


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_mixed_with_hardly_any_slots_and_many_steps(slots):
    found = plan(Loop(10**6), slots=slots, planner="mixed")
    assert found.claim.factor < 1.1


def test_odd_sizes_in_bytes_are_planned_close_to_the_bound():
    found = plan(Loop(20_000, 1_234, 93_456), "8 MiB", planner="mixed")
    assert found.claim.factor < 1.02
    check_plan(found)

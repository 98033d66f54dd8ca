"""Plans of chains: never better than exhaustive search, never over the budget, and never called more than they are."""

import random

import pytest

from remat import (
    Advance,
    Chain,
    InfeasibleError,
    Keep,
    Memory,
    Option,
    Plan,
    Schedule,
    Stage,
    plan,
    simulate,
    sweep,
    verify,
)
from remat.planners.chain.optimal_chain import OptimalChain
from remat.planners.chain.periodic_segments import PeriodicSegments
from remat.testing import check_plan

GRID = OptimalChain(points=0)
NOT_PERSISTENT = {5}  # its best schedule drops a state and computes it again before that state's own part is reversed


def random_chain(seed, most_stages=5, most_options=3):
    """Stages of random sizes and times; some hold their input and output, some do not."""
    rng = random.Random(seed)
    n, pinned = rng.randint(1, most_stages), rng.random() < 0.5
    sizes = [rng.randint(0, 6) for _ in range(n + 1)]
    stages = []
    for i in range(n):
        forward, tape = rng.choice([0, 1, 1, 2, 5]), rng.randint(0, 12)
        options = []
        for k in range(rng.randint(1, most_options if n < 5 else 1)):
            held = tape // (k + 1)
            holds = {"holds_input": pinned or rng.random() < 0.5, "holds_output": rng.random() < 0.5}
            peak = tape + sizes[i] + 2 * sizes[i + 1] + rng.choice([0, 2]) if rng.random() < 0.5 else None
            options.append(Option(held, forward, 1 + k * forward, pullback_peak=peak, **holds))
        stages.append(Stage(forward, output=sizes[i + 1], forward_workspace=rng.choice([0, 0, 3]), options=options))
    return Chain(stages, input=sizes[0]), rng


def outcome(chain, memory, planner):
    try:
        found = plan(chain, memory, planner=planner)
    except InfeasibleError as error:
        return float("inf"), error.minimum
    check_plan(found)
    return found.seconds, found.peak


@pytest.mark.parametrize("seeds", [range(start, start + 8) for start in range(0, 64, 8)])
def test_random_chains_are_planned_as_well_as_exhaustive_search_finds(seeds):
    for seed in seeds:
        chain, rng = random_chain(seed)
        most = plan(chain, 10**9, planner="chain-keep-all").peak
        memory = rng.randint(most // 3, most + 1)
        best, _ = outcome(chain, memory, "chain-exhaustive")
        found, least = outcome(chain, memory, "chain")
        rounded, _ = outcome(chain, memory, GRID)
        assert best <= found <= rounded
        assert found == best or seed in NOT_PERSISTENT
        if found == float("inf"):
            check_plan(plan(chain, least))  # what the error says works


def test_stages_that_cannot_be_repeated_are_recorded_when_they_run():
    for seed in range(16):
        chain, rng = random_chain(seed)
        stages = [Stage.from_dict({**stage.to_dict(), "repeatable": rng.random() < 0.6}) for stage in chain.stages]
        chain = Chain(stages, chain.input)
        most = plan(chain, 10**9, planner="chain-keep-all").peak
        memory = rng.randint(most // 2, most + 1)
        best, _ = outcome(chain, memory, "chain-exhaustive")
        found, least = outcome(chain, memory, "chain")
        rounded, _ = outcome(chain, memory, GRID)
        assert best == found <= rounded
        once = {i for i, stage in enumerate(chain.stages) if not stage.repeatable}
        ops = plan(chain, memory if found < float("inf") else least).schedule
        assert not any(once & set(range(op.start, op.stop)) for op in ops if isinstance(op, Advance))
    once = Chain([Stage(repeatable=False), Stage(), Stage()])
    assert "unit 0 cannot be repeated" in str(verify([Keep(0, "ram"), Advance(0, 3)], once, 100))


def test_a_chain_for_which_no_persistent_schedule_is_best_is_not_called_optimal_among_all():
    chain, _ = random_chain(5)
    found, best = plan(chain, 29), plan(chain, 29, planner="chain-exhaustive")
    assert found.seconds > best.seconds
    assert str(found.claim) == "optimal within persistent schedules of these stages and options"


def deep_chain(stages, noise=0.0):
    rng = random.Random(1)
    return Chain(
        [
            Stage(2 + noise * rng.random(), 4, output=64, tape=900 + int(40 * noise * rng.random()), name=f"block{i}")
            for i in range(stages)
        ],
        input=8,
    )


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_budgets_of_a_deep_chain_are_kept_and_more_memory_is_never_slower(noise):
    chain = deep_chain(60, noise)
    everything = plan(chain, 10**9, planner="chain-keep-all")
    seconds = []
    for share in (0.05, 0.1, 0.2, 0.4, 0.7, 1.0):
        found = plan(chain, int(share * everything.peak))
        check_plan(found)
        assert found.claim.factor <= 1.05
        seconds.append(found.seconds)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == pytest.approx(everything.seconds)


def test_it_is_never_slower_than_segments_in_the_same_memory():
    chain = deep_chain(30)
    for k in (2, 5, 10, 30):
        segments = plan(chain, 10**9, planner=PeriodicSegments(k))
        assert plan(chain, segments.peak).seconds <= segments.seconds
    chosen = plan(chain, 12_000, planner="chain-segments")
    assert chosen.peak <= 12_000
    assert chosen.recomputed


def test_too_little_memory_names_the_stage_that_needs_more():
    stages = [Stage(output=4, tape=9, name=f"layer{i}") for i in range(6)]
    stages[4] = Stage(output=4, tape=500, backward_workspace=70, name="attention")
    for planner in ("chain", GRID):
        with pytest.raises(InfeasibleError, match="while stage 4 'attention' is pulled back") as error:
            plan(Chain(stages), 100, planner=planner)
        assert plan(Chain(stages), error.value.minimum, planner=planner).peak == error.value.minimum
    with pytest.raises(InfeasibleError, match="the tapes of all 6 stages"):
        plan(Chain(stages), 100, planner="chain-keep-all")
    with pytest.raises(InfeasibleError, match="segments"):
        plan(Chain(stages), 100, planner="chain-segments")


def test_options_are_written_read_and_checked():
    chain = Chain([Stage(options=[Option(8), Option(0, backward=5)]), Stage()])
    schedule = Schedule.parse("record 0 1 1; record 1 2; turn; pullback 2 1; pullback 1 0")
    assert str(schedule).splitlines()[0] == "record 0 1 1"
    assert simulate(schedule, chain).seconds == 1 + 1 + 2 + 5
    assert [event.op for event in simulate(schedule, chain)] == list(schedule)
    verdict = verify(Schedule.parse("record 0 1 2"), chain, 100)
    assert (verdict.rule, "no option 2" in verdict.fact) == (1, True)


def test_plans_of_chains_are_saved_swept_and_reported(tmp_path):
    chain = deep_chain(12)
    found = plan(chain, 4000)
    found.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == found
    curve = sweep(chain, points=5)
    assert [point.seconds for point in curve] == sorted((point.seconds for point in curve), reverse=True)
    assert "block" in found.report(tmp_path / "plan.txt").read_text()
    assert found.report(tmp_path / "plan.html").exists()
    found.simulate().save(tmp_path / "trace.json")


def test_an_empty_chain_and_a_single_stage_are_planned():
    assert plan(Chain([]), 10).forward_steps == 0
    assert plan(Chain([Stage()]), Memory(100)).forward_steps == 1

"""Plans of graphs: never better than trying every schedule, equal where that is claimed, never over the budget."""

import random
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product

import pytest

import remat
from remat import Graph, InfeasibleError, Memory, Operation, Plan, Storage, plan, simulate, sweep, verify
from remat.cli import main
from remat.errors import FileError, PlannerError, ProblemError
from remat.ops import Free, Run
from remat.planners.graph import exact_choice
from remat.planners.graph.exact_choice import has_cp_sat
from remat.planners.graph.graph_planner import peak_of
from remat.planners.graph.intervals import last_stages
from remat.planners.graph.optimal_graph import OptimalGraph
from remat.planners.graph.run_order import just_in_time, live_bytes, plain_runs, with_frees
from remat.testing import check_plan
from tests.planners.random_graphs import random_graph, unet, unit_chain

needs_ortools = pytest.mark.skipif(not has_cp_sat(), reason="OR-Tools is not installed")
SMALL = OptimalGraph(workers=1, small=0, copies=1)
# The table for unit chains of L layers, at budgets 3, 4, 5 … (Checkmate, Jain et al. 2020).
CHAINS = {3: (10, 8, 7), 4: (15, 11, 10, 9), 5: (21, 14, 13, 12, 11), 6: (28, 18, 16, 15, 14, 13)}


def every_placing(graph):
    """For each peak the least seconds of running again, over all placings of at most one run again an operation."""
    last = last_stages(graph)
    best = {}
    for stages in product(*[[None, *(p for p in graph.pauses if p <= last[i])] for i in sorted(last)]):
        placed = [(stage, i) for i, stage in zip(sorted(last), stages, strict=True) if stage is not None]
        runs = plain_runs(graph)[: graph.turn]
        for backward in range(graph.turn, graph.units):
            runs += [*(i for stage, i in sorted(placed) if stage == backward), backward]
        peak, seconds = peak_of(graph, runs), sum(graph.operations[i].seconds for _, i in placed)
        best[peak] = min(seconds, best.get(peak, seconds))
    return best


def extra(found):
    return found.seconds - found.problem.advance_time(0, found.problem.units)


def planned_or_none(graph, budget):
    with suppress(InfeasibleError):
        return SMALL.plan(graph, Memory(budget))
    return None


def budgets(graph, least, seed, count=3):
    rng = random.Random(seed)
    return {least, *(rng.randint(least, graph.plain_peak) for _ in range(count))}


@needs_ortools
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(i, marks=pytest.mark.full) for i in range(6, 60))])
def test_a_plan_is_the_best_of_its_class(seed):
    graph = random_graph(seed, 3 + seed % 2)
    points = every_placing(graph)
    for budget in budgets(graph, min(points), seed):
        found = SMALL.plan(graph, Memory(budget))
        assert found.claim.optimal
        assert found.peak <= budget
        assert extra(found) == pytest.approx(min(seconds for peak, seconds in points.items() if peak <= budget))
        check_plan(found)
    if min(points):
        with pytest.raises(InfeasibleError) as caught:
            SMALL.plan(graph, Memory(min(points) - 1))
        assert caught.value.minimum == min(points)


@needs_ortools
@pytest.mark.parametrize("seed", range(8))
def test_operations_run_again_only_where_saved_tensors_are_unpacked(seed):
    graph, rng = random_graph(seed, 4, writes=False), random.Random(seed)
    some = {graph.units - 1, *(i for i in range(graph.turn + 1, graph.units) if rng.random() < 0.5)}
    operations = [replace(each, unpacks=(i,) if i in some else ()) for i, each in enumerate(graph.operations)]
    graph = Graph(operations, graph.storages, graph.results)
    points = every_placing(graph)
    for budget in budgets(graph, min(points), seed):
        found = SMALL.plan(graph, Memory(budget))
        runs = [op.operation for op in found.schedule if isinstance(op, Run)]
        again = [after for run, after in pairwise(runs[graph.turn :]) if run < graph.turn <= after]
        assert {*again} <= {*graph.pauses}
        assert extra(found) == pytest.approx(min(seconds for peak, seconds in points.items() if peak <= budget))
        check_plan(found)
    with pytest.raises(PlannerError, match="unpack saved tensors"):
        plan(graph, graph.plain_peak, planner="graph-exhaustive")


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(i, marks=pytest.mark.full) for i in range(8, 80))])
def test_a_plan_is_never_better_than_every_schedule_and_equal_where_it_says_so(seed):
    graph = random_graph(seed, 4, hard=seed % 2 == 0, writes=False)
    with pytest.raises(InfeasibleError) as caught:
        plan(graph, 0, planner="graph-exhaustive")
    for budget in budgets(graph, caught.value.minimum, seed, 2):
        best = plan(graph, budget, planner="graph-exhaustive")
        check_plan(best)
        found = planned_or_none(graph, budget)
        if found is None:  # who runs each operation again at most once may need more memory
            continue
        assert found.seconds >= best.seconds - 1e-9
        assert found.peak <= budget
        if not found.claim.within:
            assert found.seconds <= best.seconds * found.claim.factor * (1 + 1e-6)


@needs_ortools
def test_where_another_order_is_better_the_claim_is_about_this_one():
    """Before one pullback, operations are run again in the order of the forward; here another order needs less."""
    graph = random_graph(1012, 5, hard=False)
    found = OptimalGraph(workers=1, small=0, copies=4).plan(graph, Memory(27))
    best = plan(graph, 27, planner="graph-exhaustive")
    assert best.seconds < found.seconds
    assert best.claim.within == ""
    assert found.claim.within == "this order of operations, each run again at most 4 times"
    with pytest.raises(InfeasibleError, match="in this order of operations"):  # and once each is not enough
        SMALL.plan(graph, Memory(27))


@needs_ortools
def test_what_does_not_fit_if_run_again_once_is_run_again_more_often():
    graph = unit_chain(12)
    with pytest.raises(InfeasibleError) as caught:
        SMALL.plan(graph, Memory(3))
    less = caught.value.minimum - 1
    found = plan(graph, less, planner=OptimalGraph(workers=1, small=0, seconds=3))
    assert found.peak <= less
    check_plan(found)
    runs = [op.operation for op in found.schedule if isinstance(op, Run)]
    assert max(map(runs.count, runs)) > 2


@needs_ortools
def test_the_claim_says_where_sizes_are_rounded():
    graph = unit_chain(12)
    sizes = [Storage(10**16 + number) for number in range(len(graph.storages))]
    large = Graph(graph.operations, sizes, graph.results)
    found = SMALL.plan(large, Memory(8 * 10**16))
    assert "sizes rounded up to" in str(found.claim)
    assert found.peak <= 8 * 10**16


@pytest.mark.parametrize("seed", range(20))
def test_counting_bytes_of_runs_is_what_a_simulation_counts(seed):
    graph = random_graph(seed, 9)
    kept = random.Random(seed).sample(graph.saved, len(graph.saved) // 2)
    runs = just_in_time(graph, kept)
    ops = with_frees(graph, runs)
    sizes = [event.live.total() for event in simulate(ops, graph) if isinstance(event.op, Run)]
    assert live_bytes(graph, runs) == sizes
    assert verify(ops, graph, max(sizes))
    assert not verify(ops, graph, max(sizes) - 1)


@needs_ortools
@pytest.mark.parametrize("layers", [3, 4, *(pytest.param(i, marks=pytest.mark.full) for i in (5, 6))])
def test_unit_chains_take_what_checkmate_takes(layers):
    for budget, steps in enumerate(CHAINS[layers], 3):
        found = plan(unit_chain(layers), budget, planner=OptimalGraph(workers=1, small=0))
        assert found.seconds == steps
        assert found.claim.optimal


def test_the_integer_program_of_checkmate_agrees():
    checkmate = pytest.importorskip("tests.planners.checkmate", reason="SciPy is not installed")
    assert [checkmate.checkmate_seconds(unit_chain(3), budget) for budget in (2, 3, 4, 5)] == [None, 10, 8, 7]


@needs_ortools
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(i, marks=pytest.mark.full) for i in range(3, 20))])
def test_checkmate_is_never_slower(seed):
    """Its class is wider: it may run anything again in any stage, each once a stage."""
    checkmate = pytest.importorskip("tests.planners.checkmate", reason="SciPy is not installed")
    graph = random_graph(seed, 4, hard=False)
    points = every_placing(graph)
    for budget in budgets(graph, min(points), seed, 1):
        oracle = checkmate.checkmate_seconds(graph, budget)
        assert oracle <= SMALL.plan(graph, Memory(budget)).seconds + 1e-6


@needs_ortools
def test_a_unet_is_planned_where_no_chain_and_no_cut_reaches():
    graph = unet(2)
    found = OptimalGraph(workers=1, seconds=60).plan(graph, Memory(int(0.5 * graph.plain_peak)))
    check_plan(found)
    assert found.claim.optimal
    assert found.seconds < 1.1 * graph.advance_time(0, graph.units)


@needs_ortools
@pytest.mark.full
@pytest.mark.parametrize("fraction", [0.7, 0.5, 0.4])
def test_a_deep_unet_is_planned_optimally_in_seconds(fraction):
    graph = unet(4)
    assert graph.units >= 140
    found = OptimalGraph(workers=2, seconds=60).plan(graph, Memory(int(fraction * graph.plain_peak)))
    check_plan(found)
    assert found.claim.optimal


def test_everything_fits_and_nothing_runs_again():
    graph = unet(2)
    found = plan(graph, graph.plain_peak)
    assert (found.recomputed, found.claim.optimal, found.claim.within) == (0, True, "")
    assert found.peak == graph.plain_peak


def test_without_ortools_there_is_a_plan_with_what_the_cut_proves(monkeypatch):
    def missing():
        raise PlannerError("no OR-Tools")

    monkeypatch.setattr(exact_choice, "cp_model", missing)
    graph = unet(2)
    found = plan(graph, int(0.5 * graph.plain_peak))
    check_plan(found)
    assert 1.0 < found.claim.factor < 1.2
    assert found.claim.within == ""
    with pytest.raises(InfeasibleError, match="the least that was found"):
        plan(unit_chain(5), 3)


def test_too_little_memory_names_the_operation_and_the_least():
    graph = unit_chain(3)
    with pytest.raises(InfeasibleError, match=r"while operation \d+, .*runs.*make its largest storage") as caught:
        plan(graph, 2, planner=OptimalGraph(workers=1))
    assert caught.value.minimum > 2
    assert plan(graph, caught.value.minimum, planner=OptimalGraph(workers=1)).peak == caught.value.minimum


def test_a_plan_of_a_graph_is_saved_and_loaded(tmp_path):
    graph = unit_chain(3)
    found = plan(graph, 6)
    found.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == found
    text = (tmp_path / "plan.json").read_text().replace('"free 0"', '"free 1"', 1)
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(FileError, match="damaged"):
        Plan.load(tmp_path / "plan.json")
    graph.save(tmp_path / "graph.json")
    assert Graph.load(tmp_path / "graph.json") == graph


def test_a_sweep_goes_from_the_least_to_everything():
    curve = sweep(unit_chain(4), planner=OptimalGraph(workers=1), points=4)
    times = [point.seconds for point in curve]
    assert times == sorted(times, reverse=True)
    assert times[-1] == 9
    assert "forward operations" in str(curve)


def test_the_command_plans_a_saved_graph(tmp_path, capsys):
    path = tmp_path / "graph.json"
    unit_chain(3).save(path)
    assert main(["plan", "--problem", str(path), "--memory", "100"]) == 0
    printed = capsys.readouterr().out
    assert "7 operations in ram 100 B" in printed
    assert "7 operations, and 0 of them again" in printed
    assert main(["plan", "--problem", str(path), "--memory", "100", "--save", str(tmp_path / "plan.json")]) == 0
    assert main(["verify", str(tmp_path / "plan.json")]) == 0


def test_a_plan_of_a_graph_has_a_report(tmp_path):
    found = plan(unit_chain(3), 100)
    assert "7 operations" in found.report(tmp_path / "plan.txt").read_text()
    assert found.report(tmp_path / "plan.html").stat().st_size > 10_000
    graph = unet(2)
    less = plan(graph, int(0.8 * graph.plain_peak), planner=OptimalGraph(seconds=2))
    text = less.report(tmp_path / "less.txt").read_text()
    assert f"{less.recomputed} operations" in text
    holders = " ".join(text.partition("Who holds it?")[2].partition("How much")[0].split())
    assert holders.count("storage") == 6
    assert holders.endswith(" more")


def test_slots_and_levels_are_refused():
    with pytest.raises(PlannerError, match="give bytes"):
        plan(unit_chain(3), slots=3)
    with pytest.raises(PlannerError, match="it plans graphs, and this is a loop"):
        plan(remat.Loop(3), 100, planner="graph")


RULES = [
    ([Run(0), Run(2)], "R13", "operation 1 has not run yet"),
    ([Run(0), Free(0), Run(1)], "R14", "storage 0 (x) is not live"),
    ([Run(0), Run(1), Free(1)], "R15", "operations 2..2 of the forward have not run yet"),
    ([Run(0), Free(0), Free(0)], "R16", "not live"),
    ([Run(0), Run(1), Run(2), Run(3)], "R17", "still live"),
    ([Run(0)], "R17", "operations from 1 on have not run"),
    ([Run(9)], "R12", "there is no operation 9"),
    ([Free(9)], "R12", "there is no storage 9"),
    ([Run(0), Run(1), Run(2), Run(2)], "R13", "cannot be run again"),
    ([Run(0), Run(1), Run(2), Run(1)], "R14", "has been written into since"),
    ([remat.ops.Turn()], "R11", "Turn is no op of a graph"),
]


@pytest.mark.parametrize(("ops", "rule", "fact"), RULES)
def test_each_rule_is_named(ops, rule, fact):
    operations = [
        Operation("f", 1.0, [], [0]),
        Operation("g", 1.0, [0], [1]),
        Operation("write", 1.0, [], [], [0], repeatable=False),
        Operation("back", 1.0, [0, 1], [2], backward=True),
    ]
    graph = Graph(operations, [Storage(4, "x"), Storage(4, "y"), Storage(4, "d")], [1, 2])
    verdict = verify(ops, graph, 100)
    assert f"rule {rule} " in str(verdict)
    assert fact in str(verdict)


def test_ops_of_graphs_are_no_ops_of_loops():
    assert "rule R11" in str(verify([Run(0)], remat.Loop(1), 100))


def test_schedules_of_graphs_have_a_text_form():
    ops = with_frees(unit_chain(3), plain_runs(unit_chain(3)))
    schedule = remat.Schedule(ops)
    assert str(schedule).splitlines()[0] == "run 0"
    assert remat.Schedule.parse(str(schedule)) == schedule
    trace = simulate(schedule, unit_chain(3))
    assert remat.Trace.from_json(trace.to_json()).peak == trace.peak


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ([Operation("a", 1.0, [0], [1]), Operation("b", 1.0, [0], [1])], "both make storage 1"),
        ([Operation("a", 1.0, [1], [0]), Operation("b", 1.0, [0], [1])], "is read before"),
        ([Operation("a", 1.0, [0], [7])], "uses storage 7 of 2"),
        ([Operation("a", 1.0, backward=True), Operation("b")], "forward one after backward ones"),
        (["a"], "must be an Operation, not str"),
    ],
)
def test_a_graph_that_makes_no_sense_says_why(operations, message):
    with pytest.raises(ProblemError, match=message):
        Graph(operations, [Storage(1), Storage(1)])


def test_a_large_graph_is_printed_in_part():
    assert "and 100 more" in str(Graph([Operation("f")] * 160, []))
    assert "blocks.0" in str(Graph([Operation("gelu", module="blocks.0", source="model.py:3")], []))


def test_planning_loops_and_chains_imports_no_solver():
    code = (
        "import sys, remat; remat.plan(remat.Loop(9), slots=3); remat.plan(remat.Chain([remat.Stage()] * 3), 99); "
        "print({'scipy', 'networkx', 'ortools'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"

"""What a block keeps: every option is the fastest for its size, by trying all choices of small blocks."""

from itertools import combinations

import pytest

from remat.errors import PlannerError
from remat.planners.graph import exact_choice
from remat.planners.graph.block_options import block_options
from remat.planners.graph.exact_choice import fastest_in, has_cp_sat
from remat.planners.graph.keep_choice import KeepQuestion
from remat.planners.graph.min_cut import hull
from remat.planners.graph.run_order import just_in_time, kept_at_turn, with_frees
from remat.problem import Graph, Operation, Storage
from remat.schedule import Run, simulate, verify
from tests.planners.random_graphs import random_graph

needs_ortools = pytest.mark.skipif(not has_cp_sat(), reason="OR-Tools is not installed")


def all_choices(question):
    """Every set of operations that may be run again, as a choice."""
    again = [i for i in question.operations if i in question.graph.run_again]
    return [question.choice(some) for k in range(len(again) + 1) for some in combinations(again, k)]


def front(choices):
    """The points (bytes, ticks) of which no other is at most as large in both."""
    best = []
    for size, ticks in sorted({(choice.bytes, choice.ticks) for choice in choices}):
        if not best or ticks < best[-1][1]:
            best.append((size, ticks))
    return best


def lower_hull(points):
    """The corners of the lower convex hull of a front."""
    corners = []
    for x, y in points:
        while len(corners) > 1 and (corners[-1][0] - corners[-2][0]) * (y - corners[-2][1]) <= (
            corners[-1][1] - corners[-2][1]
        ) * (x - corners[-2][0]):
            corners.pop()
        corners.append((x, y))
    return corners


def block():
    """A GPT block in units of its state, as a mixture of large cheap storages and small dear ones."""
    sizes = {"x": 16, "norm1": 16, "stat1": 1, "qkv": 48, "att": 16, "lse": 1, "mid": 16, "norm2": 16, "stat2": 1}
    sizes |= {"fc1": 64, "gelu": 64, "y": 16, "dy": 16, "d1": 64, "d2": 64, "d3": 16, "d4": 48, "dx": 16}
    number = {name: i for i, name in enumerate(sizes)}

    def op(name, seconds, reads, makes, backward=False):
        return Operation(name, seconds, [number[r] for r in reads], [number[m] for m in makes], backward=backward)

    forward = [
        op("norm1", 1.0, ["x"], ["norm1", "stat1"]),
        op("qkv", 9.0, ["norm1"], ["qkv"]),
        op("attention", 10.0, ["qkv"], ["att", "lse"]),
        op("out", 4.0, ["att", "x"], ["mid"]),
        op("norm2", 1.0, ["mid"], ["norm2", "stat2"]),
        op("fc1", 12.0, ["norm2"], ["fc1"]),
        op("gelu", 2.0, ["fc1"], ["gelu"]),
        op("fc2", 12.0, ["gelu", "mid"], ["y"]),
    ]
    backward = [
        op("cotangent", 0.0, [], ["dy"], True),
        op("fc2 <-", 24.0, ["dy", "gelu"], ["d1"], True),
        op("gelu <-", 3.0, ["d1", "fc1"], ["d2"], True),
        op("norm2, fc1 <-", 26.0, ["d2", "norm2", "mid", "stat2"], ["d3"], True),
        op("attention <-", 30.0, ["d3", "dy", "att", "lse", "qkv"], ["d4"], True),
        op("norm1, qkv <-", 20.0, ["d4", "norm1", "x", "stat1"], ["dx"], True),
    ]
    graph = Graph([*forward, *backward], [Storage(1024 * size, name) for name, size in sizes.items()])
    return Graph(graph.operations, graph.storages, [number["y"], number["dx"]]), number


@pytest.mark.parametrize("seed", range(60))
def test_the_hull_is_that_of_all_choices(seed):
    question = KeepQuestion.of(random_graph(seed, 7))
    expected = lower_hull(front(all_choices(question)))
    found = [(choice.bytes, choice.ticks) for choice in hull(question)]
    assert found == expected[::-1]


@needs_ortools
@pytest.mark.parametrize("seed", range(12))
def test_points_between_are_the_fastest_of_their_size(seed):
    question = KeepQuestion.of(random_graph(seed, 6))
    points = front(all_choices(question))
    for size in range(points[0][0], points[-1][0] + 1, 3):
        choice = fastest_in(question, size)
        assert (choice.bytes, choice.ticks) == max(point for point in points if point[0] <= size)
    assert fastest_in(question, points[0][0] - 1) is None


@pytest.mark.parametrize("seed", range(30))
def test_every_option_has_a_legal_schedule_with_its_bytes_and_seconds(seed):
    graph = random_graph(seed, 8)
    for option in block_options(graph, tiny=0):
        runs = just_in_time(graph, option.kept)
        trace = simulate(with_frees(graph, runs), graph)
        peak = max(option.record_peak, option.pullback_peak)
        assert verify(with_frees(graph, runs), graph, peak)
        assert trace.peak == peak
        assert trace.seconds == pytest.approx(graph.advance_time(0, graph.units) + option.seconds)
        assert {i for i in runs[graph.turn :] if i < graph.turn} == option.remade
        assert kept_at_turn(graph, runs) == option.kept
        assert option.tape_bytes == graph.bytes_of(option.kept | set(graph.outputs))


def test_options_of_a_transformer_block_go_from_everything_to_almost_nothing():
    graph, number = block()
    options = block_options(graph, exact=False)
    assert options[0].kept == set(graph.saved)
    assert options[0].seconds == 0
    # Large and cheap first: gelu, then the norms; attention last. Statistics are small, and kept to the end.
    assert number["gelu"] not in options[1].kept
    assert {number["att"], number["qkv"]} <= options[1].kept
    assert options[-1].kept <= {number[name] for name in ("stat1", "stat2", "lse")}
    sizes = [option.tape_bytes for option in options]
    assert sizes == sorted(sizes, reverse=True)
    assert all(option.found == "hull" for option in options)
    assert sizes[-1] >= graph.storages[number["y"]].bytes


def test_what_is_made_again_just_in_time_takes_no_more_than_all_of_it():
    graph, _ = block()
    everything, *others = block_options(graph, exact=False)
    assert all(option.pullback_peak <= everything.pullback_peak for option in others)
    assert others[-1].record_peak < everything.record_peak
    # The pullback of the block's last part needs all before it, which is then there for the others: nothing is gained.
    assert others[-1].pullback_peak == everything.pullback_peak


def test_a_storage_that_is_tiny_is_kept_where_it_is_of_use():
    norm = Operation("norm", 1.0, [0], [1, 2])
    back = Operation("norm <-", 1.0, [0, 2], [3], backward=True)
    graph = Graph([norm, back], [Storage(4096), Storage(4096), Storage(2, "statistics"), Storage(4096)], [1, 3])
    [option] = block_options(graph, tiny=2, exact=False)
    assert option.kept == {2}
    assert not option.remade
    assert len(block_options(graph, tiny=0, exact=False)) == 2


@needs_ortools
def test_points_between_make_the_curve_denser():
    graph, _ = block()
    rough, fine = block_options(graph, exact=False), block_options(graph, points=16)
    assert {option.kept for option in rough} < {option.kept for option in fine}
    assert {option.found for option in fine} == {"hull", "exact"}
    times = [option.seconds for option in fine]
    assert times == sorted(times)
    assert len(fine) <= 16


def test_without_ortools_there_is_the_hull_and_an_error_that_says_what_to_install(monkeypatch):
    def missing():
        raise PlannerError("exact plans of graphs need OR-Tools: pip install ortools")

    monkeypatch.setattr(exact_choice, "cp_model", missing)
    monkeypatch.setattr("remat.planners.graph.block_options.cp_model", missing)
    graph, _ = block()
    assert {option.found for option in block_options(graph)} == {"hull"}
    with pytest.raises(PlannerError, match="pip install ortools"):
        block_options(graph, exact=True)


def test_a_block_that_saves_nothing_has_one_option():
    graph = Graph([Operation("f", 1.0, [0], [1])], [Storage(4), Storage(4)], [1])
    [option] = block_options(graph)
    assert (option.kept, option.remade, option.tape_bytes) == (frozenset(), frozenset(), 4)


def test_what_cannot_be_run_again_is_kept():
    dropout = Operation("dropout", 1.0, [0], [1], repeatable=False)
    gelu = Operation("gelu", 1.0, [1], [2])
    back = Operation("<-", 1.0, [1, 2], [3], backward=True)
    graph = Graph([dropout, gelu, back], [Storage(8)] * 4, [3])
    assert [option.kept for option in block_options(graph, exact=False)] == [{1, 2}, {1}]
    assert all(Run(0) not in with_frees(graph, just_in_time(graph, o.kept))[1:] for o in block_options(graph))


def test_operations_around_a_write_in_place_are_not_run_again():
    a, b = Operation("a", 1.0, [0], [1]), Operation("b", 1.0, [1], [2])
    write = Operation("relu_", 1.0, [], [], [1])
    c = Operation("c", 1.0, [1], [3])
    back = Operation("<-", 1.0, [1, 2, 3], [4], backward=True)
    graph = Graph([a, b, write, c, back], [Storage(8)] * 5, [4])
    assert graph.run_again == {3}
    assert [option.kept for option in block_options(graph, exact=False)] == [{1, 2, 3}, {1, 2}]

"""What is kept inside of blocks stands in explain and on the page, by operation, module and line."""

import pytest

import remat
from remat.problem import Chain, Graph, Memory, Operation, Option, Stage, Storage
from remat.reporting.block_contents import block_contents
from remat.reporting.block_table import peak_sentences, plan_rows

UNIT = 1 << 20


def block(name):
    """A norm, a product and an activation, of which one or both of the larger results may be made again."""
    graph = Graph(
        [
            Operation("norm", 1e-4, [0], [1, 2], module="norm", source="model.py:7"),
            Operation("matmul", 8e-4, [1], [3], module="up", source="model.py:8"),
            Operation("gelu", 2e-4, [3], [4], source="model.py:8"),
            Operation("matmul", 8e-4, [4], [5], module="down", source="model.py:9"),
            Operation("pullback", 9e-4, [1, 2, 3, 4], backward=True),
        ],
        [
            Storage(UNIT),
            Storage(UNIT, "norm 0.0"),
            Storage(8, "norm 0.1"),
            Storage(4 * UNIT, "matmul 0.0"),
            Storage(4 * UNIT, "gelu 0.0"),
            Storage(UNIT, "matmul 1.0"),
        ],
        [5],
    )
    options = [
        Option(9 * UNIT, 1.0, 2.0, name="keep all"),
        Option(4 * UNIT, 1.0, 2.5, name="keep 5 MiB", remade=["norm 0.0", "gelu 0.0"]),
    ]
    return Stage(1.0, output=UNIT, options=options, name=name, graph=graph)


@pytest.fixture(scope="module")
def plan():
    chain = Chain([block("blocks.0"), block("blocks.1"), Stage(1.0, 2.0, output=1, name="head")], input=UNIT)
    least = remat.plan(chain, memory=10**9).peak
    return remat.plan(chain, memory=least - 9 * UNIT)


def test_rows_of_blocks(plan):
    [contents] = block_contents(plan)
    assert contents.blocks == "2 blocks, blocks.0 to blocks.1"
    assert contents.rows == (
        ("norm 0.0", "recomputed", "1 MiB", "100 µs", "model.py:7", "norm"),
        ("matmul 0.0", "kept", "4 MiB", "", "model.py:8", "up"),
        ("gelu 0.0", "recomputed", "4 MiB", "200 µs", "model.py:8", ""),
        ("1 small one", "kept", "8 B", "", "", ""),
    )


def test_explain_and_the_page(plan, tmp_path):
    short, text = remat.explain(plan), remat.explain(plan, contents=True)
    assert "kept in part" in short
    assert "model.py:8" not in short
    assert "contents=True" in short
    assert "model.py:8" in text
    plan.report(tmp_path / "plan.html")
    assert "model.py:8" in (tmp_path / "plan.html").read_text()
    remat.report(plan, tmp_path / "shared.html", anonymous=True)
    assert "model.py" not in (tmp_path / "shared.html").read_text()


def test_plans_with_graphs_are_saved(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    found = remat.Plan.load(tmp_path / "plan.json")
    assert found.problem == plan.problem
    assert found.problem.stages[0].options[1].remade == ("norm 0.0", "gelu 0.0")
    assert block_contents(found) == block_contents(plan)


def test_other_plans_have_none():
    assert block_contents(remat.plan(remat.Loop(10), slots=3)) == []
    assert block_contents(remat.plan(Chain([Stage(), Stage()]), memory=Memory.of(100))) == []


@pytest.mark.parametrize(("tape", "is_named"), [(10, False), (10_000, True)])
def test_what_runs_after_the_blocks_is_to_be_cut_only_if_it_holds_most_of_the_peak(tape, is_named):
    blocks = [Stage(output=8, tape=100, name=str(number)) for number in range(12)]
    chain = Chain([*blocks, Stage(output=1, tape=tape, name="after the blocks", repeatable=False)], input=8)
    first, *rest = peak_sentences(remat.plan(chain, memory=10**6))
    assert first == "The peak is in what runs after the blocks, while it is pulled back."
    assert [("loss in chunks" in each) for each in rest] == [True] * is_named


def test_a_kept_block_has_the_time_in_which_it_is_recorded():
    chain = remat.Chain([remat.Stage(9.0, output=8, options=[remat.Option(8, 1.0, 2.0)], name="block")] * 2, input=8)
    assert {row[4] for row in plan_rows(chain, remat.plan(chain, 10**6))} == {"1 s"}

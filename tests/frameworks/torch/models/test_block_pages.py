"""Pages of models: who holds the memory at the peak, by block and line, what was dropped, and what to do next."""

import re

import pytest

import remat
from remat.profiling.source_location import definition_of
from remat.reporting import text_report
from remat.reporting.block_memory import block_memory
from remat.reporting.block_picture import NARROW, block_picture
from remat.reporting.block_picture import WIDTH as WIDTH_OF_PICTURE
from remat.reporting.model_tables import model_headline, model_tips

torch = pytest.importorskip("torch")
nn = torch.nn

WIDTH, ROWS, BLOCKS = 16, 32, 6
TAPE = 4 * ROWS * (4 * WIDTH) * 2  # bytes of what the backward of a block needs: before and after the activation


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        return x + self.mlp(torch.sin(x)).exp()


class Net(nn.Module):
    def __init__(self, dropped):
        super().__init__()
        blocks = [remat.drop(Block()) if number in dropped else Block() for number in range(BLOCKS)]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def profile_of(net):
    with remat.profile() as run:
        net(torch.randn(ROWS, WIDTH)).sum().backward()
    return run


def test_blocks_go_by_their_paths_and_say_what_they_drop_and_keep():
    run = profile_of(Net(dropped={0, 1, 3, 4, 5}))
    memory = block_memory(run)
    assert [block.name for block in memory.blocks] == [f"blocks.{number}" for number in range(BLOCKS)]
    assert [block.dropped for block in memory.blocks] == [True, True, False, True, True, True]
    sizes = {block.size for block in memory.blocks}
    assert len(sizes) == 1  # a block needs the same, whether it is dropped or kept
    assert [block.recomputed for block in memory.blocks] == [1, 1, 0, 1, 1, 1]
    assert all(block.where.startswith("test_block_pages.py:") for block in memory.blocks)
    tensors = sorted(memory.blocks[0].tensors, key=lambda tensor: -tensor.bytes)
    assert (tensors[0].op, tensors[0].shape, tensors[0].dtype) == ("Tanh", (ROWS, 4 * WIDTH), "float32")
    assert tensors[0].module.startswith("blocks.0.mlp")
    assert tensors[0].line.startswith("test_block_pages.py:")


def test_at_the_peak_are_one_recomputed_block_the_kept_one_and_all_inputs():
    memory = block_memory(profile_of(Net(dropped={0, 1, 3, 4, 5})))
    live = {(each.block, each.what) for each in memory.at(memory.peak_time)}
    assert {("blocks.5", "recomputed"), ("blocks.2", "kept"), ("blocks.0", "inputs")} <= live
    assert sum(what == "recomputed" for _, what in live) == 1
    size = memory.blocks[0].size
    assert memory.peak == 2 * size + 5 * 4 * ROWS * WIDTH
    assert any(tip.startswith("To use less memory, drop blocks.2 next") for tip in memory.tips())
    assert any(tip.startswith("To be faster, keep blocks.") for tip in memory.tips())


def test_the_page_the_text_and_the_picture_of_a_model(tmp_path):
    run = profile_of(Net(dropped={1, 2}))
    page = run.report(tmp_path / "run.html").read_text()
    for words in ("Who holds it at the peak", "blocks.1", "[32, 64]", "float32", "Blocks hold", "To use less memory"):
        assert words in page
        assert words in " ".join(text_report(run).split())
    assert "blocks.1, recomputed" in run.report(tmp_path / "run.svg").read_text()
    hidden = remat.report(run, tmp_path / "run.html", anonymous=True).read_text()
    assert "blocks.1" not in hidden
    assert "test_block_pages" not in hidden
    loaded = remat.Profile.from_json(run.to_json())
    assert block_memory(loaded) == block_memory(run)


def test_a_tensor_that_dominates_is_named():
    def block(x):
        return torch.sin(x.repeat(50, 1)).mean()

    with remat.profile() as run:
        remat.checkpoint(block, torch.randn(ROWS, WIDTH, requires_grad=True)).backward()
    assert any(
        "One tensor is 100% of what" in tip and "test_block_pages.py:" in tip for tip in block_memory(run).tips()
    )


def test_a_model_under_a_budget_has_the_page_too(tmp_path):
    model, sample = Net(dropped=()), torch.randn(ROWS, WIDTH)
    try:
        remat.auto_checkpoint(Net(dropped=()), memory=1, sample=sample)
    except remat.InfeasibleError as error:
        least = error.minimum
    remat.auto_checkpoint(model, memory=10**9, sample=sample)
    run = profile_of(model)
    assert str(run) == "no remat calls were made; what blocks keep for their backward is in its report"
    assert definition_of(model.blocks[0]) == definition_of(Block.forward)
    remat.auto_checkpoint(model, memory=int(1.05 * least), sample=sample)
    run = profile_of(model)
    memory = block_memory(run)
    assert {block.name for block in memory.blocks} == {f"blocks.{number}" for number in range(BLOCKS)}
    assert any(block.dropped and block.recomputed for block in memory.blocks)
    assert "Who holds the" in run.report(tmp_path / "run.txt").read_text()


def test_the_page_of_a_model_under_a_budget_has_its_peak_its_plan_and_what_other_budgets_do(tmp_path):
    model, sample = Net(dropped=()), torch.randn(ROWS, WIDTH)
    with remat.profile() as run:
        model(sample).sum().backward()
    [whole] = {block.size for block in block_memory(run).blocks}
    assert not run.models
    budget = int(4.5 * whole)
    remat.auto_checkpoint(model, memory=budget, sample=sample)
    run = profile_of(model)
    memory, outputs, peak = model.remat_budget
    [noted] = run.models
    assert (noted.plan, noted.memory, noted.outputs, noted.peak) == (model.remat_plan, memory, outputs, peak)
    headline = model_headline(noted, block_memory(run))
    assert (headline.total, headline.limit) == (peak, budget)
    assert sum(size for _, size in headline.parts) == peak
    text = " ".join(run.report(tmp_path / "run.txt").read_text().split())
    assert f"{headline}" in text
    assert "test_block_pages.py:" in next(model_tips(noted, block_memory(run)))
    assert "To use less memory, give auto_checkpoint less: memory=" in text
    assert "The plan of Net: what it does with each block" in text
    assert "what is kept and what is recomputed" in text
    assert "drop blocks." not in text, "the plan decides, and not the user"
    loaded = remat.Profile.from_json(run.to_json())
    assert loaded.models == run.models
    hidden = remat.report(run, tmp_path / "hidden.html", anonymous=True).read_text()
    assert "blocks.1" not in hidden
    assert "test_block_pages" not in hidden


def test_a_budget_that_could_not_be_smaller_says_so():
    model, sample = Net(dropped=()), torch.randn(ROWS, WIDTH)
    with pytest.raises(remat.InfeasibleError) as error:
        remat.auto_checkpoint(model, memory=1, sample=sample)
    remat.auto_checkpoint(model, memory=int(error.value.minimum), sample=sample)
    run = profile_of(model)
    tips = [*model_tips(run.models[0], block_memory(run))]
    assert any(tip.startswith("It cannot use much less memory") for tip in tips)
    assert any(tip.startswith("To be faster, give it more: memory=") for tip in tips)


def test_a_model_that_is_planned_as_one_graph_has_a_page(tmp_path):
    pytest.importorskip("networkx")

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            return x + self.down(torch.tanh(self.up(torch.sin(x))).exp())

    model = remat.auto_checkpoint(Plain(), memory="1 MiB", sample=torch.randn(ROWS, WIDTH), blocks="whole")
    text = profile_of(model).report(tmp_path / "run.txt").read_text()
    assert "remat: a profile of Plain under a budget" in text
    assert "of 1024 KiB =" in text or "of 1 MiB =" in text
    assert "The peak is while operation" in text
    assert "test_block_pages.py:" in text


def test_blocks_inside_of_a_loop_are_in_its_tapes_and_have_no_page_of_their_own(tmp_path):
    """The loop has the page; what the allocator says is without outputs and the cotangents that the caller gives."""
    net = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
    for returns in (True, False):
        with remat.profile(memory=True) as run:
            step = lambda h, _: (h + 0.1 * net(h), h if returns else None)  # noqa: B023, E731
            last, ys = remat.scan(step, torch.ones(ROWS, WIDTH), length=60, memory="200 KiB")
            (last.sum() if ys is None else ys.square().sum()).backward()
        assert not block_memory(run).blocks
        assert run.calls[0].trace.totals.allocated <= 200 * 1024
        assert "Blocks hold" not in run.report(tmp_path / f"{returns}.txt").read_text()


def test_kept_blocks_have_the_lines_of_their_ops_also_in_later_steps():
    net = Net(dropped={0, 1, 3, 4, 5})
    with remat.profile() as run:
        for _ in range(2):
            net(torch.randn(ROWS, WIDTH)).sum().backward()
    line = Block.forward.__code__.co_firstlineno + 1
    kept = [each.contents for each in run.kept if each.contents.name == "blocks.2"]
    assert len(kept) == 2
    for contents in kept:
        assert {tensor.line for tensor in contents.tensors} == {f"test_block_pages.py:{line}"}
        assert {tensor.op for tensor in contents.tensors} == {"Sin", "Tanh", "Exp"}


def test_a_block_that_keeps_a_part_shows_what_it_keeps(tmp_path):
    """The bytes are those of the plan, and the tensors have their lines."""
    model, sample = Net(dropped=()), torch.randn(ROWS, WIDTH)
    with remat.profile() as run:
        model(sample).sum().backward()
    [whole] = {block.size for block in block_memory(run).blocks}
    remat.auto_checkpoint(model, memory=str(int(4.5 * whole)), sample=sample)
    plan = model.remat_plan
    run = profile_of(model)
    kept = {each.contents.name: each.contents for each in run.kept}
    parts = {
        stage.name: option.tape
        for op in plan.schedule
        if isinstance(op, remat.ops.Record)
        for stage, option in [(plan.problem.stages[op.start], plan.problem.stages[op.start].options[op.option])]
        if option.remade and stage.name in kept
    }
    assert parts, "the plan keeps parts of blocks, or this shows nothing"
    assert {name: kept[name].dropped for name in parts} == parts
    assert all(tensor.line.startswith("test_block_pages.py") for name in parts for tensor in kept[name].tensors)


def test_a_plain_sequence_shows_its_blocks_and_not_what_is_inside_of_them():
    run = profile_of(nn.Sequential(Block(), Block()))
    assert [block.name for block in block_memory(run).blocks] == ["Sequential.0", "Sequential.1"]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # what the compiler says of hooks, and of its own fake tensors
def test_compiled_blocks_compile_in_a_profile_as_without():
    """The compiler traces hooks of modules, too: those of a profile let it pass."""
    net = nn.Sequential(*(torch.compile(Block(), backend="eager", fullgraph=True) for _ in range(2)))
    run = profile_of(net)
    assert [each.contents.name.rpartition(".")[2] for each in run.kept] == ["0", "1"]
    assert all(tensor.line.startswith("test_block_pages.py") for tensor in run.kept[0].contents.tensors)


def test_nothing_of_a_program_is_watched_after_the_profile():
    from torch.nn.modules import module

    before = len(module._global_forward_hooks)
    profile_of(Net(dropped={1}))
    assert len(module._global_forward_hooks) == before


def test_the_words_of_the_picture_fit_on_a_phone():
    """At seven pixels a letter; a line that is too long is broken in two."""
    memory = block_memory(profile_of(Net(dropped={0, 1, 3, 4, 5})))
    for width in (WIDTH_OF_PICTURE, NARROW):
        words = re.findall(r'font-weight="bold"[^>]*>([^<]*)<', block_picture(memory, width))
        assert ", ".join(words).startswith("blocks hold ")
        assert "blocks.5 (recomputed)" in words[-1]
        assert all(7 * len(line) <= width for line in words)


def test_where_all_blocks_are_dropped_the_page_says_that_their_parts_could_be():
    def part():
        return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))

    net = nn.Sequential(*(remat.drop(nn.Sequential(part(), part())) for _ in range(3)))
    [tip] = [tip for tip in block_memory(profile_of(net)).tips() if tip.startswith("To use less memory")]
    assert "drop the parts of Sequential.2 too: of its " in tip
    assert "(Sequential.2.1)" in tip or "(Sequential.2.0)" in tip


def test_kept_blocks_are_released_when_the_backward_has_passed_them():
    run = profile_of(Net(dropped=()))
    held = {each.block: each for each in block_memory(run).held}
    assert [each.what for each in held.values()] == ["kept"] * BLOCKS
    stops = [held[f"blocks.{number}"].stop for number in range(BLOCKS)]
    assert stops == sorted(stops, reverse=True)
    assert len(set(stops)) == BLOCKS
    loaded = remat.Profile.from_json(run.to_json())
    assert block_memory(loaded) == block_memory(run)


def test_blocks_inside_transforms_run_as_they_do_without_a_profile():
    net = nn.Sequential(Block(), Block())
    params, x = dict(net.named_parameters()), torch.randn(ROWS, WIDTH)
    gradients = torch.func.grad(lambda params: torch.func.functional_call(net, params, (x,)).sum())
    plain = gradients(params)
    with remat.profile() as run:
        profiled = gradients(params)
    assert all(torch.equal(plain[name], profiled[name]) for name in plain)
    assert not run.kept

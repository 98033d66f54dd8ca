"""auto_checkpoint that keeps a part of what blocks need: exact, inside the budget, and predicted to the percent."""

import copy

import pytest
import torch
from benchmarks.models import MODELS
from torch import nn

import remat
from remat.frameworks.torch.lineage.block_trace import trace_block
from remat.frameworks.torch.lineage.lineage_cost import LineageCost
from remat.frameworks.torch.models import block_stage
from remat.frameworks.torch.models.block_stage import with_options
from remat.frameworks.torch.models.cut_blocks import BlockCall
from remat.frameworks.torch.models.measure_chain import StageMeasurement
from remat.frameworks.torch.models.measure_model import MeasuredModel
from tests.frameworks.torch.models.lineage_blocks import Attention, block_of
from tests.frameworks.torch.models.planned_models import assert_equal_runs, backward, net, peak, x

SHARES = (0.72, 0.5, 0.3)


@pytest.fixture(autouse=True)
def _no_costs_of_python(monkeypatch):
    """They are most of what blocks as small as these take, and differ from run to run."""
    monkeypatch.setattr(block_stage, "lineage_cost", lambda: LineageCost(0.0, 0.0))
    monkeypatch.setattr(StageMeasurement, "seconds_as_segment", lambda self, segment: 0.01)
    monkeypatch.setattr(MeasuredModel, "alternatives", lambda self, memory: ())


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def remade(model):
    return model._remat_forward.last.remade


def test_a_decoder_of_twelve_blocks():
    """Peaks are measured by the storages that a step makes; logits, which the caller holds, count beside the plan."""
    case = MODELS["gpt"]("tiny", blocks=12, width=32, words=24)
    (inputs,), plain = case.sample, case.model
    most = peak(copy.deepcopy(plain), lambda model: model(inputs), case.loss)
    case.step(plain)
    expected, peaks = [parameter.grad for parameter in plain.parameters()], [most]
    for share in SHARES:
        budget = int(share * most)
        model = remat.auto_checkpoint(copy.deepcopy(plain), memory=budget, sample=case.sample, loss=case.loss)
        assert any(remade(model))
        model.zero_grad()
        case.step(model)
        assert all(map(torch.equal, [parameter.grad for parameter in model.parameters()], expected))
        found = peak(model, lambda model: model(inputs), case.loss)
        outputs = inputs.numel() * case.model.head.out_features * 4
        assert found <= budget
        assert found <= peaks[-1]
        assert found - outputs <= 1.01 * model.remat_plan.peak
        assert model.remat_plan.peak <= 1.01 * found
        peaks.append(found)


@pytest.mark.parametrize("options", [{"dropout": 0.2}, {"norm": True, "in_place": True}, {}])
def test_dropout_statistics_and_activations_in_place(options):
    plain = net(**options)
    least = remat.auto_checkpoint(copy.deepcopy(plain), memory=10**9, sample=(x,)).remat_plan.peak
    ours = remat.auto_checkpoint(copy.deepcopy(plain), memory=int(0.75 * least), sample=(x,))
    assert any(remade(ours))
    assert_equal_runs(lambda model: backward(model, x), plain, ours)
    assert_equal_runs(lambda model: [backward(model, x) for _ in range(2)] and None, plain, ours)


def test_whole_blocks_if_they_are_asked_for():
    ours = remat.auto_checkpoint(net(), memory=30_000, sample=(x,), inside_blocks=False)
    assert not any(remade(ours))
    assert all(len(stage.options) == 1 and stage.graph is None for stage in ours.remat_plan.problem.stages)


def test_a_saved_plan_has_the_choices():
    plain = net()
    ours = remat.auto_checkpoint(copy.deepcopy(plain), memory=40_000, sample=(x,))
    assert any(remade(ours))
    plan = remat.Plan.from_json(ours.remat_plan.to_json())
    again = remat.auto_checkpoint(copy.deepcopy(plain), plan=plan)
    assert remade(again) == remade(ours)
    assert_equal_runs(lambda model: backward(model, x), plain, ours, again)
    lines = [line for line in remat.explain(ours).splitlines() if not line.startswith("memory=")]  # a plan has none
    assert remat.explain(again).splitlines() == lines
    assert "kept in part" in remat.explain(ours)


def test_a_plan_for_autocast():
    def run(model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x.float())
        out.float().pow(2).sum().backward()

    plain = net(dtype=torch.float32)
    all_kept = remat.auto_checkpoint(copy.deepcopy(plain), memory=10**9)
    run(all_kept)
    ours = remat.auto_checkpoint(copy.deepcopy(plain), memory=int(0.7 * all_kept.remat_plan.peak))
    assert_equal_runs(run, plain, ours)
    assert any(remade(ours))


def test_the_graph_of_a_block():
    block, y = block_of("attention")
    names = {id(module): name for name, module in block.named_modules()}
    graph = trace_block(block, y, names, None)
    forward = graph.operations[: graph.turn]
    assert [each.name for each in forward if each.module == "up"] == ["addmm"]
    assert all(each.source.startswith("lineage_blocks.py:") for each in forward)
    sizes = {graph.storages[storage].name: graph.storages[storage].bytes for storage in graph.saved}
    assert sizes["addmm 0.0"] == 3 * y.nbytes
    assert sizes["gelu 0.0"] == sizes["addmm 2.0"] == 4 * y.nbytes
    assert [graph.storages[storage].name for storage in graph.outputs] == ["add 1.0"]
    assert len(graph.run_again) == graph.turn  # all of them
    dropout, y = block_of("dropout")
    graph = trace_block(dropout, y, {}, None)
    once = {graph.operations[i].name for i in range(graph.turn) if i not in graph.run_again}
    assert once == {"empty_like", "bernoulli_", "div_"}


def options_of(block, y):
    call = BlockCall(0, block.forward, (y,), {})
    stage = StageMeasurement(call.of_arguments(), call.arguments).stage("block")
    return with_options(stage, call.arguments, call, block).options


def test_options_take_less_and_less():
    block, y = Attention(width=64), torch.randn(4, 32, 64, requires_grad=True)
    options = options_of(block, y)
    tapes = [option.tape for option in options]
    assert tapes == sorted(tapes, reverse=True)
    assert 4 <= len(options) <= 9
    assert options[0].tape > 14 * y.nbytes
    assert options[-1].tape < 0.1 * y.nbytes
    assert min(option.pullback_peak for option in options) < 0.9 * options[0].pullback_peak
    assert all(option.backward >= options[0].backward for option in options)


class Mapped(nn.Module):
    """A block that differentiates by torch.func, which refuses hooks on saved tensors."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, y):
        h = self.linear(y)
        return y + torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(h.detach()) * h.sin().exp()


@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_blocks_that_are_opaque_have_one_option():
    assert len(options_of(Mapped(), torch.randn(3, 8, requires_grad=True))) == 1
    compiled = Attention()
    compiled.up = torch.compile(compiled.up, backend="eager")
    assert len(options_of(compiled, torch.randn(2, 6, 16, requires_grad=True))) == 1

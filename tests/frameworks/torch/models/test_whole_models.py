"""Models that are planned as one graph: long skips, no lists of blocks; the backward follows the plan of the graph."""

import copy
import gc
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import remat
from remat.errors import InfeasibleError, ProblemError
from remat.frameworks.torch.models.model_trial import Trial
from remat.frameworks.torch.models.planned_lineage import run_by_script, script_of
from remat.frameworks.torch.models.step_trace import trace_step
from remat.frameworks.torch.models.whole_model import MeasuredStep
from remat.planners.claim import Claim
from remat.planners.graph.optimal_graph import OptimalGraph
from remat.problem import Graph, Memory

sys.path.insert(0, str(Path(__file__).parents[4]))
from benchmarks.models import MODELS

CPU = [torch.device("cpu")]


class Skips(nn.Module):
    """An encoder and a decoder with skips, written out: norms, activations in place, dropout, no lists."""

    def __init__(self, width=4, dropout=0.0):
        super().__init__()
        self.down1, self.norm1 = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.down2, self.norm2 = nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width)
        self.up1, self.up2 = nn.Conv2d(3 * width, width, 3, padding=1), nn.Conv2d(width + 3, width, 3, padding=1)
        self.head, self.dropout = nn.Conv2d(width, 1, 1), dropout

    def forward(self, x):
        a = F.relu(self.norm1(self.down1(x)), inplace=True)
        b = F.relu(self.norm2(self.down2(F.max_pool2d(a, 2))), inplace=True)
        b = F.dropout(b, self.dropout, self.training).sin()
        c = self.up1(torch.cat([a, F.interpolate(b, scale_factor=2)], 1)).tanh()
        return self.head(F.gelu(self.up2(torch.cat([x, c.exp()], 1))))


class Dense(nn.Module):
    """Each layer reads what all layers before it made, as those of a DenseNet do."""

    def __init__(self, layers=3, width=4):
        super().__init__()
        self.norms = nn.ModuleDict({str(i): nn.BatchNorm2d(width * (i + 1)) for i in range(layers)})
        self.convs = nn.ModuleDict(
            {str(i): nn.Conv2d(width * (i + 1), width, 3, padding=1, bias=False) for i in range(layers)}
        )

    def forward(self, x):
        made = [x]
        for name, conv in self.convs.items():
            made.append(conv(F.relu(self.norms[name](torch.cat(made, 1)), inplace=True)))
        return torch.cat(made, 1).mean((2, 3))


def image(channels=3, side=8):
    return torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(1))


SCALARS = 64  # bytes of numbers that kernels make of Python's

CASES = {"skips": (Skips, 3), "dropout": (lambda: Skips(dropout=0.3), 3), "dense": (Dense, 4)}


def square(out):
    return out.pow(2).sum()


class Run:
    """A model, its copy under a plan, and how much of the plain peak the plan has."""

    def __init__(self, name, share):
        make, channels = CASES[name]
        torch.manual_seed(0)
        self.plain, self.x = make(), image(channels)
        self.most = Trial(self.plain, CPU).run(lambda: self.plain(self.x), square).peak
        self.budget = int(share * self.most)
        self.ours = remat.auto_checkpoint(
            copy.deepcopy(self.plain), memory=self.budget, sample=self.x, loss=square, blocks="whole"
        )

    def both(self, run):
        """What a function of a model returns and leaves, plainly and under the plan."""
        found = []
        for model in (copy.deepcopy(self.plain), copy.deepcopy(self.ours)):
            torch.manual_seed(3)
            out = run(model)
            found.append([out, *(p.grad for p in model.parameters()), *model.buffers(), torch.get_rng_state()])
        return found


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return Run(request.param, 0.75)


def assert_equal(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


def step(x):
    def run(model):
        out = model(x)
        square(out).backward()
        return out.detach()

    return run


def test_a_step_has_plain_gradients_and_statistics_inside_the_budget(case):
    plan = case.ours.remat_plan
    assert isinstance(plan.problem, Graph)
    assert script_of(plan).dropped
    assert_equal(*case.both(step(case.x)))
    peak = Trial(case.ours, CPU).run(lambda: case.ours(case.x), square).peak
    assert plan.peak <= peak + SCALARS
    assert peak <= min(case.budget, plan.peak + SCALARS)


def test_several_backwards_through_one_graph(case):
    def run(model):
        out = model(case.x)
        weights = [p for p in model.parameters() if p.requires_grad]
        first = torch.autograd.grad(out.sum(), weights, retain_graph=True)
        part = torch.autograd.grad(out.pow(3).sum(), weights[:1], retain_graph=True)
        square(out).backward()
        return torch.cat([each.flatten() for each in (*first, *part)])

    assert_equal(*case.both(run))


def test_second_order(case):
    def run(model):
        weights = list(model.parameters())
        grads = torch.autograd.grad(model(case.x).pow(3).sum(), weights, create_graph=True)
        sum(grad.pow(2).sum() for grad in grads).backward()
        return grads[0].detach()

    assert_equal(*case.both(run))


def test_a_graph_is_freed(case):
    model = copy.deepcopy(case.ours)
    out = model(case.x)
    square(out).backward()
    step(case.x)(model)
    model(case.x)  # nobody pulls it back
    del out
    gc.collect()
    before = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
    model(case.x)
    gc.collect()
    assert sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects()) == before


def test_a_forward_that_takes_another_way_has_its_gradients(case):
    other = image(case.x.shape[1], side=12)
    plan = remat.Plan.from_json(case.ours.remat_plan.to_json())
    case.ours = remat.auto_checkpoint(copy.deepcopy(case.plain), plan=plan)
    assert_equal(*case.both(step(other)))
    assert_equal(*case.both(step(case.x)))

    def frozen(model):
        next(model.parameters()).requires_grad_(False)  # its saved tensors have other numbers
        return step(case.x)(model)

    assert_equal(*case.both(frozen))


def test_hooks_autocast_and_evaluation():
    case = Run("skips", 0.75)

    def hooked(model):
        calls = []
        model.norm1.register_forward_hook(lambda *_: calls.append(1))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(case.x)
        square(out.float()).backward()
        with torch.no_grad():
            model.eval()(case.x)
        return torch.tensor(len(calls))

    found, expected = case.both(hooked)
    assert_equal(found, expected)


def test_what_is_written_in_place_is_made_again():
    case = Run("skips", 0.72)
    names = [name for name in script_of(case.ours.remat_plan).dropped if name[0] == "native_batch_norm"]
    assert names
    assert_equal(*case.both(step(case.x)))

    def output_written(model):
        out = model(case.x)
        square(out.mul_(2)).backward()
        return out.detach()

    assert_equal(*case.both(output_written))


class Inner(nn.Module):
    """A forward that differentiates inside: it cannot be run with nothing saved."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        h = self.linear(x).tanh()
        (slope,) = torch.autograd.grad(h.sin().sum(), h, create_graph=True)
        return (h.exp() * slope).tanh()


def test_a_forward_that_differentiates_inside():
    torch.manual_seed(0)
    plain, x = Inner(), torch.randn(16, 8)
    ours = remat.auto_checkpoint(copy.deepcopy(plain), memory="1 MiB", sample=x, loss=square, blocks="whole")
    for model in (plain, ours):
        square(model(x)).backward()
    assert_equal([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()])


def test_what_local_variables_hold_counts():
    class Holding(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            a = self.linear(x).relu()
            b = a.sin()  # which lives until the end
            return b.sum() + self.linear(x.exp()).tanh().sum()

    model, x = Holding(), torch.randn(64, 64)
    graph = trace_step(model, lambda: model(x), square, CPU)
    held = [each for each in graph.operations if each.name == "held"]
    assert any(graph.bytes_of(each.inputs) >= 2 * x.nbytes for each in held)
    assert graph.plain_peak == pytest.approx(Trial(model, CPU).run(lambda: model(x), square).peak, rel=0.01)


class Residual(nn.Module):
    """Gradients meet at each sum: the engine adds them in place."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({str(i): nn.Linear(16, 16) for i in range(6)})

    def forward(self, x):
        skips = []
        for name, layer in self.layers.items():
            x = F.gelu(layer(x)) + (skips.pop() if int(name) > 2 else 0.0)
            skips.append(x)
        return x


class Gated(nn.Module):
    """Two gradients that are held elsewhere when they meet."""

    def __init__(self):
        super().__init__()
        self.gate, self.value = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        first = x
        for _ in range(3):
            gate = torch.sigmoid(self.gate(x))
            x = gate * torch.tanh(self.value(x)) + (1 - gate) * x
        return x * first.exp()


class TwoOutputs(nn.Module):
    """One output is not differentiated: what its graph has saved is held until it is dropped."""

    def __init__(self):
        super().__init__()
        self.first, self.side = nn.Linear(16, 16), nn.Linear(16, 16)
        self.layers = nn.ModuleDict({str(i): nn.Linear(16, 16) for i in range(4)})

    def forward(self, x):
        h = self.first(x).tanh()
        skip, side = h, self.side(h).tanh().exp()
        for layer in self.layers.values():
            h = F.gelu(layer(h))
        return torch.cat([h + skip, h * skip], -1), side


class Sliced(nn.Module):
    """The backward begins with nodes that unpack nothing and make large gradients."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({str(i): nn.Linear(16, 16) for i in range(4)})

    def forward(self, x):
        made = []
        for layer in self.layers.values():
            x = F.gelu(F.gelu(layer(x)))
            made.append(x)
        return torch.cat(made, -1)[..., ::2]


class Unused(nn.Module):
    """A result with a graph that nobody uses: what the graph has saved is held as long as the result."""

    def __init__(self):
        super().__init__()
        self.wide, self.layers = nn.Linear(48, 16), nn.ModuleDict({str(i): nn.Linear(16, 16) for i in range(4)})

    def forward(self, x):
        for layer in self.layers.values():
            x = F.gelu(layer(x))
            _ = self.wide(torch.cat([x.sin(), x.cos(), x.tanh()], -1)).exp()
        return x


EXACT = {"residual": Residual, "gated": Gated, "two outputs": TwoOutputs, "sliced": Sliced, "unused": Unused}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("share", [1.0, 0.85, 0.7])
def test_the_peak_is_the_predicted_one(name, share):
    torch.manual_seed(0)
    model, x = EXACT[name](), torch.randn(256, 16)

    def loss(out):
        return square(out[0] if isinstance(out, tuple) else out)

    graph = trace_step(model, lambda: model(x), loss, CPU)
    plain = Trial(model, CPU).run(lambda: model(x), loss).peak
    assert abs(graph.plain_peak - plain) <= SCALARS
    plan = OptimalGraph().plan(graph, Memory.of(int(share * plain)))
    script = script_of(plan)
    assert script.dropped or share == 1.0
    peak = Trial(model, CPU).run(lambda: run_by_script(lambda: model(x), script), loss).peak
    assert abs(peak - plan.peak) <= SCALARS


def test_parts_of_a_graph_are_pulled_back_one_after_the_other():
    """Nodes that did not run keep what they may ask for, though the plan made it for the last time."""
    torch.manual_seed(0)
    first, weights = nn.Linear(4, 4), [torch.randn(4, requires_grad=True) for _ in range(3)]
    x = torch.randn(3, 4)

    def forward():
        h = first(x).tanh().exp()
        return h.detach() * weights[0], h.detach() * weights[1], h * weights[2]

    def loss(out):
        return sum(square(each) for each in out)

    graph = trace_step(first, forward, loss, CPU)
    exp = next(i for i, each in enumerate(graph.operations) if each.name == "exp")
    (made,) = graph.operations[exp].outputs
    users = [user for user in graph.users[made] if user >= graph.turn]
    assert len(users) >= 3
    plan = OptimalGraph().plan_of(
        [*range(users[0]), exp, *range(users[0], graph.units)], graph, Memory.of(10**9), Claim(1.0)
    )
    found = []
    for run in (forward, lambda: run_by_script(forward, script_of(plan))):
        for tensor in (*weights, *first.parameters()):
            tensor.grad = None
        for out in run():
            square(out).backward()
        found.append([tensor.grad for tensor in (*weights, *first.parameters())])
    assert_equal(*found)


def test_explain_and_the_page_have_operators_by_module_and_line(case, tmp_path):
    text = remat.explain(case.ours, contents=True)
    assert "as one graph" in text
    assert "recomputed" in text
    assert "test_whole_models.py:" in text
    case.ours.remat_plan.report(tmp_path / "page.html")
    assert "test_whole_models.py:" in (tmp_path / "page.html").read_text()


def test_first_copies_are_held_until_the_plan_lets_them_go():
    """A plan that uses a first copy in the backward, drops it, and makes it again: no planner is needed for that."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(3, 4)
    graph = trace_step(model, lambda: model(x), square, CPU)
    tanh = [i for i, each in enumerate(graph.operations[: graph.turn]) if each.name == "tanh"]
    made = graph.operations[tanh[0]].outputs[0]
    users = [user for user in graph.users[made] if user >= graph.turn]
    assert len(users) == 2
    runs = [*range(users[-1]), tanh[0], *range(users[-1], graph.units)]
    plan = OptimalGraph().plan_of(runs, graph, Memory.of(10**9), Claim(1.0))
    assert plan.verify()
    script = script_of(plan)
    assert script.held
    square(model(x)).backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    square(run_by_script(lambda: model(x), script)).backward()
    assert_equal([p.grad for p in model.parameters()], expected)


@pytest.mark.full
@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.45])
def test_a_unet_below_what_its_blocks_reach(share):
    case = MODELS["unet"]("small")
    plain = case.model
    most = Trial(plain, CPU).run(lambda: plain(*case.sample), case.loss).peak
    case.step(plain)
    budget = int(share * most)
    ours, blocks = copy.deepcopy(plain), None if share == 0.5 else "whole"
    remat.auto_checkpoint(ours, memory=budget, sample=case.sample, loss=case.loss, blocks=blocks)
    ours.zero_grad()
    case.step(ours)
    assert isinstance(ours.remat_plan.problem, Graph)
    assert_equal([p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()])
    peak = Trial(ours, CPU).run(lambda: ours(*case.sample), case.loss).peak
    assert peak <= budget
    assert abs(peak - ours.remat_plan.peak) <= SCALARS


def test_too_little_and_what_cannot_be_whole():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    with pytest.raises(InfeasibleError, match="as one graph it needs") as error:
        remat.auto_checkpoint(model, memory=64, sample=x, blocks="whole")
    remat.auto_checkpoint(model, memory=error.value.minimum, sample=x, blocks="whole")
    with pytest.raises(ProblemError, match='blocks="whole"'):
        remat.auto_checkpoint(model, memory=10**6, sample=x, blocks="whole", compile=True)
    with pytest.raises(ProblemError, match="has a gradient"):
        remat.auto_checkpoint(model.requires_grad_(False), memory=10**6, sample=x, blocks="whole")


def test_too_little_memory_for_a_row_of_blocks_names_the_whole_model_as_another_way():
    with pytest.raises(remat.InfeasibleError) as info:
        remat.auto_checkpoint(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), memory=10, sample=torch.ones(4, 8))
    assert any('blocks="whole"' in note for note in info.value.__notes__)


class Halves(nn.Module):
    """Two lists of blocks with code between them."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (
            nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout)) for _ in range(6))
            for _ in range(2)
        )

    def forward(self, x):
        for block in self.first:
            x = block(x)
        x = x.sin()
        for block in self.second:
            x = block(x)
        return x


def searches(monkeypatch, dropout, memory):
    """The searches for plans of the whole model, none of which finds one."""
    tried = []

    def plan(_, memory):
        tried.append(memory)
        raise InfeasibleError("too little", 10**9, "bytes")

    monkeypatch.setattr(MeasuredStep, "plan", plan)
    with pytest.raises(InfeasibleError) as error:
        remat.auto_checkpoint(Halves(dropout), memory=memory, sample=torch.ones(64, 8), blocks=["first", "second"])
    return tried, int(error.value.minimum)


def test_a_whole_model_that_needs_more_than_its_blocks_is_not_searched(monkeypatch):
    """Masks of dropout cannot be recomputed as single operators, so its blocks need less."""
    assert searches(monkeypatch, 0.5, 1)[0] == []


def test_a_whole_model_is_searched_once_if_its_blocks_need_less(monkeypatch):
    least = searches(monkeypatch, 0.0, 1)[1]
    assert searches(monkeypatch, 0.0, least - 1)[0] == [least - 1]

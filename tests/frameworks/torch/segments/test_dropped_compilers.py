"""Dropped modules and segments in torch.compile, torch.export, torch.fx and TorchScript."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import remat
from remat.frameworks.torch.segments.checkpointed_module import CheckpointedModule
from tests.frameworks.torch.segments.dropped_modules import (
    INPUT,
    Block,
    assert_same_gradients,
    gradients,
    is_recomputed,
    linear,
    perceptron,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # by the compilers


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run_graph(graph, inputs):
    """A back end that runs the graph as it is."""
    return graph.forward


def aot(graph, inputs):
    """A back end that calls AOTAutograd, with a partitioner that does not know torch's segments."""
    from functorch.compile import make_boxed_func
    from torch._functorch.aot_autograd import aot_module_simplified

    return aot_module_simplified(graph, inputs, fw_compiler=lambda graph, _: make_boxed_func(graph.forward))


def compiled_call(how, module, **options):
    if how == "drop":
        return torch.compile(remat.drop(module), **options)
    return torch.compile(lambda x: remat.checkpoint(module, x), **options)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", run_graph, aot])
@pytest.mark.parametrize("how", ["drop", "checkpoint"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_statistics_and_random_numbers_of_compiled_segments(backend, how, fullgraph):
    module = nn.Sequential(linear(), nn.BatchNorm1d(6), nn.Dropout(), nn.Tanh()).double()
    plain = copy.deepcopy(module)
    torch.manual_seed(1)
    out = compiled_call(how, module, backend=backend, fullgraph=fullgraph)(INPUT)
    out.square().sum().backward()
    torch.manual_seed(1)
    expected = plain(INPUT)
    if not torch.equal(out == 0, expected == 0):  # some back ends draw other numbers; the mask is what counts
        plain = copy.deepcopy(plain)
        plain[1].reset_running_stats()
        plain[2].register_forward_hook(lambda _, inputs, __: inputs[0] * (out != 0) * 2)
        expected = plain(INPUT)
    expected.square().sum().backward()
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-12, atol=1e-14)
    assert all(map(torch.allclose, module.buffers(), plain.buffers()))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_modules_that_are_compiled_first_or_in_place(backend):
    in_place, around, after = perceptron(), torch.compile(perceptron(), backend=backend), remat.drop(perceptron())
    in_place.compile(backend=backend)
    after.compile(backend=backend)
    for dropped in (remat.drop(in_place), remat.drop(around), after):
        for _ in range(2):
            assert_same_gradients(dropped, perceptron())
    for dropped in (remat.drop(in_place), remat.drop(around)):
        assert is_recomputed(dropped)
        assert_same_gradients(copy.deepcopy(dropped), perceptron())


@pytest.mark.parametrize("strict", [False, True])
def test_exports(strict):
    module = nn.Sequential(remat.drop(linear()), remat.drop(Block())).eval()
    for each in (module, remat.drop(perceptron())):
        exported = torch.export.export(each, (INPUT,), strict=strict)
        assert torch.equal(exported.module()(INPUT), each(INPUT))
        assert list(exported.state_dict) == list(each.state_dict())


def test_graph_modules():
    dropped = remat.drop(torch.fx.symbolic_trace(perceptron()))
    copied = copy.deepcopy(dropped)
    for each in (dropped, copied, pickle.loads(pickle.dumps(dropped))):
        assert isinstance(each, torch.fx.GraphModule)
        assert_same_gradients(each, perceptron())
        assert is_recomputed(each)
    last = next(node for node in copied.graph.nodes if node.op == "output")
    with copied.graph.inserting_before(last):
        last.args = (copied.graph.call_function(torch.tanh, last.args),)
    copied.recompile()
    assert is_recomputed(copied)
    assert_same_gradients(copied, nn.Sequential(*perceptron(), nn.Tanh()))
    assert_same_gradients(dropped, perceptron())  # the class of a copy is its own


def test_symbolic_traces_of_models_with_dropped_modules():
    for module in (nn.Sequential(remat.drop(linear()), nn.Tanh()), remat.drop(nn.Sequential(linear(), nn.Tanh()))):
        assert_same_gradients(torch.fx.symbolic_trace(module), nn.Sequential(linear(), nn.Tanh()))


def test_scripts_of_dropped_modules():
    module = nn.Sequential(remat.drop(linear()), nn.Tanh(), remat.drop(perceptron()))
    scripted = torch.jit.script(module)
    assert_same_gradients(scripted, module)
    torch.jit.save(scripted, io.BytesIO())
    assert isinstance(module[0], CheckpointedModule)
    assert_same_gradients(torch.jit.script(remat.drop(Gated(torch.jit.script(gate)))), Gated(gate))


def test_traces_of_dropped_modules():
    module = nn.Sequential(remat.drop(linear()), nn.Tanh(), remat.drop(perceptron()))
    for each in (module, remat.drop(perceptron())):
        traced = torch.jit.trace(each, INPUT)
        assert_same_gradients(traced, each)
        assert list(traced.state_dict()) == list(each.state_dict())
    assert torch.equal(torch.jit.trace(lambda x: remat.checkpoint(torch.sin, x), INPUT)(INPUT), INPUT.sin())


def gate(x, y):
    return torch.sigmoid(x) * torch.tanh(y) + torch.exp(-x * x) * y


class Gated(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.inner, self.function = linear(), function

    def forward(self, x):
        return self.function(self.inner(x), x)


@pytest.mark.parametrize("early_stop", [True, False])
def test_scripted_functions_in_dropped_modules(early_stop):
    dropped = remat.drop(Gated(torch.jit.script(gate)), early_stop=early_stop)
    for _ in range(4):  # TorchScript's optimizer takes effect after some runs
        assert all(map(torch.allclose, gradients(dropped), gradients(Gated(gate))))


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("make", [torch.jit.script, lambda module: torch.jit.trace(module, INPUT, check_trace=False)])
def test_scripted_modules_are_dropped(make, early_stop):
    torch.manual_seed(0)
    module = make(nn.Sequential(linear(), nn.Dropout(), nn.BatchNorm1d(6), nn.Tanh()).double())
    dropped = remat.drop(module, early_stop=early_stop)
    assert isinstance(dropped, torch.jit.ScriptModule)
    assert is_recomputed(dropped)
    assert is_recomputed(copy.deepcopy(dropped))
    for each in (dropped, remat.drop(nn.Sequential(module, nn.Identity()), early_stop=early_stop)):
        for seed in range(3):
            found = []
            for run in (each, module):
                torch.manual_seed(seed)
                found.append(gradients(run))
            assert all(map(torch.allclose, *found))


def doubled_where_compiled(x):
    return torch.tanh(2 * x if torch.compiler.is_compiling() else x)


class Hidden:
    """A tensor that the compiler does not find among the arguments of a call, so that it passes over that."""

    def __init__(self, tensor):
        self.tensor = tensor


class DoubledWhereCompiled(nn.Module):
    def forward(self, hidden):
        return doubled_where_compiled(hidden.tensor)


@pytest.mark.parametrize("way", ["tensor", "hidden", "dropped"])
def test_a_segment_that_is_not_compiled_is_not_compiled_in_the_backward_of_a_compiled_step(way):
    """The whole step is compiled, with its backward, as trainers do that: both runs of the segment stay as they are."""
    module = DoubledWhereCompiled()
    dropped = remat.drop(DoubledWhereCompiled())

    def step(x):
        with io.StringIO():  # the compiler passes over a function with a block that it does not know
            if way == "tensor":
                y = remat.checkpoint(doubled_where_compiled, x)
            else:
                y = dropped(Hidden(x)) if way == "dropped" else remat.checkpoint(module, Hidden(x))
        loss = y.sum()
        loss.backward()
        return loss.detach()

    results = []
    for run in (step, torch.compile(step, backend=run_graph)):
        x = INPUT.detach().clone().requires_grad_()
        results.append((run(x), x.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])

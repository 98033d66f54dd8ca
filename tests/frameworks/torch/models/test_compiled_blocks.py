"""Models whose blocks run as compiled code under a budget: what is kept is the plan's choice."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import remat
from remat.frameworks.torch.models.compiled_blocks import CompiledBlock, compiled_block
from remat.frameworks.torch.models.measure_model import MeasuredModel
from remat.interface.auto_checkpointing import measure_step

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # the compiler asks for it

OPTIONS = {"backend": "aot_eager"}  # compiles quickly


class Block(nn.Module):
    def __init__(self, width=16, dropout=0.0):
        super().__init__()
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.dropout = dropout

    def forward(self, x, *, scale=1.0):
        y = self.narrow(F.gelu(self.wide(self.norm(x))))
        return x + scale * F.dropout(y, self.dropout, self.training)


class Net(nn.Module):
    def __init__(self, make=Block):
        super().__init__()
        self.first, self.blocks = nn.Linear(8, 16), nn.ModuleList(make() for _ in range(6))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return x


def net(make=Block):
    torch.manual_seed(0)
    return Net(make).double()


X = torch.randn(64, 8, dtype=torch.float64)


def saved_bytes(function, x):
    """Bytes of the storages that a graph saves, beside parameters and the input."""
    found = {}

    def pack(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = function(x)
    module = function.args[0]
    for each in (x, *module.parameters()):
        found.pop(each.untyped_storage().data_ptr(), None)
    return sum(found.values()), out


def test_blocks_of_a_class_share_the_code_of_a_choice():
    x = torch.randn(32, 16, dtype=torch.float64, requires_grad=True)
    made = []
    for block in net().blocks[:2]:
        compiled = compiled_block(block.forward, tuple(OPTIONS.items()))
        assert isinstance(compiled, CompiledBlock)
        without = compiled.remaking(("gelu 0.0", "native_layer_norm 0.0"))
        made.append(without.func)
        bytes_without, out = saved_bytes(without, x)
        assert 4 * x.nbytes <= bytes_without <= 5.5 * x.nbytes  # what gelu takes, and little more
        assert saved_bytes(compiled, x)[0] > 8 * x.nbytes
        found = torch.autograd.grad(out.sum(), [x, *block.parameters()])
        expected = torch.autograd.grad(block(x).sum(), [x, *block.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert made[0] is made[1]


@pytest.mark.parametrize("share", [0.6, pytest.param(0.35, marks=pytest.mark.full)])
def test_peaks_are_inside_and_gradients_are_those_of_the_plain_model(share):
    plain, ours = net(), net()
    memory = int(share * measure_step(plain, (X,)).peak)
    remat.auto_checkpoint(ours, memory=memory, sample=(X,), compile=OPTIONS)
    for model in (plain, ours):
        model(X).square().sum().backward()
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)
    assert measure_step(ours, (X,)).peak <= memory
    assert list(plain.state_dict()) == list(ours.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(X), plain.eval()(X))


def test_what_is_around_blocks_is_compiled_and_a_compiler_around_it_all_leaves_the_plan_alone():
    sizes = []  # of what each graph takes, parameters among it

    def backend(module, inputs):
        sizes.append({tuple(each.shape) for each in inputs if isinstance(each, torch.Tensor)})
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.head = net(), nn.Linear(16, 3).double()

        def forward(self, x):
            return self.head(self.trunk(x)).tanh()

    torch.manual_seed(0)
    plain = Headed()
    ours = copy.deepcopy(plain)
    memory = int(0.6 * measure_step(plain, (X,)).peak)
    remat.auto_checkpoint(ours, memory=memory, sample=(X,), compile={"backend": backend, "fullgraph": True})
    head, inside = tuple(ours.head.weight.shape), tuple(ours.trunk.blocks[0].narrow.weight.shape)
    assert any(head in each for each in sizes)
    assert not any(head in each and inside in each for each in sizes)
    around = torch.compile(ours, backend="aot_eager")
    for a, b in zip(_trained(plain).parameters(), _trained(around).parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)
    assert measure_step(around, (X,)).peak <= memory


def test_mixtures_of_two_options_are_plans_for_all_of_them():
    """Blocks that are compiled are compared by whole steps, in mixtures of options that just fit."""
    some = [remat.Option(tape=tape, record=1.0, backward=2.0 + 0.1 * i) for i, tape in enumerate((16, 10, 5, 1))]
    chain = remat.Chain([remat.Stage(output=1, options=some, repeatable=False) for _ in range(6)], input=1)
    measured = MeasuredModel(chain, tuple(range(6)), outputs=0, chain_of_least=chain)
    budget = 56
    plans = list(measured.alternatives(budget))
    assert len(plans) == 4  # the first two options are too large for all blocks, the others are not
    for plan in plans:
        assert plan.problem is chain
        assert remat.verify(plan.schedule, chain, budget)
        assert len({op.option for op in plan.schedule if isinstance(op, remat.Record)}) <= 2
    assert list(replace(measured, chain_of_least=None).alternatives(budget)) == []


@pytest.mark.full
def test_copies_and_saved_plans_stay_compiled(tmp_path):
    ours = remat.auto_checkpoint(net(), memory=200_000, sample=(X,), compile=OPTIONS)
    ours.remat_plan.save(tmp_path / "plan.json")
    again = remat.auto_checkpoint(net(), plan=remat.Plan.load(tmp_path / "plan.json"), compile=OPTIONS)
    expected = [each.grad for each in _trained(ours).parameters()]
    for model in (again, copy.deepcopy(ours)):
        for a, b in zip(expected, _trained(model).parameters(), strict=True):
            torch.testing.assert_close(a, b.grad, rtol=1e-12, atol=1e-12)


def _trained(model):
    model.zero_grad()
    model(X).square().sum().backward()
    return model


@pytest.mark.full
def test_blocks_that_write_into_their_tensors_have_no_choices():
    class InPlace(Block):
        def forward(self, x, *, scale=1.0):
            return x + scale * self.narrow(F.relu(self.wide(self.norm(x)), inplace=True))

    plain, ours = net(InPlace), net(InPlace)
    remat.auto_checkpoint(ours, memory=int(0.6 * measure_step(plain, (X,)).peak), sample=(X,), compile=OPTIONS)
    assert all(len(stage.options) == 1 for stage in ours.remat_plan.problem.stages)
    for a, b in zip(_trained(plain).parameters(), _trained(ours).parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)


def test_arguments_that_torch_compile_does_not_know():
    with pytest.raises(remat.ProblemError, match="fast is no argument of"):
        remat.auto_checkpoint(net(), memory="1 GiB", sample=(X,), compile={"fast": True})


def test_the_least_memory_is_inside_too():
    """Ranges of compiled blocks are run again, and take what they take while they are recorded."""
    plain, ours = net(), net()
    with pytest.raises(remat.InfeasibleError) as error:
        remat.auto_checkpoint(ours, memory=1, sample=(X,), compile=OPTIONS)
    memory = int(1.02 * error.value.minimum)
    remat.auto_checkpoint(ours, memory=memory, sample=(X,), compile=OPTIONS)
    assert measure_step(ours, (X,)).peak <= memory
    for a, b in zip(_trained(plain).parameters(), _trained(ours).parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=1e-12)

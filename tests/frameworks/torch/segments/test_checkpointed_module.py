"""`drop` of a module: a module with the same parameters, names, state and attributes."""

import copy
import io
import pickle
import sys

import pytest
import torch
from torch import nn

import remat
from remat.frameworks.torch.segments.checkpointed_module import CheckpointedModule
from tests.frameworks.untracked import Log


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.factor = 2.0

    def forward(self, x, *, power=1):
        return torch.tanh(self.norm(self.first(x)) ** power) * self.scale * self.factor + self.second(x)

    def describe(self):
        return f"a block of factor {self.factor}"


def net(drop):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), drop(Block()), drop(nn.Sequential(nn.Tanh(), drop(Block()))))


def pair():
    return net(remat.drop), net(lambda module: module)


def test_names_of_parameters_buffers_and_state_are_those_without_it():
    wrapped, plain = pair()
    for each in ("named_parameters", "named_buffers", "state_dict"):
        names = [[n if isinstance(n, str) else n[0] for n in getattr(module, each)()] for module in (wrapped, plain)]
        assert names[0] == names[1]
    assert [n for n, _ in wrapped[1].named_parameters()] == [n for n, _ in plain[1].named_parameters()]
    assert {n for n, _ in wrapped.named_modules()} == {n for n, _ in plain.named_modules()}
    assert len(list(wrapped.parameters())) == len(list(plain.parameters()))


def test_states_are_loaded_across():
    wrapped, plain = pair()
    for into, other in ((wrapped, plain), (plain, wrapped), (wrapped, wrapped)):
        for parameter in into.parameters():
            parameter.data.normal_()
        assert str(into.load_state_dict(other.state_dict())) == "<All keys matched successfully>"
        for a, b in zip(into.state_dict().values(), other.state_dict().values(), strict=True):
            assert torch.equal(a, b)
    assert str(wrapped[1].load_state_dict(plain[1].state_dict())) == "<All keys matched successfully>"
    wrapped.load_state_dict(plain.state_dict(), assign=True)


def test_missing_and_unexpected_keys_have_their_plain_names():
    wrapped, plain = pair()
    state = plain.state_dict()
    state["1.surplus"] = state.pop("1.first.weight")
    state["2.1.none.weight"] = state.pop("2.1.scale")
    found, expected = (module.load_state_dict(state, strict=False) for module in (wrapped, plain))
    assert sorted(found.missing_keys) == sorted(expected.missing_keys)
    assert sorted(found.unexpected_keys) == sorted(expected.unexpected_keys)
    with pytest.raises(RuntimeError, match=r'Missing key.*"1\.first\.weight"'):
        wrapped.load_state_dict(state)


def test_results_gradients_and_statistics_are_those_without_it():
    wrapped, plain = pair()
    for step in range(2):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        for module in (wrapped, plain):
            module(x).sum().backward()
    for (name, a), b in zip(wrapped.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name
    for a, b in zip(wrapped.buffers(), plain.buffers(), strict=True):
        assert torch.equal(a, b)


def test_attributes_are_those_of_the_module():
    block = Block()
    dropped = remat.drop(block)
    assert isinstance(dropped, CheckpointedModule)
    assert dropped.factor == 2.0
    assert dropped.first is block.first
    assert dropped.describe() == "a block of factor 2.0"
    dropped.factor = 3.0
    dropped.second = nn.Identity()
    assert block.factor == 3.0
    assert isinstance(block.second, nn.Identity)
    del dropped.factor
    assert not hasattr(block, "factor")
    with pytest.raises(AttributeError, match="nothing"):
        _ = dropped.nothing
    assert isinstance(remat.drop(nn.Sequential(nn.Tanh()))[0], nn.Tanh)


def test_train_eval_to_and_apply_reach_the_module():
    wrapped, _ = pair()
    assert not any(module.training for module in wrapped.eval().modules())
    assert all(module.training for module in wrapped.train().modules())
    assert all(parameter.dtype is torch.float64 for parameter in wrapped.to(torch.float64).parameters())
    wrapped(torch.ones(3, 4, dtype=torch.float64)).sum().backward()
    met = []
    wrapped.apply(lambda module: met.append(type(module).__name__))
    assert met.count("Block") == 2
    wrapped.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in wrapped.parameters())
    block = Block().eval()
    assert not remat.drop(block).training


def test_copies_and_pickles_are_dropped_modules_of_their_own():
    wrapped, _ = pair()
    file = io.BytesIO()
    torch.save(wrapped, file)
    file.seek(0)
    x = torch.ones(3, 4)
    for other in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped)), torch.load(file, weights_only=False)):
        assert isinstance(other[1], CheckpointedModule)
        assert all(a is not b for a, b in zip(other.parameters(), wrapped.parameters(), strict=True))
        assert torch.equal(other.eval()(x), wrapped.eval()(x))
        other(x).sum().backward()
        assert all(parameter.grad is None for parameter in wrapped.parameters())
        assert all(parameter.grad is not None for parameter in other.parameters())


def test_keyword_arguments_reach_the_module():
    torch.manual_seed(0)
    block, x = Block(), torch.randn(3, 4)
    assert torch.equal(remat.drop(block).eval()(x, power=2), block.eval()(x, power=2))
    with pytest.raises(TypeError, match="unexpected keyword"):
        remat.drop(block)(x, use_reentrant=False)


def test_hooks_are_called_as_without_it_and_those_inside_again_when_it_is_recomputed():
    calls = Log()
    block = Block()
    block.register_forward_pre_hook(lambda *_: calls.append("pre"))
    dropped = remat.drop(block, early_stop=False)
    dropped.register_forward_hook(lambda module, *_: calls.append(f"post {module is dropped}"))
    dropped.register_full_backward_pre_hook(lambda *_: calls.append("backward pre"))
    dropped.register_full_backward_hook(lambda *_: calls.append("backward"))
    block.first.register_forward_hook(lambda *_: calls.append(f"inside {remat.is_recomputing()}"))
    dropped(torch.randn(3, 4, requires_grad=True)).sum().backward()
    assert calls == ["pre", "inside False", "post True", "backward pre", "inside True", "backward"]


def test_a_method_that_is_decorated_is_dropped():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.runs = nn.Linear(4, 4), Log()

        @remat.drop
        def forward(self, x):
            self.runs.append(1)
            return self.linear(x).sin().exp()

    model = Model()
    model(torch.ones(2, 4)).sum().backward()
    assert len(model.runs) == 2
    assert model.linear.weight.grad is not None
    assert Model.forward.__name__ == "forward"


def test_a_dropped_function_has_its_name_and_documentation():
    def fn(x):
        """Doc."""
        return x.sin()

    assert (remat.drop(fn).__name__, remat.drop(fn).__doc__) == ("fn", "Doc.")
    assert remat.drop(fn).__wrapped__ is fn


def test_a_profile_shows_how_often_a_module_was_run(tmp_path):
    wrapped = remat.drop(Block())
    with remat.profile() as run:
        wrapped(torch.randn(3, 4)).sum().backward()
    assert [(call.what, call.framework, call.steps) for call in run.calls] == [("drop", "torch", 2)]
    assert [each.what for each in run.passes] == ["forward", "recompute", "pullback"]
    assert {each.name for each in run.passes} == {"Block"}
    assert "drop at test_checkpointed" in str(run)
    assert "recompute" in run.report(tmp_path / "run.txt").read_text()


@pytest.mark.filterwarnings("ignore")
def test_distributed_wrappers_get_the_plain_gradients(tmp_path, monkeypatch):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def make(drop):
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), drop(nn.Linear(4, 4)))
        return nn.Sequential(nn.Linear(4, 4), drop(inner), nn.Linear(4, 4))

    x, plain = torch.ones(3, 4), make(lambda module: module)
    plain(x).sum().backward()
    expected = [parameter.grad for parameter in plain.parameters()]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        for options in ({}, {"find_unused_parameters": True}):
            module = make(remat.drop)
            parallel = nn.parallel.DistributedDataParallel(module, **options)
            parallel(x).sum().backward()
            assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), expected, strict=True))
        module, mesh = make(remat.drop), init_device_mesh("cpu", (1,))
        fully_shard(module[1], mesh=mesh)
        fully_shard(module, mesh=mesh)
        module(x).sum().backward()
        assert all(torch.equal(p.grad.full_tensor(), g) for p, g in zip(module.parameters(), expected, strict=True))
    finally:
        dist.destroy_process_group()


def test_what_is_registered_is_the_modules_own():
    wrapped, plain = remat.drop(nn.Linear(2, 2)), nn.Linear(2, 2)
    for module in (wrapped, plain):
        module.register_buffer("count", torch.ones(1))
        module.register_parameter("scale", nn.Parameter(torch.ones(1)))
        module.add_module("more", nn.Linear(1, 1))
    assert list(wrapped.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in wrapped.named_parameters()] == [n for n, _ in plain.named_parameters()]


def test_a_parametrized_module_can_be_dropped():
    found = []
    for drop in (lambda module: module, remat.drop):
        torch.manual_seed(0)
        module = drop(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)))
        x = torch.ones(2, 3, requires_grad=True)
        for _ in range(2):
            module(x).square().sum().backward()
        found.append([x.grad, *(p.grad for p in module.parameters()), *module.buffers()])
    assert all(map(torch.equal, *found))


def test_copies_of_dropped_graph_modules_are_dropped():
    copied = copy.deepcopy(remat.drop(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))))
    assert isinstance(copied, CheckpointedModule)


def test_drop_with_options_is_a_decorator():
    @remat.drop(check="never", early_stop=False)
    def fn(x):
        """Mine."""
        return x.sin().exp()

    x = torch.ones(3, requires_grad=True)
    with remat.profile() as run:
        fn(x).sum().backward()
    assert fn.__doc__ == "Mine."
    assert [each.what for each in run.passes] == ["forward", "recompute", "pullback"]

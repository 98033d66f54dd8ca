"""What libraries do with modules, done with dropped ones: it must not show that they are dropped."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils import prune

import remat
from remat.frameworks.torch.segments.checkpointed_module import CheckpointedModule
from tests.frameworks.torch.segments.dropped_modules import (
    INPUT,
    Block,
    assert_same_gradients,
    is_recomputed,
    linear,
    perceptron,
)
from tests.frameworks.untracked import Log


@pytest.fixture
def one_process(tmp_path, monkeypatch):
    """A group of one process."""
    dist = pytest.importorskip("torch.distributed")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model(drop):
    return nn.Sequential(linear(), drop(Block()), drop(perceptron()))


def plain(module):
    return module


def test_functional_calls_with_other_parameters():
    found = []
    for drop in (plain, remat.drop):
        module = model(drop)
        leaves = {name: value.detach().clone().requires_grad_() for name, value in module.named_parameters()}
        out = functional_call(module, {name: 2 * leaf for name, leaf in leaves.items()}, (INPUT,))
        found.append(torch.autograd.grad(out.square().sum(), list(leaves.values())))
    assert all(map(torch.equal, *found))


def test_ensembles():
    modules = [remat.drop(perceptron()) for _ in range(3)]
    parameters, buffers = stack_module_state(modules)
    assert parameters.keys() == dict(modules[0].named_parameters()).keys()
    out = vmap(lambda *state: functional_call(modules[0], state, (INPUT,)))(parameters, buffers)
    assert torch.allclose(out[2], perceptron()(INPUT))


@pytest.mark.parametrize("drop", [plain, remat.drop], ids=["plain", "dropped"])
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrizations_of_dropped_modules(kind, drop):
    parametrize = getattr(nn.utils.parametrizations, kind)
    torch.manual_seed(1)
    found = parametrize(drop(linear()))
    torch.manual_seed(1)
    assert_same_gradients(found, parametrize(linear()))
    assert_same_gradients(copy.deepcopy(found).eval(), copy.deepcopy(found).eval())
    assert is_recomputed(found) == is_recomputed(copy.deepcopy(found)) == (drop is remat.drop)
    with pytest.raises(RuntimeError, match="parametrized modules"):
        pickle.dumps(found)
    nn.utils.parametrize.remove_parametrizations(found, "weight")
    assert isinstance(found, CheckpointedModule) == (drop is remat.drop)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_weights_that_hooks_make(kind, order):
    normalize = getattr(nn.utils, kind)
    torch.manual_seed(1)
    found = remat.drop(normalize(linear())) if order == "before" else normalize(remat.drop(linear()))
    torch.manual_seed(1)
    expected = normalize(linear())
    assert_same_gradients(nn.Sequential(found, nn.Tanh(), found), nn.Sequential(expected, nn.Tanh(), expected))


def test_pruning():
    found, expected = (prune.l1_unstructured(drop(linear()), "weight", 0.5) for drop in (remat.drop, plain))
    assert_same_gradients(found, expected)


class Adapted(nn.Module):
    """A layer with a low-rank update, as peft makes one of each linear layer that it finds by its class."""

    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, linear(), linear()

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapted(module):
    for name, child in list(module.named_children()):
        setattr(module, name, Adapted(child) if isinstance(child, nn.Linear) else adapted(child))
    return module


def test_children_are_exchanged_by_name_and_class():
    def make(drop):
        return adapted(nn.Sequential(drop(linear()), drop(Block()), drop(perceptron())))

    found, expected = make(remat.drop), make(plain)
    assert list(found.state_dict()) == list(expected.state_dict())
    assert_same_gradients(found, expected)
    assert isinstance(found[1], CheckpointedModule)
    assert isinstance(found[0].base, CheckpointedModule)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model(remat.drop))
    assert isinstance(converted[1].norm, nn.SyncBatchNorm)
    assert isinstance(converted[1], Block)


def test_averaged_models_and_shared_memory():
    averaged = torch.optim.swa_utils.AveragedModel(remat.drop(perceptron()).share_memory())
    averaged.update_parameters(perceptron())
    assert torch.equal(averaged(INPUT), perceptron()(INPUT))


def test_hooks_of_state_dicts():
    dropped = remat.drop(perceptron())
    dropped.register_state_dict_post_hook(lambda module, state, *_: state.update(version=7))
    dropped.register_load_state_dict_pre_hook(lambda module, state, *_: state.pop("version"))
    assert nn.Sequential(dropped).state_dict()["version"] == 7
    assert str(dropped.load_state_dict(dropped.state_dict())) == "<All keys matched successfully>"


def test_names_in_checkpoints_of_weights_and_optimizers():
    api = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    models = [model(drop) for drop in (remat.drop, plain)]
    optimizers = [torch.optim.AdamW(module.parameters()) for module in models]
    for module, optimizer in zip(models, optimizers, strict=True):
        module(INPUT).sum().backward()
        optimizer.step()
    states = [api.get_state_dict(*pair) for pair in zip(models, optimizers, strict=True)]
    assert states[0][0].keys() == states[1][0].keys()
    assert states[0][1]["state"].keys() == states[1][1]["state"].keys()
    for pair, (weights, moments) in zip(zip(models, optimizers, strict=True), reversed(states), strict=True):
        api.set_state_dict(*pair, model_state_dict=weights, optim_state_dict=copy.deepcopy(moments))
    other = perceptron().apply(lambda module: nn.init.ones_(module.weight) if hasattr(module, "weight") else None)
    options = api.StateDictOptions(strict=False)
    api.set_model_state_dict(
        models[0], {f"2.{name}": value for name, value in other.state_dict().items()}, options=options
    )
    assert torch.equal(models[0][2][0].weight, torch.ones(6, 6))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("order", ["dropped first", "sharded first"])
@pytest.mark.parametrize("policy", [{}, {"param_dtype": torch.float32}], ids=["float64", "mixed"])
def test_sharding_before_and_after(order, policy, one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    options = {"mesh": init_device_mesh("cpu", (1,)), "mp_policy": MixedPrecisionPolicy(**policy)}

    def make(drop):
        module = nn.Sequential(linear(), Adapted(linear()), perceptron())
        for index in (1, 2):
            if order == "dropped first":
                module[index] = fully_shard(drop(module[index]), **options)
            else:
                module[index] = drop(fully_shard(module[index], **options))
        return fully_shard(module, **options)

    found, expected = make(remat.drop), make(plain)
    assert isinstance(found[1], Adapted)
    assert isinstance(found[1], FSDPModule)
    for _ in range(2):
        for module in (found, expected):
            (module(INPUT) + module(2 * INPUT)).sum().backward()
    for a, b in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a.grad.full_tensor(), b.grad.full_tensor())
    with pytest.raises(AssertionError, match="FSDP does not support deepcopy"):
        copy.deepcopy(found[1])


@pytest.mark.filterwarnings("ignore")
def test_wrapping_by_class(one_process):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    device = torch.device("cpu")
    wrapped = FullyShardedDataParallel(model(remat.drop), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device)
    assert [type(module).__name__ for module in wrapped.module] == ["Linear", "FullyShardedDataParallel", "Sequential"]
    wrapped(INPUT).sum().backward()


@pytest.mark.filterwarnings("ignore")
def test_parts_of_dropped_modules_are_parallelized_by_name(one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    found = parallelize_module(remat.drop(perceptron()), init_device_mesh("cpu", (1,)), plan)
    assert all(isinstance(parameter, DTensor) for parameter in found.parameters())
    found(INPUT).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found[0].weight.grad is not None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("repeats", [True, False])
def test_values_of_distributed_tensors_are_compared(repeats, one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh, runs = init_device_mesh("cpu", (1,)), Log()
    x = distribute_tensor(INPUT, mesh, [Shard(0)])
    w = distribute_tensor(linear().weight.detach(), mesh, [Replicate()]).requires_grad_()

    def fn(x):
        runs.append("run")
        return torch.tanh(x @ w) * (x * (1 if repeats else len(runs)))

    out = remat.checkpoint(fn, x).sum()
    if not repeats:
        with pytest.raises(remat.DeterminismError):
            out.backward()
        return
    out.backward()
    assert torch.equal(w.grad.full_tensor(), torch.autograd.grad(fn(x).sum(), w)[0].full_tensor())

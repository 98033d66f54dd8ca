"""Private names of PyTorch: each is named here and fails by name when PyTorch drops it; they stay in a few files."""

import ast
from operator import attrgetter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import remat.frameworks.torch  # noqa: E402

SOURCE = Path(remat.frameworks.torch.__file__).parent
NAMES = ["batched_backward", "collectives", "dispatch", "fsdp", "functorch", "graph", "modules", "saved_tensor_hooks"]
NAMED_FILES = [SOURCE / "meter.py", *(SOURCE / "internals" / f"{name}.py" for name in NAMES)]


class Empty(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(2))


def leaf():
    return torch.ones(2, requires_grad=True)


def node():
    return leaf().view(2).grad_fn


IN_TORCH = [
    "autograd._unsafe_preserve_version_counter",
    "_C._functorch.maybe_current_level",
    "_C._functorch.maybe_get_level",
    "_C._functorch.is_functorch_wrapped_tensor",
    "_functorch.pyfunctorch.temporarily_clear_interpreter_stack",
    "_C._functorch.is_legacy_batchedtensor",
    "_C._vmapmode_increment_nesting",
    "_C._vmapmode_decrement_nesting",
    "_C._VariableFunctions._remove_batch_dim",
    "_C._VariableFunctions._add_batch_dim",
    "_C._functions.AccumulateGrad",
    "_subclasses.FakeTensor",
    "nn.utils.parametrize._cache",
    "nn.utils.parametrize._cache_enabled",
    "_C.DisableTorchFunctionSubclass",
    "_C._current_graph_task_id",
    "_C._current_autograd_node",
    "_C._is_any_autocast_enabled",
    "_C._len_torch_function_stack",
    "_C._will_engine_execute_node",
    "_C._get_graph_executor_optimize",
    "_C._set_graph_executor_optimize",
    "_C._autograd._top_saved_tensors_default_hooks",
    "_C._autograd._pop_saved_tensors_default_hooks",
    "_C._autograd._push_saved_tensors_default_hooks",
    "_C._autograd._saved_tensors_hooks_get_disabled_error_message",
    "_C._autograd._saved_tensors_hooks_enable",
    "_C._autograd._saved_tensors_hooks_disable",
    "autograd.forward_ad._current_level",
    "_C._autograd._get_sequence_nr",
    "_C._autograd._get_current_graph_task_keep_graph",
    "autograd.Variable._execution_engine.queue_callback",
    "autograd.graph._engine_run_backward",
    "_C._autograd._profiler_enabled",
    "_C._autograd._enable_profiler_legacy",
    "_C._autograd._disable_profiler_legacy",
    "_C._profiler._ExperimentalConfig",
    "utils._python_dispatch.TorchDispatchMode",
    "_ops",
    "_ops.OpOverload",
    "_C._DisableTorchDispatch",
    "_C._DisableAutocast",
    "_neg_view",
    "utils._pytree.tree_leaves",
]
ON_OBJECTS = [
    (node, "_sequence_nr"),
    (leaf, "_backward_hooks"),
    (leaf, "_post_accumulate_grad_hooks"),
    (leaf, "_version"),
    (leaf, "_base"),
    (Empty, "_parameters"),
    (Empty, "_buffers"),
    (Empty, "_modules"),
    (Empty, "_backward_pre_hooks"),
    (Empty, "_forward_hooks"),
    (Empty, "_forward_pre_hooks"),
]


@pytest.mark.parametrize("name", IN_TORCH)
def test_names_in_torch_exist(name):
    try:
        attrgetter(name)(torch)
    except AttributeError as error:
        pytest.fail(f"torch.{name} is gone: {error}")


@pytest.mark.parametrize(("made", "name"), ON_OBJECTS, ids=lambda value: value if isinstance(value, str) else "")
def test_attributes_of_tensors_nodes_and_modules_exist(made, name):
    assert hasattr(made(), name), f"{type(made()).__name__}.{name} is gone"


def test_the_node_of_a_leaf_says_which_leaf_it_is():
    tensor = leaf()
    accumulate, _ = (tensor * 2).grad_fn.next_functions[0]
    assert isinstance(accumulate, torch._C._functions.AccumulateGrad), "AccumulateGrad is no type of nodes any more"
    assert accumulate.variable is tensor, "AccumulateGrad.variable is gone"


def test_hooks_of_a_tensor_are_a_dict_that_the_engine_reads():
    tensor, calls = leaf(), []
    tensor.register_hook(calls.append)
    hooks = dict(tensor._backward_hooks)
    tensor._backward_hooks.clear()
    (tensor * 2).sum().backward()
    assert not calls, "Tensor._backward_hooks is not what the engine reads any more"
    tensor._backward_hooks.update(hooks)
    (tensor * 2).sum().backward()
    assert len(calls) == 1, "Tensor._backward_hooks is not what the engine reads any more"


def test_writes_count_up_the_version_and_views_know_their_base():
    tensor = torch.zeros(3)
    before = tensor._version
    tensor[1:].add_(1)
    assert tensor._version == before + 1, "Tensor._version does not count writes any more"
    assert tensor[1:]._base is tensor, "Tensor._base is not what a view is a view of any more"


def test_nodes_count_up():
    first, second = node(), node()
    assert second._sequence_nr() > first._sequence_nr(), "Node._sequence_nr does not count up any more"


def test_a_backward_has_an_id_and_calls_back_when_it_has_ended():
    tensor, seen = leaf(), []

    def note(gradient):
        seen.append(torch._C._current_graph_task_id())
        torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append("ended"))

    tensor.register_hook(note)
    (tensor * 2).sum().backward()
    assert seen[0] >= 0
    assert seen[1:] == ["ended"], "queue_callback does not call when a backward has ended any more"
    assert torch._C._current_graph_task_id() == -1, "_current_graph_task_id is not -1 outside of a backward any more"


def test_a_default_device_is_a_function_mode():
    assert torch._C._len_torch_function_stack() == 0
    with torch.device("meta"):
        assert torch._C._len_torch_function_stack() == 1, "torch.device does not enter a mode any more"


def test_levels_of_transforms():
    functorch = torch._C._functorch
    seen = []
    torch.func.grad(lambda x: seen.append((functorch.maybe_current_level(), x)) or x * x)(torch.tensor(1.0))
    level, wrapper = seen[0]
    assert level == 1
    assert functorch.is_functorch_wrapped_tensor(wrapper)
    assert functorch.maybe_get_level(wrapper) == -2, "maybe_get_level of a dead wrapper is not -2 any more"
    assert functorch.maybe_current_level() is None
    with torch.autograd.forward_ad.dual_level():
        assert torch.autograd.forward_ad._current_level == 0
    assert torch.autograd.forward_ad._current_level == -1


def test_what_is_compiled_says_so():
    assert "_orig_mod" in torch.compile(Empty(), backend="eager")._modules, (
        "compiled modules have no _orig_mod any more"
    )
    compiled = torch.compile(lambda x: x, backend="eager")
    assert "_torchdynamo_orig_callable" in vars(compiled), "compiled functions have no _torchdynamo_orig_callable"


def test_a_module_that_is_compiled_in_place_says_so():
    module = Empty()
    module.compile(backend="eager")
    assert vars(module)["_compiled_call_impl"] is not None, "Module._compiled_call_impl is gone"


def test_the_compiler_says_which_back_end_it_compiles_for():
    from remat.frameworks import compilers

    @torch._dynamo.assume_constant_result
    def ask():
        translator = compilers._translator()
        return hasattr(translator.output, "compiler_fn") and hasattr(translator, "one_graph")

    assert ask._dynamo_marked_constant, "assume_constant_result marks functions in another way"
    assert torch.compile(lambda x: x + ask(), backend="eager")(torch.zeros(1)) == 1, (
        "the back end is not known any more"
    )
    assert compilers._translator() is None


def test_saved_tensors_of_nodes():
    node = torch.tanh(torch.ones(3, requires_grad=True)).grad_fn
    raw = node._raw_saved_result.data  # None in 2.11
    assert isinstance(node._saved_result if raw is None else raw, torch.Tensor), "saved tensors cannot be looked at"


def test_state_of_sharded_modules():
    if not torch.distributed.is_available():
        pytest.skip("PyTorch without torch.distributed")
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    assert hasattr(FSDPModule, "_get_fsdp_state"), "FSDPModule._get_fsdp_state is gone"
    assert hasattr(TrainingState, "IDLE"), "TrainingState.IDLE is gone"
    assert isinstance(FSDPState()._training_state, TrainingState), "FSDPState._training_state is gone"
    assert callable(FSDPState._pre_forward), "FSDPState._pre_forward is gone"
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    assert "_unsharded_param" in FSDPParam.__annotations__, "FSDPParam._unsharded_param is gone"
    from torch.distributed.fsdp._common_utils import _FSDPState

    assert hasattr(_FSDPState(), "_use_orig_params"), "FullyShardedDataParallel._use_orig_params is gone"
    from torch.distributed._composable_state import _get_module_state, _insert_module_state

    module, state = Empty(), FSDPState()
    _insert_module_state(module, state)
    assert _get_module_state(module) is state, "the state of a sharded module is not found by its identity any more"


@pytest.mark.parametrize("other", [lambda t: t[1:], torch.Tensor.detach, lambda t: t.view(3, 1), lambda t: t.data])
def test_a_storage_is_one_object(other):
    """Public since storages keep their Python object; the identity of memory rests on it."""
    tensor = torch.ones(3)
    number = id(tensor.untyped_storage())
    others = [torch.ones(3).untyped_storage() for _ in range(100)]
    assert id(other(tensor).untyped_storage()) == number, "a view has another storage object"
    assert number not in map(id, others)


def private_names(path):
    """What a file names of PyTorch's private API, with the line."""
    tree = ast.parse(path.read_text())
    own = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    theirs = {*vars(torch.nn.Module()), *dir(torch.nn.Module), *dir(torch.Tensor), *dir(torch.UntypedStorage)}
    theirs |= {*dir(node()), "_get_fsdp_state", "_training_state", "_cdata", "cdata"}
    for item in ast.walk(tree):
        if isinstance(item, ast.ImportFrom) and (item.module or "").split(".")[0] == "torch":
            for alias in item.names:
                if is_private(f"{item.module}.{alias.name}"):
                    yield f"{path.name}:{item.lineno}: {item.module}.{alias.name}"
        elif isinstance(item, ast.Import):
            yield from (f"{path.name}:{item.lineno}: {a.name}" for a in item.names if is_private(a.name))
        elif isinstance(item, ast.Attribute):
            text = ast.unparse(item)
            mine = text.startswith("self.") and item.attr in own
            private = is_private(item.attr) and not mine and (text.startswith("torch.") or item.attr in theirs)
            if private or item.attr in ("variable", "default_generator", "default_generators", "cdata"):
                yield f"{path.name}:{item.lineno}: {text}"


def is_private(name):
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_private_names_stay_in_the_named_files(path):
    found = list(private_names(path))
    if path not in NAMED_FILES:
        assert not found, f"private names of torch belong into {sorted(map(str, NAMED_FILES))}: {found}"


def test_the_named_files_use_what_is_tested_here_and_nothing_else():
    tested = {name.rpartition(".")[2] for name in IN_TORCH} | {name for _, name in ON_OBJECTS}
    tested |= {
        "variable",
        "_get_fsdp_state",
        "_training_state",
        "_functorch",
        "_C",
        "_functions",
        "_autograd",
        "_profiler",
    }
    tested |= {"_execution_engine", "_subclasses"}
    used = {line.rpartition(".")[2] for name in NAMED_FILES for line in private_names(name)}
    assert used <= tested, f"private names of torch without a test here: {sorted(used - tested)}"

"""PyTorch's own tests of `torch.utils.checkpoint`, for segments: what they check, written for remat.

| their tests | here |
|---|---|
| `TestCheckpoint`: trigger, valid, checkpoint, module_list, rng_cpu, non_tensor, partial_grad | pass, below |
| the same: non_tensor_inputs_outputs, no_tensors, early_free | pass, below |
| the same: preserves_device_context, infer_device_state_recursive_meta | pass, in the further suite |
| the same: rng_gpu, not_preserve_rng_state | generators of GPUs: test_cuda.py; there is no such option |
| the same: sequential_deprecated_multiple_args and _no_args | no `checkpoint_sequential`: chunks are dropped |
| the same: get_device_states, infer_device_state_recursive_multi_gpu | helpers of torch's implementation |
| `TestAutograd`: checkpointing, non_reentrant_autocast_cpu, custom_function_works, correct_grad | pass, below |
| the same: detects_non_determinism, access_saved_tensor_twice, saved_object_identity | pass, below, see there |
| the same: without_reentrant, detached_tensor, parameter_used_in_an_out, arbitrary_input_output | pass, below |
| the same: graph_execution_group, dataparallel, deep_reentrant, callbacks | pass, in the further suite |
| the same: autocast_gpu, memory_savings | test_cuda.py, on a machine that has a GPU |
| the same: with_context_fn, warns_if_use_reentrant (two), `debug=True` | remat has no such options |
| the same: valid_reset_on_error | `torch.autograd.grad` works, which is an error with `use_reentrant` |
| `TestNestedCheckpoint` | all pass, test_torch_nested_checkpoint_suite.py; `early_stop` is an option of `drop` |
| `TestSelectiveActivationCheckpoint`: output_already_has_autograd_meta, version_counter | pass, in the further suite |
| the same: function_with_more_than_one_output, function_with_non_tensor_output | pass, in the further suite |
| the same: flops_and_mem, bad_inputs, policy_with_state, storage_lifetime | policies: remat has none on PyTorch |
| the same: subclass_dispatching_sizes, can_only_trigger_recompute_once | the same |

The further suite is test_torch_further_checkpoint_suite.py. Three checks differ. A saved tensor without a gradient is
the same memory, where torch gives the same object. A saved tensor may be unpacked as often as one likes, where torch
raises at the second time in one backward. And `torch.autograd.grad` and `backward(inputs=...)` work, which are errors
with reentrant checkpoints. Values are compared by default (test_checkpoint_errors.py), and not only their shapes.
"""

import gc

import pytest
import torch
from torch import nn

import remat
from tests.frameworks.torch.segments.checkpoint_programs import Seen, leaf, rand
from tests.frameworks.untracked import Log


def model():
    torch.manual_seed(0)
    widths = [(6, 8), (8, 8), (8, 8), (8, 5)]
    layers = [layer for pair in widths for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(5, 3), nn.Sigmoid()).double()


def in_chunks(module, count):
    """The model as that many dropped chunks."""
    size = -(-len(module) // count)
    return nn.Sequential(*(remat.drop(module[at : at + size]) for at in range(0, len(module), size)))


def results(module, x, parameters):
    out = module(x)
    return out.detach(), *torch.autograd.grad(out.sum(), [x, *parameters])


# TestCheckpoint, test_utils.py


@pytest.mark.parametrize("count", range(1, 11))
def test_checkpoint_sequential(count):
    plain, x = model(), leaf(4, 6)
    parameters = list(plain.parameters())
    assert all(map(torch.equal, results(in_chunks(plain, count), x, parameters), results(plain, x, parameters)))


def test_checkpoint_module_list():
    class Listed(nn.Module):
        def __init__(self, parts, run):
            super().__init__()
            self.parts, self.run = nn.ModuleList(parts), run

        def forward(self, x):
            for part in self.parts:
                x = self.run(part, x)
            return x

    parts, x = list(model()), leaf(4, 6)
    plain, found = Listed(parts, lambda part, x: part(x)), Listed(parts, remat.checkpoint)
    parameters = list(plain.parameters())
    assert all(map(torch.equal, results(found, x, parameters), results(plain, x, parameters)))


def test_checkpoint_trigger():
    """Runs are counted: two with a gradient, one in eval with no_grad, one where no gradient is asked for."""
    runs, module = Log(), model()

    def counted(x):
        runs.append("run")
        return module(x)

    x = leaf(4, 6)
    remat.checkpoint(counted, x).sum().backward()
    assert len(runs) == 2
    with torch.no_grad():
        remat.checkpoint(counted, x)
    assert len(runs) == 3
    module.requires_grad_(False)
    remat.checkpoint(counted, x.detach())
    assert len(runs) == 4


def test_checkpoint_valid():
    plain, x = model(), leaf(4, 6)
    found = in_chunks(plain, 2)
    (gradient,) = torch.autograd.grad([found(x).sum()], [x])
    assert torch.equal(gradient, torch.autograd.grad(plain(x).sum(), x)[0])
    found(x).sum().backward(inputs=[x])
    assert torch.equal(x.grad, gradient)
    assert all(parameter.grad is None for parameter in plain.parameters())


def test_checkpoint_rng_cpu():
    for _ in range(5):
        gradients = []
        for run in (remat.checkpoint, lambda fn, x: fn(x)):
            torch.manual_seed(2)
            x = rand(20, 8).requires_grad_()
            state = torch.get_rng_state()
            out = run(lambda x: nn.functional.dropout(x, 0.5), run(lambda x: nn.functional.dropout(x, 0.5), x) + 1)
            out.sum().backward()
            gradients.append(x.grad)
            torch.set_rng_state(state)
        assert torch.equal(*gradients)


def test_checkpoint_non_tensor():
    def run_fn(one, two):
        return one if two is None else one + two

    x = leaf(1, 3)
    out = remat.checkpoint(run_fn, x, None)
    remat.checkpoint(run_fn, out, x).sum().backward()
    assert torch.equal(x.grad, torch.full((1, 3), 2.0, dtype=torch.float64))


def test_checkpoint_non_tensor_inputs_outputs():
    def foo(t1, t2, scale, t3):
        t4 = t1 + t2 * t3
        t5 = t1 * t2 + t3
        return scale, t4 * scale, t5 * scale, True, "bar", scale + 1

    t1, t2, t3 = rand(10, seed=1), leaf(10, seed=2), rand(10, seed=3)
    out = remat.checkpoint(foo, t1, t2, 10, t3)
    assert (out[0], out[3], out[4], out[5]) == (10, True, "bar", 11)
    out[1].sum().backward(retain_graph=True)
    assert torch.equal(t2.grad, t3 * 10)
    with pytest.raises(RuntimeError, match="does not require grad"):
        remat.checkpoint(foo, t1, t1, 10, t3)[1].sum().backward()


def test_checkpoint_no_tensors():
    def foo(t1, t2, scale, t3):
        return scale, (t1 + t2 * t3) * scale, (t1 * t2 + t3) * scale, True, "bar"

    assert remat.checkpoint(torch.nn.Identity(), 3.0) == 3.0
    w = leaf(())
    assert remat.checkpoint(lambda *args: (*foo(*args), w.sin()), 1.0, 2.0, 10, 3.0)[:3] == (10, 70.0, 50.0)


def test_checkpoint_partial_grad():
    def run_fn(one, two):
        return one, two

    one, two = leaf(2, 2), rand(2, 2)
    out = remat.checkpoint(run_fn, one, two)
    out[0].sum().backward()
    assert torch.equal(one.grad, torch.ones(2, 2, dtype=torch.float64))
    assert not out[1].requires_grad

    def run_fn2(one, two):
        return one.sin()

    remat.checkpoint(run_fn2, one, two).sum().backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        remat.checkpoint(run_fn2, two, one.detach()).sum().backward()


def test_checkpointing_early_free():
    """Recomputed tensors are let go while the backward goes on, each when its node has used it."""
    made, counts = Seen(), Log()

    def fn(x):
        for _ in range(6):
            x = x.sin()
            if remat.is_recomputing():
                made(x)
            else:
                x.register_hook(lambda _: counts.append(made.alive))
        return x

    gc.disable()
    try:
        remat.checkpoint(fn, leaf(3)).sum().backward()
    finally:
        gc.enable()
    assert counts == [0, 4, 3, 2, 1, 0]  # the first hook is called before anything is recomputed
    assert made.alive == 0


# TestAutograd, test_autograd.py


def test_checkpointing():
    module = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 10)).double()
    feats = rand(30, 10)
    grads = []
    for run in (lambda fn, x: fn(x), remat.checkpoint):
        module.zero_grad()
        combined = torch.stack([run(module, feats[at : at + 10].requires_grad_()) for at in range(0, 30, 10)])
        combined.mean().backward()
        grads.append([parameter.grad.clone() for parameter in module.parameters()])
    assert all(map(torch.equal, *grads))


def test_checkpointing_autocast_cpu():
    for enabled in (False, True):
        torch.manual_seed(0)
        module = nn.Linear(8, 8)
        x = torch.randn(4, 8, requires_grad=True)
        dtypes = Log()

        def fn(x, module=module, dtypes=dtypes):
            out = module(x).relu()
            dtypes.append(out.dtype)
            return module(out)

        grads = []
        for run in (lambda fn, x: fn(x), remat.drop(fn, early_stop=False)):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                out = run(fn, x) if run.__name__ == "<lambda>" else run(x)
            grads.append(torch.autograd.grad(out.float().sum(), [x, *module.parameters()]))
        assert set(dtypes) == {torch.bfloat16 if enabled else torch.float32}
        assert all(map(torch.equal, *grads))


def test_checkpointing_parameter_used_in_an_out():
    w = leaf(10, 10)

    def inner(x):
        return w * x

    x = rand(10, 10)
    found = torch.autograd.grad((remat.checkpoint(inner, x) * w).sum(), w)[0]
    assert torch.equal(found, torch.autograd.grad((inner(x) * w).sum(), w)[0])


def test_checkpointing_saved_object_identity():
    seen = Log()

    class Test(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(y)
            return x

        @staticmethod
        def backward(ctx, grad):
            seen.append(ctx.saved_tensors[0])
            return grad, None

    a, b = leaf(()), rand(())
    Test.apply(a, b).backward()
    remat.checkpoint(Test.apply, a, b).backward()
    plain, found = seen
    assert plain is b
    assert found.data_ptr() == b.data_ptr()


def test_checkpointing_correct_grad():
    a, b = leaf(2, 2), leaf(2, 2)
    softplus = nn.functional.softplus
    remat.checkpoint(lambda x: (x * softplus(x)).sum(), a).backward()
    (b * softplus(b)).sum().backward()
    assert torch.equal(a.grad, b.grad)


def test_checkpointing_custom_function_works():
    class Mul(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y, z):
            w, out = x * y * z, x * y + z
            ctx.save_for_backward(x, y, z, w, out)
            return w, out

        @staticmethod
        def backward(ctx, one, two):
            x, y, z, *_ = ctx.saved_tensors
            assert all(map(torch.equal, ctx.saved_tensors, (x, y, z, x * y * z, x * y + z)))  # a second time
            return one * y * z + two * y, one * x * z + two * x, one * x * y + two

    inputs = [leaf(3, seed=seed) for seed in range(3)]

    def total(run):
        w, out = run(Mul.apply, *inputs)
        return torch.autograd.grad((w * out).sum(), inputs)

    assert all(map(torch.equal, total(remat.checkpoint), total(lambda fn, *args: fn(*args))))


@pytest.mark.parametrize("requires_grad", [True, False])
def test_checkpointing_input_requires_grad(requires_grad):
    module, x = model(), rand(4, 6).requires_grad_(requires_grad)
    found = [torch.autograd.grad(run(x).sum(), list(module.parameters())) for run in (remat.drop(module), module)]
    assert all(map(torch.equal, *found))


def test_checkpointing_arbitrary_input_output():
    module = nn.Linear(5, 5, bias=False).double()

    def fn(values):
        return {"out": module(values["x"]), "number": values["n"], "same": values["x"]}

    x = leaf(1, 5)
    out = remat.checkpoint(fn, {"x": x, "n": 3})
    assert out["number"] == 3
    out["out"].sum().backward()
    assert torch.equal(x.grad, module.weight.sum(0, keepdim=True).detach())
    assert module.weight.grad is not None


def test_checkpointing_detached_tensor():
    """A part of the segment has no gradient: nothing is recomputed for it, and the rest has its gradient."""
    torch.manual_seed(0)
    first, second = nn.Linear(10, 50).double(), nn.Linear(50, 20).double()

    def fn(x):
        with torch.no_grad():
            middle = first(x)
        assert not middle.requires_grad
        return second(middle)

    remat.checkpoint(fn, leaf(1, 10)).sum().backward()
    assert first.weight.grad is None
    assert second.weight.grad is not None
    assert not remat.checkpoint(lambda x: fn(x).detach(), leaf(1, 10)).requires_grad


def test_checkpoint_compile_no_recompile():
    torch._dynamo.reset()
    compilations = Log()

    def backend(graph, inputs):
        compilations.append("compiled")
        return graph.forward

    fn = remat.drop(torch.compile(lambda x: x.sin().cos(), backend=backend))
    for _ in range(3):
        x = leaf(4)
        fn(x).sum().backward()
        assert torch.allclose(x.grad, -x.sin().sin() * x.cos())
    assert len(compilations) <= 2  # the graph of the first run is not compiled anew for the recomputations
    torch._dynamo.reset()


@pytest.mark.parametrize("change", ["fewer", "more", "dtype", "shape"])
def test_checkpoint_detects_non_determinism(change):
    runs = Log()

    def fn(x):
        runs.append("run")
        if len(runs) == 1:
            return x.sin().sin()
        return {
            "fewer": lambda: x.sin(),
            "more": lambda: x.sin().sin().exp().sum(),
            "dtype": lambda: x.sin().float().sin(),
            "shape": lambda: x.sin()[:2].sin(),
        }[change]()

    out = remat.drop(fn, early_stop=False)(leaf(3))
    with pytest.raises(remat.DeterminismError, match="gave something else when it was recomputed"):
        out.sum().backward()


def test_access_saved_tensor_twice_without_recomputation():
    """Recomputed tensors live within one backward; looking at one outside of it recomputes each time."""
    runs = Log()

    def foo(a):
        runs.append("run")
        b = a * a
        return torch.exp(a * b)

    out = remat.checkpoint(foo, leaf(5))
    assert len(runs) == 1
    _ = out.grad_fn._saved_result
    assert len(runs) == 2
    _ = out.grad_fn._saved_result
    assert len(runs) == 3
    out.sum().backward()
    assert len(runs) == 4
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        _ = out.grad_fn._saved_result

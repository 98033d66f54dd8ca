"""What is refused in checkpoints on PyTorch: functions that do not repeat themselves, writing, wrong options."""

import functools

import pytest
import torch
from torch import nn

import remat
from tests.frameworks.torch.segments.checkpoint_programs import (
    A,
    block,
    leaf,
    rand,
)
from tests.frameworks.untracked import Box


def test_a_segment_that_is_not_deterministic_is_an_error_that_names_what_changed():
    state = Box(0)

    def counts(x):
        state.value += 1
        return (x * state.value).sin().exp()

    with pytest.raises(remat.DeterminismError, match=r"counts.*tensor 0 of the \d+.*float64\[3\].*relative difference"):
        remat.checkpoint(counts, leaf(3)).sum().backward()

    def never(x):
        state.value += 1
        return (x * state.value).sin().exp()

    remat.drop(never, check="never")(leaf(3)).sum().backward()


def test_other_shapes_and_other_numbers_of_tensors_are_errors_without_a_check_of_values():
    again = Box(False)

    def shape(x):
        y = x[:2] if again.value else x
        return y.sin().sum()

    def fewer(x):
        return x.sin() if again.value else x.sin().exp().cos()

    def more(x):
        return x.sin().exp().cos() if again.value else x.sin()

    for fn, message in (
        (shape, r"float64\[3\] and became float64\[2\]"),
        (fewer, "saved 3 .* and then 1"),
        (more, "1"),
    ):
        again.value = False
        y = remat.drop(fn, check="never", early_stop=False)(leaf(3)).sum()
        again.value = True
        with pytest.raises(remat.DeterminismError, match=message):
            y.backward()


def test_parameters_that_changed_before_the_backward_are_an_error():
    module = block()
    y = remat.drop(module, check="never")(leaf(2, 4)).sum()
    with torch.no_grad():
        module[2].weight.mul_(2)
    with pytest.raises(remat.StepError, match=r"parameter.*float64\[4, 4\].*version 1, now 2"):
        y.backward()


def test_inputs_that_are_written_into_are_an_error():
    x = leaf(3)
    for fn in (lambda h: h.add_(1).sin(), lambda h: h.sin().exp()):
        h = x * 1
        y = remat.checkpoint(fn, h).sum()
        h.add_(1)
        with pytest.raises(remat.StepError, match="written into"):
            y.backward()


def test_errors_of_the_function_are_the_users_own():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        remat.checkpoint(fails, leaf(3))

    def later(x):
        if remat.is_recomputing():
            raise KeyError("later")
        return x.sin().exp()

    with pytest.raises(KeyError) as info:
        remat.checkpoint(later, leaf(3)).sum().backward()
    assert "recomputed" in info.value.__notes__[0]


@pytest.mark.parametrize("option", ["use_reentrant", "preserve_rng_state", "determinism_check", "context_fn"])
def test_options_of_torchs_own_checkpoint_are_refused_in_words(option):
    with pytest.raises(remat.StepError, match=f"needs no {option}="):
        remat.checkpoint(torch.nn.Linear(2, 2), A, **{option: False})

    def takes(x, **options):
        return x.sin()

    assert torch.equal(remat.checkpoint(takes, A, **{option: False}), A.sin())


def test_a_changed_tensor_is_named_even_where_an_operator_meets_it():
    module, x = nn.Linear(4, 4, bias=False).double(), leaf(2, 4)
    y = remat.drop(lambda x: x.sin() @ module.weight, check="never")(x).sum()
    with torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(remat.StepError, match="parameter"):
        y.backward()


@pytest.mark.parametrize("check", ["always", "never"])
def test_a_parameter_that_is_written_into_is_an_error_whatever_is_saved(check):
    w, other = leaf(3), leaf(3, seed=1)
    held = [w, other]
    run = remat.drop(lambda x: x * held[0].sigmoid(), check=check)
    y, z = run(leaf(3)), run(leaf(3))
    with torch.no_grad():
        other.add_(1)  # which the function finds and does not use
    y.sum().backward()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(remat.StepError, match=r"parameter that it uses \(float64\[3\], version 0, now 1\)"):
        z.sum().backward()


def test_data_that_is_written_into_is_an_error_where_it_is_saved():
    module = nn.Module()
    module.mask = rand(3)
    y = remat.drop(lambda x: (x * module.mask).sin(), check="never")(leaf(3))
    module.mask.mul_(2)
    with pytest.raises(remat.StepError, match="written into since"):
        y.sum().backward()


@pytest.mark.parametrize("given", [False, True])
def test_a_function_may_write_into_data_in_its_first_run_only(given):
    count = torch.zeros(())

    def fn(x, seen=None):
        if not remat.is_recomputing():
            (count if seen is None else seen).add_(1)
        return x.sin().exp()

    x = leaf(3)
    sum(remat.checkpoint(fn, x, *([count] if given else [])).sum() for _ in range(3)).backward()
    assert count == 3
    assert torch.allclose(x.grad, 3 * x.cos() * x.sin().exp())


def test_writing_into_what_was_saved_is_an_error_as_it_is_plainly():
    def writes(x):
        h = x.exp()
        y = h.sin()
        h.mul_(2)
        return y

    for run in (remat.checkpoint, functools.partial(remat.adaptive_checkpoint, threshold=1000)):
        with pytest.raises(remat.StepError, match="by it, after it was saved"):
            run(writes, leaf(3)).sum().backward()

    x = leaf(3)
    y = remat.checkpoint(lambda x: x.sin().exp(), x)  # a result is the caller's, and is computed again
    y.mul_(2)
    y.sum().backward()
    assert torch.allclose(x.grad, 2 * x.cos() * x.sin().exp())


def test_only_a_comparison_of_all_that_is_saved_counts_as_the_first():
    state = Box(1)

    def fn(x):
        return x.sin(), (x * state.value).exp()

    x = leaf(3)
    for _ in range(2):
        first, second = remat.checkpoint(fn, x)
        del second
        first.sum().backward()
    y = remat.checkpoint(fn, x)[1].sum()
    state.value = 2
    with pytest.raises(remat.DeterminismError):
        y.backward()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_noise_that_an_operator_fills_after_saving_it_is_drawn_before_the_recomputation_stops(training):
    """nn.RReLU saves its noise first and fills it then; in eval it never does."""
    layer, x = torch.nn.RReLU().train(training), leaf(3, 6)
    torch.manual_seed(0)
    (expected,) = torch.autograd.grad(layer(x).sum(), x)
    for check in ("never", "always"):
        for _ in range(5):
            junk = [rand(3, 6, seed=seed) for seed in range(20)]  # so that new memory is not all zeros
            del junk
            torch.manual_seed(0)
            (found,) = torch.autograd.grad(remat.drop(layer, check=check)(x).sum(), x)
            assert torch.equal(found, expected)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_noise_that_is_saved_before_it_is_drawn_or_never_drawn_is_work_space_in_a_loop_too(training):
    layer = torch.nn.RReLU().train(training)

    def run(x):
        return remat.scan(lambda h, _: (layer(h) * 1.1, None), x, length=4, slots=2)[0]

    def gradient(call):
        torch.manual_seed(0)
        x = torch.randn(64, 9, requires_grad=True)
        first = call(x)
        garbage = [torch.full((64, 9), float(k)) for k in range(1, 40)]  # the memory that noise is left in
        del garbage
        return torch.autograd.grad(first.sin().sum(), x)[0]

    for _ in range(5):
        assert torch.equal(gradient(lambda x: remat.checkpoint(run, x)), gradient(run))


@pytest.mark.parametrize("rows", [10, 40_000], ids=["copied", "checksum"])
@pytest.mark.parametrize("how", ["checkpoint", "drop"])
def test_a_parameter_into_which_the_segment_writes_its_own_numbers_has_not_changed(rows, how):
    """nn.Embedding(max_norm) scales rows of its weight down in each forward."""

    def gradient(wrapped):
        torch.manual_seed(0)
        layer, index = nn.Embedding(rows, 8, max_norm=1.0), torch.randint(0, rows, (3, 5))
        run = (
            layer if not wrapped else remat.drop(layer) if how == "drop" else functools.partial(remat.checkpoint, layer)
        )
        layer(index)
        (run(index).sin().sum() + run(index).cos().sum()).backward()
        return layer.weight.grad, layer.weight.detach()

    for found, wanted in zip(gradient(True), gradient(False), strict=True):
        assert torch.equal(found, wanted)


def test_other_rows_that_are_scaled_down_by_a_later_call_do_no_harm():
    def gradient(call):
        torch.manual_seed(0)
        layer = nn.Embedding(10, 4, max_norm=1.0)
        (call(layer, torch.arange(5)).sin().sum() + call(layer, torch.arange(3, 9)).cos().sum()).backward()
        return layer.weight.grad, layer.weight.detach()

    wanted = gradient(lambda layer, index: layer(index))
    for one, other in zip(gradient(remat.checkpoint), wanted, strict=True):
        assert torch.equal(one, other)


def test_a_large_parameter_that_the_segment_and_others_write_into_is_an_error():
    layer, index = nn.Embedding(40_000, 8, max_norm=1.0), torch.arange(5)
    out = remat.checkpoint(lambda index: layer(index).sin(), index).sum()
    with torch.no_grad():
        layer.weight[39_999, 7] += 1e-6
    with pytest.raises(remat.errors.StepError, match="a parameter that it uses"):
        out.backward()


def test_the_advice_names_dropout_inside_of_cudnn_which_nobody_can_set_back():
    state = Box(0)

    def counts(x):
        state.value += 1
        return (x * state.value).sin()

    with pytest.raises(remat.errors.DeterminismError, match="the dropout inside cuDNN's RNNs"):
        remat.checkpoint(counts, leaf(3)).sum().backward()


def test_a_threshold_in_the_place_of_an_argument_of_a_builtin_is_noted():
    with pytest.raises(TypeError) as caught:
        remat.adaptive_checkpoint(torch.relu, torch.ones(3, requires_grad=True), 10240)
    assert "remat.adaptive_checkpoint(fn, ..., threshold=10240)" in caught.value.__notes__[0]

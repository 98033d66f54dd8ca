"""The ways in which a layer of torch.nn is run, plainly and with remat, and all that a run leaves."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import remat
from tests.frameworks.torch.layer_cases import CASES, Case, User
from tests.frameworks.torch.programs import leaves_of, weigh

Way = Callable[..., Any]


def _nested(module):
    return remat.drop(User(remat.drop(module), lambda part, *inputs: part(*inputs)))


def _twice(call):
    """Two calls before the backward of either, as where one layer is used in two places."""
    return lambda module, *inputs: (call(module, *inputs), call(module, *inputs))


def _plain(module, *inputs):
    return module(*inputs)


WAYS: dict[str, tuple[Way, Way]] = {  # plain, and with remat
    "checkpoint": (_plain, remat.checkpoint),
    "drop": (_plain, lambda module, *inputs: remat.drop(module)(*inputs)),
    "drop in drop": (_plain, lambda module, *inputs: _nested(module)(*inputs)),
    "drop in checkpoint": (_plain, lambda module, *inputs: remat.checkpoint(remat.drop(module), *inputs)),
    "checkpoint twice": (_twice(_plain), _twice(remat.checkpoint)),
}


STEPS = 5


def loops():
    """The cases that have a recurrent form: cells, recurrent layers on sections of a sequence, and layers whose output
    has the shape of their input, which take the last output and a new input together."""
    for case in CASES:
        if case.layer in ("RNNCell", "GRUCell"):
            yield Case(case.name, case.make, ((3, 6), (STEPS, 3, 4))), _cell
        elif case.layer == "LSTMCell":
            yield Case(case.name, case.make, ((3, 6), (3, 6), (STEPS, 3, 4))), _lstm_cell
        elif case.layer in ("RNN", "GRU", "LSTM"):
            if "two layers" in case.name:
                yield Case(case.name, case.make, ((4, 3, 3), (4, 3, 3), (STEPS, 3, 2, 4))), _sections
            elif case.layer == case.name:
                yield Case(case.name, case.make, ((1, 3, 6), (1, 3, 6), (STEPS, 2, 3, 4))), _sections
        elif keeps_shape(case):
            yield Case(case.name, case.make, (*case.inputs, (STEPS, *case.inputs[0]))), _repeated


def keeps_shape(case):
    if callable(case.inputs[0]):
        return False
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some layers are deprecated
        out = case.make()(*(_input(made, False, "cpu") for made in case.inputs))
    return isinstance(out, torch.Tensor) and out.shape == case.inputs[0]


def _cell(run, module, h, xs):
    return run(lambda h, x: (module(x, h),) * 2, h, xs)


def _lstm_cell(run, module, h, c, xs):
    def step(carry, x):
        carry = module(x, *carry)
        return carry, carry[0]

    return run(step, (h, c), xs)


def _sections(run, module, h, c, xs):
    def step(state, x):
        out, state = module(x, state)
        return state, out

    return run(step, (h, c) if isinstance(module, nn.LSTM) else h, xs)


def _repeated(run, module, first, *rest):
    *rest, xs = rest
    rest = [value * 1 if value.requires_grad else value for value in rest]  # made tensors, as an encoder's output is

    def step(carry, x):
        out = module(carry + x, *rest)
        return out, out.sin().mean()

    return run(step, first, xs)


def within_least_memory(step, init, xs):
    """The loop in the smallest budget that works, as the error about too small a one says."""
    try:
        return remat.scan(step, init, xs, memory=1)
    except remat.InfeasibleError as error:
        return remat.scan(step, init, xs, memory=error.minimum)


SCANS: dict[str, Way] = {
    "one slot": lambda step, init, xs: remat.scan(step, init, xs, slots=1),
    "three slots": lambda step, init, xs: remat.scan(step, init, xs, slots=3),
    "memory": within_least_memory,
    "scan in checkpoint": lambda step, init, xs: remat.checkpoint(
        lambda init, xs: remat.scan(step, init, xs, slots=2), init, xs
    ),
    "drop in scan": lambda step, init, xs: remat.scan(remat.drop(step), init, xs, slots=2),
}


def outcome(case, way, *, dtype=torch.float64, training=True, wants=True, device="cpu"):
    """All that a forward and a backward leave, by name; what is not there is None."""
    torch.manual_seed(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        module = case.make().to(device).train(training)
        inputs = [_input(made, wants, device) for made in case.inputs]
    finally:
        torch.set_default_dtype(before)
    torch.manual_seed(2)
    result = way(module, *inputs)
    loss = weigh(result)
    if loss.requires_grad:
        loss.backward()
    found = {f"output {k}": leaf.detach() for k, leaf in enumerate(leaves_of(result))}
    found |= {f"output {k} wants": torch.tensor(leaf.requires_grad) for k, leaf in enumerate(leaves_of(result))}
    found |= {f"input {k}": value.detach() for k, value in enumerate(inputs)}
    found |= {f"gradient of input {k}": value.grad for k, value in enumerate(inputs)}
    found |= {f"gradient of {name}": value.grad for name, value in module.named_parameters()}
    found |= {f"{name} afterwards": value.detach() for name, value in module.state_dict().items()}
    return found | {"generator": torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()}


def _input(made, wants, device):
    if callable(made):
        return made().to(device)
    return torch.randn(made).to(device).requires_grad_(wants)


def differences(found, expected, tolerance=0.0):
    """The names of what is not as expected: to the last bit, or relative to the largest number."""
    names = [name for name in expected if name not in found] + [name for name in found if name not in expected]
    for name in expected.keys() & found.keys():
        a, b = found[name], expected[name]
        if (a is None) != (b is None) or (a is not None and not _same(a, b, tolerance)):
            names.append(name)
    return sorted(names)


def _same(a, b, tolerance):
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    a, b = a.to_dense(), b.to_dense()
    if torch.equal(a, b) or (torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())):
        return True
    scale = b.abs().max().clamp(min=1e-30)
    return bool(a.is_floating_point() and (a - b).abs().max() <= tolerance * scale)

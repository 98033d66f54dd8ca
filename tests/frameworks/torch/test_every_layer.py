"""Every layer of torch.nn as a segment, inside others, and as the step of a loop, which leave what plain calls leave.

Outputs, gradients, buffers, inputs and the generator afterwards are compared to the last bit. A layer that is new in
torch.nn and has no case in `layer_cases` fails the first test.
"""

import inspect
import warnings
from itertools import product

import pytest
import torch
from torch import nn

from tests.frameworks.torch.layer_cases import CASES, NO_LAYERS
from tests.frameworks.torch.layer_runs import SCANS, WAYS, differences, loops, outcome
from tests.frameworks.torch.programs import plain_scan

LOOPS = list(loops())
HAS_BFLOAT16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
ATTENTION = ("MultiheadAttention", "Transformer")  # their kernels for bfloat16 crash on some CPUs: tested on a GPU

SINGLE, DOUBLE = torch.float32, torch.float64
# dtype, training, whether inputs want gradients
CORNERS = [(DOUBLE, True, True), (DOUBLE, False, False), (SINGLE, True, False), (torch.bfloat16, True, True)]
REST = [how for how in product((DOUBLE, SINGLE, torch.bfloat16), (True, False), (True, False)) if how not in CORNERS]

BOTH = "drop in checkpoint"

# Where steps that are recorded and steps that are not run other kernels, which round differently.
OTHER_KERNELS = ("Transformer", "MultiheadAttention", "LSTM")


@pytest.fixture(autouse=True)
def no_warnings():
    """Some layers are deprecated, or warn that they take a slower path."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_every_layer_has_a_case():
    layers = {name for name, value in vars(nn).items() if inspect.isclass(value) and issubclass(value, nn.Module)}
    assert layers - NO_LAYERS.keys() == {case.layer for case in CASES}
    assert len(LOOPS) > 100


def has_kernel(case, dtype, training):
    """Whether plain PyTorch runs the layer in this dtype; it runs all of them in float32 and float64."""
    if dtype is not torch.bfloat16:
        return True
    if not HAS_BFLOAT16 or case.layer.startswith(ATTENTION):
        return False
    try:
        outcome(case, WAYS["checkpoint"][0], dtype=dtype, training=training)
    except RuntimeError as error:
        return "not implemented" not in str(error)
    return True


def segment_mistakes(case, hows, ways=tuple(WAYS)):
    for dtype, training, wants in hows:
        if not has_kernel(case, dtype, training):
            continue
        options = {"dtype": dtype, "training": training, "wants": wants}
        expected = {plain: outcome(case, plain, **options) for plain in {WAYS[way][0] for way in ways}}
        for way in ways:
            plain, ours = WAYS[way]
            wrong = differences(outcome(case, ours, **options), expected[plain])
            if wrong:
                yield way, options, wrong


def loop_mistakes(case, form, hows, ways):
    for dtype, training, wants in hows:
        options = {"dtype": dtype, "training": training, "wants": wants}
        expected = outcome(case, lambda *inputs: form(plain_scan, *inputs), **options)
        tolerance = 256 * torch.finfo(dtype).eps if case.layer.startswith(OTHER_KERNELS) else 0
        for way in ways:
            found = outcome(case, lambda *inputs, scan=SCANS[way]: form(scan, *inputs), **options)
            wrong = differences(found, expected, tolerance)
            if wrong:
                yield way, options, wrong


each_case = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
each_loop = pytest.mark.parametrize(
    ("case", "form"),
    [pytest.param(case, form, id=case.name) for case, form in LOOPS],
)


@each_case
def test_segments(case):
    """The first corner in every way, the others in that which has both a dropped module and a checkpoint."""
    assert not list(segment_mistakes(case, CORNERS[:1]))
    assert not list(segment_mistakes(case, CORNERS[1:], [BOTH]))


@pytest.mark.full
@each_case
def test_segments_in_all_ways(case):
    assert not list(segment_mistakes(case, CORNERS[1:], [way for way in WAYS if way != BOTH]))
    assert not list(segment_mistakes(case, REST))


@each_loop
def test_loops(case, form):
    assert not list(loop_mistakes(case, form, [(DOUBLE, True, True)], SCANS))
    assert not list(loop_mistakes(case, form, [(SINGLE, False, False)], ["three slots"]))


@pytest.mark.full
@each_loop
def test_loops_in_all_ways(case, form):
    hows = [how for how in product((DOUBLE, SINGLE), (True, False), (True, False)) if how != (DOUBLE, True, True)]
    assert not list(loop_mistakes(case, form, hows, SCANS))

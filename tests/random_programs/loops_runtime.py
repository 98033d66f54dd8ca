"""How random loops are run: on NumPy by autograd or on PyTorch, and in their plain form always on PyTorch."""

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import autograd
import autograd.numpy as anp
import numpy
import torch

from tests.random_programs.observe import Seen, global_state, observed
from tests.random_programs.plain import Plain
from tests.random_programs.verdict import Program

rng = numpy.random.default_rng(0)
X, W = rng.normal(size=4) * 0.5, rng.normal(size=(4, 4)) * 0.6

plain = Plain(torch.stack)


def run(program: Program, remat: Any) -> list[Seen]:
    """The results of the program's function and their kinds, the gradients, and what it has printed."""
    if isinstance(remat, Plain):
        program = replace(program, text=program.text.replace("import numpy as np", "import torch as np"))
    on_torch = "import torch as np" in program.text
    scale = 1 + getattr(remat, "noise", 0.0)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), _doubles():
        function = program.loaded(remat)["f"]
        results, gradients = (_torch if on_torch else _numpy)(function, X * scale, W * scale)
    kinds = [type(each).__name__ if type(each) in (int, float) else "array" for each in results]
    numbers = [_number(each) for each in results]
    seen = [*observed("result", numbers), *(Seen(f"{k}.grad", each) for k, each in enumerate(gradients))]
    return [*seen, Seen("kinds", " ".join(kinds)), Seen("printed", printed.getvalue()), *global_state(torch)]


@contextlib.contextmanager
def _doubles() -> Iterator[None]:
    """PyTorch makes arrays of doubles, as NumPy does."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _torch(function: Any, *inputs: numpy.ndarray) -> tuple[Sequence[Any], list[numpy.ndarray]]:
    tensors = [torch.tensor(each, requires_grad=True) for each in inputs]
    results = function(*tensors)
    total: Any = sum(tensor.sum() * 0 for tensor in tensors)
    for k, each in enumerate(results):
        total = total + (each * torch.tensor(_weights(each, k))).sum()
    total.backward()
    return results, [tensor.grad.numpy() for tensor in tensors]


def _numpy(function: Any, *inputs: numpy.ndarray) -> tuple[Sequence[Any], list[numpy.ndarray]]:
    found: list[Any] = []

    def loss(x: Any, w: Any) -> Any:
        found[:] = function(x, w)
        return anp.sum(x) * 0 + anp.sum(w) * 0 + sum(anp.sum(each * _weights(each, k)) for k, each in enumerate(found))

    return found, list(autograd.grad(loss, (0, 1))(*inputs))


def _weights(value: Any, number: int) -> numpy.ndarray:
    """Other weights for each result and each of its items, so that none can stand for another."""
    shape = tuple(getattr(value, "shape", ()))
    return (numpy.cos(numpy.arange(math.prod(shape)) + number) + 1.5).reshape(shape)


def _number(value: Any) -> Any:
    value = getattr(value, "_value", value)
    return numpy.asarray(value.detach() if isinstance(value, torch.Tensor) else value, float)

"""PyTorch."""

import contextlib
import random
import types
import warnings
import weakref

import numpy
import torch
import torch.autograd.forward_ad as forward
from torch.utils._python_dispatch import TorchDispatchMode

from .adapter import Adapter
from .trees import flatten, leaves_of

__all__ = ["PyTorch"]


def _tensor(value):
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=torch.float64)


def _of_tensors(function):
    return lambda *values: function(*map(_tensor, values))


np = types.SimpleNamespace(
    **{
        name: _of_tensors(getattr(torch, name)) for name in ("sin", "cos", "tanh", "exp", "sqrt", "conj", "real", "abs")
    },
    imag=lambda x: x.imag if x.is_complex() else torch.zeros_like(x),
    sum=_of_tensors(torch.sum),
    mean=_of_tensors(torch.mean),
    dot=torch.matmul,
    stack=lambda values: torch.stack([torch.as_tensor(value) for value in values]),
    concatenate=torch.cat,
    where=torch.where,
    roll=torch.roll,
    logical_not=torch.logical_not,
    isfinite=torch.isfinite,
    float32=torch.float32,
    float64=torch.float64,
    astype=lambda x, dtype: x.to(getattr(torch, dtype)),
)


class PyTorch(Adapter):
    name = "torch"
    own = torch
    np = np
    exact = ("rnn", "lstm")
    any_plan: dict = {}  # noqa: RUF012
    generators = {  # noqa: RUF012
        "global NumPy": lambda: lambda: float(numpy.random.normal()),
        "global Python": lambda: lambda: random.gauss(0.0, 1.0),
        "private NumPy": lambda: (lambda rng: lambda: float(rng.normal()))(numpy.random.default_rng(3)),
        "private RandomState": lambda: (lambda rng: lambda: float(rng.normal()))(numpy.random.RandomState(3)),
        "private Python": lambda: (lambda rng: lambda: rng.gauss(0.0, 1.0))(random.Random(3)),
        "global PyTorch": lambda: lambda: torch.randn((), dtype=torch.float64),
        "dropout": lambda: lambda: torch.nn.functional.dropout(torch.ones(2, 4, dtype=torch.float64), 0.4),
        "private PyTorch": lambda: (lambda rng: lambda: torch.randn((), dtype=torch.float64, generator=rng))(
            torch.Generator().manual_seed(3)
        ),
    }

    @contextlib.contextmanager
    def settings(self, quick=True):
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)

    def array(self, value, dtype="float64"):
        return torch.tensor(numpy.asarray(value), dtype=getattr(torch, dtype))

    def to_numpy(self, array):
        return array.detach().resolve_conj().numpy() if isinstance(array, torch.Tensor) else numpy.asarray(array)

    def value_and_gradient(self, loss, *args, compiled=False):
        leaves, back = self.split(args)
        leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
        value = loss(*back(leaves))
        if not value.requires_grad:
            return self.to_numpy(value), [self.to_numpy(torch.zeros_like(leaf)) for leaf in leaves]
        found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        return self.to_numpy(value), [self.to_numpy(part) for part in found]

    def value(self, function, *args):
        return [self.to_numpy(leaf) for leaf in leaves_of(function(*args))]

    def grad(self, function):
        def gradient(x):
            x = x if x.requires_grad else x.detach().requires_grad_()
            return torch.autograd.grad(function(x), x, create_graph=True)[0]

        return gradient

    def jvp(self, function, x, tangent):
        with warnings.catch_warnings(), forward.dual_level():
            warnings.simplefilter("ignore", DeprecationWarning)  # of PyTorch's own
            return forward.unpack_dual(function(forward.make_dual(x.detach(), tangent))).tangent

    def vjp(self, function, x):
        x = x.detach().clone().requires_grad_()
        value = function(x)
        return lambda cotangent: torch.autograd.grad(value, x, cotangent, retain_graph=True)[0]

    def jacobian(self, function, x):
        return torch.autograd.functional.jacobian(function, x)

    def hessian(self, function, x):
        return torch.autograd.functional.hessian(function, x)

    def plain_scan(self, step, init, xs=None, length=None):
        """Inputs are unbound, so that their gradients are added up once."""
        leaves, build = flatten(xs)
        rows = list(zip(*[leaf.unbind(0) for leaf in leaves], strict=True)) if leaves else [()] * length
        carry, ys = init, []
        for row in rows:
            carry, y = step(carry, build(row))
            ys.append(flatten(y))
        columns = zip(*[row for row, _ in ys], strict=True)
        return carry, ys[0][1]([torch.stack([torch.as_tensor(leaf) for leaf in column]) for column in columns])

    def peak(self, function, *args):
        with Storages() as storages:
            self.gradient(function, *args)
        return storages.peak

    def storage(self, array):
        return array.untyped_storage()

    def is_traced(self, value):
        return isinstance(value, torch.Tensor) and value.requires_grad

    def is_differentiable(self, leaf):
        return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


class Storages(TorchDispatchMode):
    """Counts the bytes of the storages that operators make, as long as they live."""

    def __init__(self):
        super().__init__()
        self.seen, self.now, self.peak = weakref.WeakSet(), 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        given = {id(t.untyped_storage()) for t in leaves_of(list(args)) if isinstance(t, torch.Tensor)}
        for tensor in leaves_of(found if isinstance(found, tuple | list) else (found,)):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in given and storage not in self.seen:
                    self.seen.add(storage)
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self.free, storage.nbytes())
        return found

    def free(self, size):
        self.now -= size

"""A framework is one module and one line in the registry: here is one of thirty lines, for arrays of its own."""

import gc
import sys
import weakref
from types import ModuleType

import autograd.numpy as np
import numpy
import pytest
from autograd import grad

import remat
from remat import frameworks
from remat.frameworks import framework_registry
from remat.frameworks.framework_protocol import FrameworkTraits


class Dual:
    """An array of a small framework: numbers and their slopes."""

    def __init__(self, value, slope=0.0):
        self.value, self.slope = value, slope

    def __mul__(self, other):
        other = other if isinstance(other, Dual) else Dual(other)
        return Dual(self.value * other.value, self.value * other.slope + self.slope * other.value)


@pytest.fixture
def fake(monkeypatch):
    """A framework that runs everything plainly, and says what it was asked for."""
    package, module = ModuleType("duals"), ModuleType("remat_duals")
    package.Dual = Dual
    module.calls = []

    def scan(step, init, xs, length, request, vjp=None, rows=None, driven=False):
        module.calls.append(("scan", request.memory.device.slots))
        for _ in range(length):
            init, _ = step(init, None)
        return init, None

    def while_loop(cond, body, init, max_steps, request):
        module.calls.append(("while_loop", max_steps))
        while cond(init):
            init = body(init)
        return init

    def checkpoint(fn, args, kwargs, options, call=None):
        module.calls.append(("checkpoint", options.check))
        return fn(*args, **kwargs)

    members = {
        "TRAITS": FrameworkTraits("duals", "Duals", (Dual,), (Dual,), (Dual,), mixes=False, conversion="duals.Dual(x)"),
        "owns": lambda leaf: False, "is_module": lambda fn: False, "is_tracing": lambda: False,
        "free_bytes": lambda *values: None, "scan": scan, "while_loop": while_loop, "checkpoint": checkpoint,
    }  # fmt: skip
    for name, member in members.items():
        setattr(module, name, member)
    monkeypatch.setattr(framework_registry, "REGISTRY", list(framework_registry.REGISTRY))
    monkeypatch.setattr(framework_registry, "_OWNERS", {})
    monkeypatch.setattr(framework_registry, "_FRAMEWORKS", {})
    frameworks.register("duals", "Dual", "remat_duals")
    monkeypatch.setitem(sys.modules, "duals", package)
    monkeypatch.setitem(sys.modules, "remat_duals", module)
    return module


def test_loops_and_segments_go_to_the_framework_of_their_arrays(fake):
    carry, _ = remat.scan(lambda c, _: (c * c, None), Dual(2.0, 1.0), length=3, slots=2)
    assert (carry.value, carry.slope) == (256.0, 8 * 2.0**7)
    assert remat.while_loop(lambda c: c.value < 10, lambda c: c * 2.0, Dual(1.0, 1.0), slots=1).value == 16.0
    assert remat.checkpoint(lambda c: c * 3.0, Dual(2.0)).value == 6.0
    assert fake.calls == [("scan", 2), ("while_loop", None), ("checkpoint", "first")]


def test_what_a_step_captures_decides_where_numbers_do_not(fake):
    rate = Dual(3.0)
    remat.scan(lambda c, _: (rate * c, None), 1.0, length=2, slots=1)
    remat.checkpoint(lambda c: rate * c, 1.0)
    assert [what for what, _ in fake.calls] == ["scan", "checkpoint"]


def test_arrays_that_do_not_mix_are_an_error_with_advice(fake):
    torch = pytest.importorskip("torch")
    with pytest.raises(remat.StepError, match=r"one of Duals \(.*Dual\) and one of PyTorch .*duals.Dual\(x\)"):
        remat.checkpoint(lambda a, b: a, Dual(1.0), torch.ones(2))
    assert fake.calls == []


def test_others_are_as_before(fake):
    assert frameworks.find_framework(numpy.ones(2)).TRAITS.name == "numpy"
    assert fake.calls == []
    result = remat.checkpoint(numpy.sin, numpy.zeros(2))
    assert result.tolist() == [0.0, 0.0]


def test_a_policy_is_refused_where_there_are_none(fake):
    with pytest.raises(remat.ProblemError, match="policy= is for JAX, and this runs on duals"):
        remat.drop(lambda c: c, policy="dots_saveable")(Dual(1.0))


def test_a_framework_that_cannot_be_used_is_not_in_the_way_of_others(monkeypatch):
    monkeypatch.setattr(framework_registry, "REGISTRY", list(framework_registry.REGISTRY))
    monkeypatch.setattr(framework_registry, "_OWNERS", {})
    monkeypatch.setattr(framework_registry, "_FRAMEWORKS", {})
    package = ModuleType("too_old")
    package.Array = Dual
    monkeypatch.setitem(sys.modules, "too_old", package)
    frameworks.register("too_old", "Array", "remat_has_no_such_module")
    assert remat.checkpoint(numpy.sin, numpy.zeros(2)).tolist() == [0.0, 0.0]
    assert remat.drop(numpy.cos)(0.0) == 1.0
    with pytest.raises(ImportError, match="remat_has_no_such_module"):
        remat.checkpoint(lambda a: a, Dual(1.0))


def test_classes_of_arrays_are_not_kept_alive():
    torch = pytest.importorskip("torch")

    class Mine(torch.Tensor):
        pass

    remat.checkpoint(lambda a: a * 2, torch.ones(2).as_subclass(Mine))
    reference = weakref.ref(Mine)
    del Mine
    gc.collect()
    assert reference() is None


def test_what_is_found_does_not_depend_on_earlier_calls():
    jax = pytest.importorskip("jax")

    @jax.tree_util.register_pytree_node_class
    class Scale:
        def __init__(self, w):
            self.w = w

        def __call__(self, a):
            return np.sum(a * numpy.asarray(self.w))

        def tree_flatten(self):
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    for _ in range(2):
        with pytest.raises(remat.StepError, match="arrays of two frameworks"):
            grad(lambda a: remat.checkpoint(Scale(jax.numpy.ones(3)), a))(numpy.ones(3))


def test_numbers_and_numpy_arrays_are_of_the_framework_whose_functions_the_step_names():
    """As `jax.lax.scan` takes them; autograd's and unnamed functions are NumPy's."""
    jax = pytest.importorskip("jax")
    sin = jax.numpy.sin
    for init in (1.0, numpy.float32(1.0), numpy.ones(2)):
        last, rows = remat.scan(lambda c, _: (jax.numpy.sin(c), c), init, None, length=3, slots=2)
        want = jax.lax.scan(lambda c, _: (sin(c), c), init, None, length=3)
        assert isinstance(last, jax.Array)
        numpy.testing.assert_allclose(last, want[0], rtol=1e-6)
        numpy.testing.assert_allclose(rows, want[1], rtol=1e-6)
    for plain in (np, numpy):
        last = remat.scan(lambda c, _, np=plain: (np.sin(c), c), numpy.ones(2), None, length=3, slots=2)[0]
        assert isinstance(last, numpy.ndarray)

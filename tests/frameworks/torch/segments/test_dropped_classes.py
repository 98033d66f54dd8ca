"""`drop` of modules of many kinds: the dropped module is one of its class, and calls of the original stay plain."""

import abc
import copy
import inspect
import pickle
from typing import Generic, TypeVar

import pytest
import torch
from torch import nn

import remat
from remat.frameworks.torch.segments.checkpointed_module import CheckpointedModule
from tests.frameworks.torch.segments.dropped_modules import (
    INPUT,
    Block,
    assert_same_gradients,
    gradients,
    is_recomputed,
    linear,
    perceptron,
)

T = TypeVar("T")


def test_the_class_of_the_module_is_a_class_of_the_dropped_one():
    dropped = remat.drop(linear())
    assert isinstance(dropped, nn.Linear)
    assert isinstance(dropped, CheckpointedModule)
    assert (type(dropped).__name__, type(dropped).__module__) == ("Linear", nn.Linear.__module__)
    assert repr(dropped) == repr(linear())
    assert inspect.signature(remat.drop(Block()).forward) == inspect.signature(Block().forward)


def test_the_module_itself_stays_plain():
    module = linear()
    dropped = remat.drop(module)
    assert type(module) is nn.Linear
    assert not is_recomputed(module)
    assert is_recomputed(dropped)
    assert vars(dropped) is vars(module)
    assert vars(module).keys() == vars(linear()).keys()


def test_modules_of_one_class_are_of_one_dropped_class():
    assert type(remat.drop(linear())) is type(remat.drop(linear()))
    assert type(remat.drop(linear())) is not type(remat.drop(linear(), early_stop=False))


def test_dropped_containers_are_containers():
    dropped = remat.drop(perceptron())
    assert len(dropped) == 3
    assert next(iter(dropped)) is dropped[0] is dropped.get_submodule("0")
    assert len(dropped[1:]) == 2
    assert torch.equal(dropped[1:](dropped[:1](INPUT)), dropped(INPUT))
    dropped.append(nn.Tanh())
    assert len(dropped) == len(dropped.state_dict()) == 4
    assert len(remat.drop(nn.ModuleList([linear(), linear()]))[:1]) == 1
    assert "a" in remat.drop(nn.ModuleDict({"a": linear()}))


def test_a_second_drop_replaces_the_first():
    dropped = remat.drop(remat.drop(linear(), check="never"), early_stop=False)
    with remat.profile() as run:
        dropped(INPUT).sum().backward()
    assert [each.what for each in run.passes] == ["forward", "recompute", "pullback"]
    assert type(dropped) is type(remat.drop(linear(), early_stop=False))


def test_drops_inside_of_drops():
    dropped = remat.drop(nn.Sequential(remat.drop(perceptron()), nn.Tanh(), remat.drop(linear())))
    assert_same_gradients(dropped, nn.Sequential(perceptron(), nn.Tanh(), linear()))


def test_a_module_that_is_used_plainly_too():
    module = linear()
    both = nn.Sequential(module, nn.Tanh(), remat.drop(module))
    assert_same_gradients(both, nn.Sequential(module, nn.Tanh(), module))
    assert [name for name, _ in both.named_parameters()] == ["0.weight", "0.bias"]
    assert both.float()[0].weight is both[2].weight
    copied = copy.deepcopy(both)
    assert copied[0].weight is copied[2].weight
    assert not is_recomputed(copied[0], INPUT.float())
    assert is_recomputed(copied[2], INPUT.float())


def test_a_class_with_slots():
    class Slotted(nn.Module):
        __slots__ = ("factor",)

        def __init__(self):
            super().__init__()
            self.inner, self.factor = linear(), 3.0

        def forward(self, x):
            return self.inner(x) * self.factor

    module = Slotted()
    assert_same_gradients(remat.drop(module), module)
    assert remat.drop(remat.drop(module)).factor == 3.0


class Forwarding(nn.Module):
    """Attributes that are not found here are those of the child; one cannot be set."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def __setattr__(self, name, value):
        if name == "locked":
            raise AttributeError(name)
        super().__setattr__(name, value)

    def forward(self, x):
        return self.inner(x) * self.weight.sum()


def test_a_class_with_its_own_access_to_attributes():
    module = Forwarding()
    dropped = remat.drop(module)
    assert_same_gradients(dropped, module)
    with pytest.raises(AttributeError, match="locked"):
        dropped.locked = 1
    for other in (copy.copy(dropped), copy.deepcopy(dropped), pickle.loads(pickle.dumps(dropped))):
        assert is_recomputed(other)
        assert_same_gradients(other, module)


class Called(nn.Module):
    """Has no forward."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def __call__(self, x):
        return self.inner(x).tanh().exp()


def test_a_class_with_its_own_call():
    dropped = remat.drop(Called())
    assert_same_gradients(dropped, Called())
    assert is_recomputed(dropped)
    assert is_recomputed(pickle.loads(pickle.dumps(dropped)))


def test_a_class_with_a_metaclass():
    class Marked(type):
        def __call__(cls, *args):
            made = super().__call__(*args)
            made.mark = 2.0
            return made

    class Module(Block, metaclass=Marked):
        def forward(self, x):
            return super().forward(x) * self.mark

    assert_same_gradients(remat.drop(Module()), Module())


def test_an_abstract_class():
    class Abstract(nn.Module, abc.ABC):
        @abc.abstractmethod
        def forward(self, x): ...

    class Concrete(Block, Abstract):
        pass

    dropped = remat.drop(Concrete())
    assert isinstance(dropped, Abstract)
    assert not isinstance(Concrete(), type(dropped))
    assert_same_gradients(dropped, Concrete())


def test_a_class_that_registers_its_subclasses():
    known = {}

    class Registered(nn.Module):
        def __init_subclass__(cls, *, key):
            known[key] = cls

    class Module(Block, Registered, key="module"):
        pass

    assert_same_gradients(remat.drop(Module()), Module())
    assert known == {"module": Module}


def test_a_generic_class():
    class Module(Block, Generic[T]):
        pass

    dropped = remat.drop(Module[int]())
    assert_same_gradients(dropped, Module())
    assert_same_gradients(copy.deepcopy(dropped), Module())


def test_a_class_that_cannot_be_inherited_from_says_what_to_write():
    class Module(nn.Module, dict):
        pass

    with pytest.raises(remat.ProblemError, match=r"cannot make a subclass of .*Module.*remat\.checkpoint\(module"):
        remat.drop(Module())


def test_a_forward_that_is_set_on_the_object():
    before, after = linear(), remat.drop(linear())
    for module in (before, after):
        module.forward = lambda x, forward=module.forward: forward(x).tanh()
    plain = nn.Sequential(linear(), nn.Tanh())
    for dropped in (remat.drop(before), after):
        assert_same_gradients(dropped, plain)
        assert is_recomputed(dropped)


def test_a_forward_that_is_replaced_in_the_class(monkeypatch):
    dropped = remat.drop(Block())
    monkeypatch.setattr(Block, "forward", lambda self, x: self.first(x).tanh())
    assert torch.equal(dropped(INPUT), Block()(INPUT))
    assert is_recomputed(remat.drop(dropped.first))


def test_a_lazy_module_stays_dropped_when_it_has_its_shape():
    module = nn.LazyLinear(6, dtype=torch.float64)
    dropped = remat.drop(module)
    assert is_recomputed(dropped)
    assert isinstance(dropped, nn.Linear)
    assert not isinstance(dropped, nn.LazyLinear)
    assert is_recomputed(dropped)
    assert torch.equal(module(INPUT), dropped(INPUT))


def test_contents_may_refer_to_the_dropped_module():
    dropped = remat.drop(perceptron())
    vars(dropped[0])["parent"] = dropped
    for other in (copy.deepcopy(dropped), pickle.loads(pickle.dumps(dropped))):
        assert other[0].parent is other
        assert is_recomputed(other)
    assert copy.copy(dropped)[0] is dropped[0]


def test_objects_that_the_module_makes_of_its_own_class():
    dropped = remat.drop(Block())
    assert is_recomputed(type(dropped)())
    replica = dropped._replicate_for_data_parallel()
    assert isinstance(replica, CheckpointedModule)


def test_half_to_and_apply_are_those_of_the_module():
    dropped = remat.drop(nn.LSTM(6, 6))
    assert {parameter.dtype for parameter in dropped.half().parameters()} == {torch.float16}
    dropped.double()(INPUT)[0].sum().backward()
    assert dropped.weight_ih_l0.grad is not None
    assert dropped.to("meta").weight_ih_l0.is_meta


def test_gradients_of_dropped_blocks_are_bitwise_the_plain_ones():
    for make in (linear, perceptron, Block):
        assert all(map(torch.equal, gradients(remat.drop(make())), gradients(make())))

"""Attributes that code sets on classes, functions and objects with slots are replayed and put back, like all others."""

import enum
from collections import UserDict
from dataclasses import dataclass, field

import numpy
import pytest

import remat
from remat.closures.reach import Reach

from .frameworks import where_python_runs_each_step

XS = numpy.linspace(0.1, 1, 9)


def of_a_class():
    class Schedule:
        count = 0
        log: list[int] = []  # noqa: RUF012 (it is the class's)

        @classmethod
        def next(cls):
            cls.count += 1
            cls.log.append(cls.count)
            return cls.count

    return Schedule.next, lambda: (Schedule.count, Schedule.log)


def of_a_subclass():
    class Base:
        count = 0

        @classmethod
        def next(cls):
            cls.count += 1
            return cls.count

    class Schedule(Base):
        pass

    return Schedule.next, lambda: (Base.count, Schedule.count)


def of_the_class_of_an_object():
    class Model:
        calls = 0

        def __call__(self):
            type(self).calls += 1
            return self.calls

    return Model(), lambda: Model.calls


def new_on_a_class():
    class Memo:
        pass

    def following():
        Memo.count = getattr(Memo, "count", 0) + 1
        return Memo.count

    return following, lambda: Memo.count


def new_on_a_class_by_a_class_method():
    class Memo:
        @classmethod
        def next(cls):
            cls.count = getattr(cls, "count", 0) + 1
            return cls.count

    return lambda: Memo.next(), lambda: Memo.count


def new_on_a_class_by_one_of_two_functions():
    class Memo:
        step = 1

    def following():
        Memo.count = getattr(Memo, "count", 0) + Memo.step
        return Memo.count

    return lambda: Memo.step * following(), lambda: Memo.count


def by_a_constructor():
    class Node:
        count = 0

        def __init__(self):
            Node.count = Node.count + 1
            self.number = Node.count

    return lambda: Node().number, lambda: Node.count


def by_the_constructor_of_a_base():
    class Base:
        count = 0

        def __new__(cls):
            made = super().__new__(cls)
            cls.count += 1
            made.number = cls.count
            return made

    class Node(Base):
        pass

    return lambda: Node().number, lambda: (Base.count, Node.count)


def in_a_static_method():
    log = []

    class Tools:
        @staticmethod
        def next():
            log.append(len(log))
            return len(log)

    return lambda: Tools.next(), lambda: log


def of_a_metaclass():
    class Single(type):
        instances = {}  # noqa: RUF012

        def __call__(cls, *args):
            if cls not in cls.instances:
                cls.instances[cls] = super().__call__(*args)
            return cls.instances[cls]

    class State(metaclass=Single):
        def __init__(self):
            self.count = 0

        def next(self):
            self.count += 1
            return self.count

    return lambda: State().next(), lambda: State().count


def of_a_function():
    def following():
        following.count += 1
        following.log.append(following.count)
        return following.count

    following.count, following.log = 0, []
    return following, lambda: (following.count, following.log)


def in_a_slot_that_is_not_set():
    @dataclass(slots=True)
    class State:
        count: int = 0
        last: int = field(init=False)

        def next(self):
            self.count += 1
            self.last = self.count
            return self.last

    state = State()
    return state.next, lambda: (state.count, state.last)


def in_a_dataclass_with_slots():
    @dataclass(slots=True)
    class State:
        count: int = 0

    state = State()

    def following():
        setattr(state, "count", state.count + 1)  # noqa: B010 (as code does that is written for any attribute)
        return state.count

    return following, lambda: state.count


def by_a_property():
    log = []

    class State:
        hidden = 0

        @property
        def count(self):
            return self.hidden

        @count.setter
        def count(self, value):
            self.hidden = value
            log.append(value)

    state = State()

    def following():
        state.count += 1
        return state.count

    return following, lambda: (state.count, log)


def in_a_user_dict():
    state = UserDict(count=0)

    def following():
        state["count"] += 1
        return state["count"]

    return following, lambda: dict(state)


def of_an_enumeration():
    class Phase(enum.Enum):
        FIRST, SECOND = 1, 2

    class Machine:
        phase = Phase.FIRST

        @classmethod
        def next(cls):
            cls.phase = Phase.SECOND if cls.phase is Phase.FIRST else Phase.FIRST
            return cls.phase.value

    return Machine.next, lambda: Machine.phase.name


KINDS = [
    of_a_class,
    of_a_subclass,
    of_the_class_of_an_object,
    new_on_a_class,
    new_on_a_class_by_a_class_method,
    new_on_a_class_by_one_of_two_functions,
    by_a_constructor,
    by_the_constructor_of_a_base,
    in_a_static_method,
    of_a_metaclass,
    of_a_function,
    in_a_slot_that_is_not_set,
    in_a_dataclass_with_slots,
    by_a_property,
    in_a_user_dict,
    of_an_enumeration,
]


def outcome(framework, kind, loop):
    following, contents = kind()

    def loss(w, h):
        return loop(lambda h, x: (framework.np.tanh(w * h + x + 0.01 * following()), h), h, framework.array(XS))[0]

    gradients = framework.gradient(loss, framework.array(0.7), framework.array(0.3))
    return [float(gradient) for gradient in gradients], contents()


def plain(step, h, xs):
    for x in xs:
        h, y = step(h, x)
    return h, y


def of_segments(step, h, xs):
    for x in xs:
        h, y = remat.checkpoint(step, h, x)
    return h, y


@where_python_runs_each_step
@pytest.mark.parametrize("how", [{"slots": 1}, {"slots": 3}, {"memory": "1 MiB"}, {"memory": "40 KiB"}, None], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_attributes_that_steps_set_are_replayed_and_put_back(framework, kind, how):
    loop = of_segments if how is None else lambda step, h, xs: remat.scan(step, h, xs, **how)
    ours, contents = outcome(framework, kind, loop)
    expected, plain_contents = outcome(framework, kind, plain)
    assert ours == pytest.approx(expected, rel=1e-12)
    assert contents == plain_contents


def test_only_attributes_that_a_class_has_or_that_its_own_code_sets_are_compared():
    classes = [type(f"Class{k}", (), {"count": 0, "__module__": __name__}) for k in range(10)]
    first = classes[0]

    def set_attributes(value):
        value.one = value.two = value.three = value.count = 0

    def step():
        first.new = 1
        set_attributes(classes)

    reach = Reach()
    reach.add([step])
    assert len(reach.rebound) == len(classes) + 1  # each `count`, and `new`


def test_each_slot_is_listed_once_however_often_is_searched():
    cell = in_a_slot()

    def step():
        cell.first = 1

    reach = Reach()
    for _ in range(3):
        reach.add([step])
    assert len(reach.slots) == 1


def on_the_class():
    class Cell:
        first = None

    return Cell


def in_a_slot():
    class Cell:
        __slots__ = ("first",)

    cell = Cell()
    cell.first = None
    return cell


def on_a_function():
    def cell():
        return None

    cell.first = None
    return cell


@where_python_runs_each_step
@pytest.mark.parametrize("slots", [1, 3, 7])
@pytest.mark.parametrize("make", [on_the_class, in_a_slot, on_a_function])
def test_a_carry_that_a_step_leaves_in_an_attribute_is_no_lost_gradient(framework, make, slots):
    def loss(x):
        cell = make()

        def step(h, _):
            cell.first = h if cell.first is None else cell.first
            return h * 0.5 + cell.first * h, None

        return remat.scan(step, x * 1.0, length=6, slots=slots)[0]

    with pytest.raises(remat.StepError):
        framework.gradient(loss, framework.array(0.3))

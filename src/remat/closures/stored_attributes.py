"""Attributes that code sets elsewhere than in a `__dict__`: those of classes and of objects with slots, as containers.

The rule: of the classes and the objects with slots that a function reaches, the attributes whose names occur in an
assignment in reached code are variables (python_state.Variable), which are replayed like all contents: slots only if
the class declares its fields, as dataclasses do. With those of other classes, code can tell how often it really runs;
they are only searched for lost gradients. An attribute of a class counts if the class or a base of it has one of that
name, as in `count = 0` and later `type(self).count += 1`; that of a class which code names itself counts even before it
is there, as in `Cache.values = {}`, if this code or a method of the class sets one of that name.

What it can miss: names that are put together at run time for `setattr`, attributes that a base has only from then on,
and those that a function sets first on a class which it got as an argument. The cost, if code sets attributes at all:
about 1 us for each class, however many names there are, and 0.5 us for each method of a class that code names.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from remat.closures.libraries import is_library
from remat.closures.references import AttributeRef, functions_of, slot_names

__all__ = ["class_attributes", "declares_fields", "set_by_methods", "slot_attributes"]


def class_attributes(
    stored: AbstractSet[str], classes: Iterable[type], new: Mapping[int, Collection[str]]
) -> Iterator[AttributeRef]:
    """The attributes of these classes among the `stored` names; those in `new`, by id, count without being there."""
    for cls in classes:
        if not is_library(cls.__module__):
            # The intersection takes as long as the smaller set is.
            for name in set(new.get(id(cls), ())).union(*(vars(base).keys() & stored for base in cls.__mro__)):
                # By a slot or a property, attributes of objects are set: it is not set itself.
                if not hasattr(type(vars(cls).get(name)), "__set__"):
                    yield AttributeRef(cls, name)


def set_by_methods(cls: type, setters: Mapping[int, AbstractSet[str]]) -> set[str]:
    """The attributes that methods of a class and of its metaclass set; `setters` has what functions set, by id."""
    bases = [base for each in (cls, type(cls)) for base in each.__mro__ if not is_library(base.__module__)]
    members = [member for base in bases for member in vars(base).values()]
    functions = [function for member in members for function in functions_of(member)]
    return {name for function in functions for name in setters.get(id(function), ())}


def slot_attributes(stored: Collection[str], values: Iterable[object]) -> Iterator[AttributeRef]:
    """The slots of these objects among the `stored` names, set or not."""
    for value in values:
        for name in slot_names(type(value)):
            if name in stored:
                yield AttributeRef(value, name)


def declares_fields(cls: type) -> bool:
    """Whether a class is a dataclass or one of attrs."""
    return hasattr(cls, "__dataclass_fields__") or hasattr(cls, "__attrs_attrs__")

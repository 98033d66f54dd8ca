"""Attributes that code sets elsewhere than in a `__dict__`: those of classes and of objects with slots, as containers.

The rule: of the classes and the objects with slots that a function reaches, the attributes whose names occur in an
assignment in reached code are variables (python_state.Variable), which are replayed like all contents: slots only if
the class declares its fields, as dataclasses do. With those of other classes, code can tell how often it really runs;
they are only searched for lost gradients. An attribute of a class counts if the class or a base of it has one of that
name, as in `count = 0` and later `type(self).count += 1`; that of a class which code names itself counts even before it
is there, as in `Cache.values = {}`.

What it can miss: names that are put together at run time for `setattr`, and attributes that a base has only from then
on. The cost: about 1 us for each class, if code sets attributes at all.
"""

from collections.abc import Collection, Iterable, Iterator

from remat.closures.libraries import is_library
from remat.closures.references import AttributeRef, slot_names

__all__ = ["class_attributes", "declares_fields", "slot_attributes"]


def class_attributes(stored: Collection[str], classes: Iterable[type], named: set[int]) -> Iterator[AttributeRef]:
    """The attributes of these classes among the `stored` names; `named` are the ids of those that code names itself."""
    for cls in classes:
        if not is_library(cls.__module__):
            for name in stored:
                is_attribute = id(cls) in named or any(name in vars(base) for base in cls.__mro__)
                # By a slot or a property, attributes of objects are set: it is not set itself.
                if is_attribute and not hasattr(type(vars(cls).get(name)), "__set__"):
                    yield AttributeRef(cls, name)


def slot_attributes(stored: Collection[str], values: Iterable[object]) -> Iterator[AttributeRef]:
    """The slots of these objects among the `stored` names, set or not."""
    for value in values:
        for name in slot_names(type(value)):
            if name in stored:
                yield AttributeRef(value, name)


def declares_fields(cls: type) -> bool:
    """Whether a class is a dataclass or one of attrs."""
    return hasattr(cls, "__dataclass_fields__") or hasattr(cls, "__attrs_attrs__")

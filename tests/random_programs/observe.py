"""What a program leaves behind, as paths and plain values: results, the contents of the user's objects, generators.

Objects are walked from a namespace through attributes, slots, lists, dicts, sets and modules. A tensor is its numbers,
its gradient and, for a leaf, whether it requires one: a tensor that was stored for logging has no graph after a loop
that ran without one, so `requires_grad` of others is not compared.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy

from tests.random_programs.tree import children


@dataclass(frozen=True)
class Seen:
    """One value: its numbers as an array, or the text of anything else."""

    path: str
    value: numpy.ndarray | str


def observed(name: str, value: Any, known: dict[int, str] | None = None) -> Iterator[Seen]:
    """All that can be seen in a value, each object once."""
    known = {} if known is None else known
    if value is None or isinstance(value, str | type | FunctionType | MethodType | ModuleType):
        yield Seen(name, "None" if value is None else value if isinstance(value, str) else "code")
    elif isinstance(value, bool | int | float | numpy.ndarray | numpy.generic):
        yield Seen(name, numpy.asarray(value))
    elif id(value) in known:
        yield Seen(name, f"the object at {known[id(value)]}")
    elif _is_torch(value, "Tensor"):
        yield from _tensor(name, value)
    elif isinstance(value, numpy.random.Generator):
        yield Seen(name, str(value.bit_generator.state))
    elif _is_torch(value, "Generator"):
        yield Seen(name, value.get_state().numpy().copy())
    else:
        known[id(value)] = name
        for key, item in _items(value):
            yield from observed(f"{name}{key}", item, known)


def global_state(torch: Any = None) -> Iterator[Seen]:
    """The generators that all share, and the modes of the framework."""
    yield Seen("random", str(random.getstate()))
    yield Seen("numpy.random", str([*map(str, numpy.random.get_state(legacy=True))]))
    if torch is not None:
        yield Seen("torch's generator", torch.get_rng_state().numpy().copy())
        yield Seen("modes", f"{torch.is_grad_enabled()} {torch.get_default_dtype()} {torch.is_autocast_enabled('cpu')}")


def _tensor(name: str, tensor: Any) -> Iterator[Seen]:
    try:
        yield Seen(name, _array(tensor))
    except RuntimeError:  # one that was stored inside of a transform of torch.func, which is over
        return
    yield Seen(f"{name}.dtype", f"{tensor.dtype} {tuple(tensor.shape)}")
    if tensor.is_leaf and (tensor.requires_grad or tensor.grad is not None):
        yield Seen(f"{name}.requires_grad", str(tensor.requires_grad))
        yield Seen(f"{name}.grad", "None" if tensor.grad is None else _array(tensor.grad))


def _array(tensor: Any) -> numpy.ndarray:
    return (tensor.detach().double() if tensor.is_floating_point() else tensor).cpu().numpy().copy()


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items() if not str(key).startswith("dropped")]
    if isinstance(value, list | tuple | deque):
        return [("length", len(value)), *((f"[{index}]", item) for index, item in enumerate(value))]
    if isinstance(value, set | frozenset):
        return [("length", len(value)), *(("{}", item) for item in value if len(value) == 1)]
    parts = children(value)
    if parts is not None:
        return [(f".{index}", item) for index, item in enumerate(parts)]
    slots = [(f".{slot}", getattr(value, slot, None)) for slot in getattr(type(value), "__slots__", ())]
    attributes = getattr(value, "__dict__", {})
    return slots + [(f".{key}", attributes[key]) for key in sorted(attributes) if not _is_private(value, key)]


def _is_private(value: Any, key: str) -> bool:
    """What a framework or a wrapper keeps in an object for itself; and what remat.drop made of one, compared apart."""
    shown = ("_parameters", "_buffers", "_modules")
    if key.startswith("dropped"):
        return True
    return key.startswith("_") and not (_is_torch_module(value) and key in shown)


def _is_torch_module(value: Any) -> bool:
    return hasattr(value, "named_parameters")


def _is_torch(value: Any, name: str) -> bool:
    return any(base.__module__.partition(".")[0] == "torch" and base.__name__ == name for base in type(value).__mro__)

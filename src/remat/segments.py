"""What checkpointed segments share on every framework: their options, names, determinism checks, and nesting depth.

A segment is a function whose tape is not kept: its backward recomputes it (`torch.utils.checkpoint`, `jax.checkpoint`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NoReturn
from weakref import ReferenceType, ref

from remat.errors import DeterminismError, StepError
from remat.execute.recomputation import variable_set

__all__ = [
    "CheckOnce",
    "CheckpointOptions",
    "display_name",
    "mutation_error",
    "nested",
    "nesting_depth",
    "raise_nondeterministic",
]


@dataclass(frozen=True)
class CheckpointOptions:
    """The options of a segment.

    `check` says when recomputed values are compared with the first ones: "first", "always" or "never". `early_stop`
    ends a recomputation once everything that the backward needs is recomputed. Segments whose outputs have no more than
    `threshold` bytes are not checkpointed; with `once`, what they keep is dropped when it is first pulled back, and is
    recomputed after that (autograd only). `policy` selects residuals that are saved all the same, `memory` the bytes
    that such residuals may take; only JAX has these two.
    """

    check: str = "first"
    early_stop: bool = True
    threshold: int | None = None  # None: always checkpoint
    policy: Any = None  # a function, or its name
    once: bool = False
    memory: int | None = None


def display_name(fn: Any) -> str:
    """The name of a function in messages and profiles: its qualified name, or the class of a module or object."""
    while isinstance(fn, partial):
        fn = fn.func
    if isinstance(fn, MethodType) and fn.__name__ in ("forward", "__call__", "_wrapped_call_impl"):
        return type(fn.__self__).__qualname__  # a module
    if hasattr(type(fn), "__getattr__") and "__name__" not in vars(fn):  # a module, whose own search takes 4 us
        return type(fn).__qualname__
    name, qualified = getattr(fn, "__name__", None), getattr(fn, "__qualname__", None)
    if name is None or qualified is None:
        return type(fn).__qualname__
    return str(qualified if qualified.endswith(name) else name)  # a decorator may have copied only one of them


# By the ids of a function (and of its object, for a method): weak references to them, which tell a function from a new
# one with the same id, and remove the entry when one of them dies.
_checked: dict[tuple[int, ...], tuple[ReferenceType[Any], ...]] = {}


class CheckOnce:
    """Whether the values of a function are to be compared (`wanted`): with check="first", until they were once.

    `mark_passed` is called after a comparison without differences. Functions are identified by weak references to
    themselves. One that is made anew for each call, as a lambda is, is identified by its code and the objects that it
    closes over, without arrays, which are values. So two closures over different objects are two functions. An object
    without weak references is identified by its code, and compared each time if it has none.
    """

    def __init__(self, fn: Callable[..., Any], check: str) -> None:
        self.wanted = check != "never"
        self._refs: tuple[ReferenceType[Any], ...] = ()
        if check == "first":
            try:
                self._refs = _references(fn)
            except TypeError:  # it cannot be recognized at the next call
                return
            self._key = tuple(id(reference()) for reference in self._refs)
            self.wanted = not _are_same(_checked.get(self._key), self._refs)

    def mark_passed(self) -> None:
        """Record that all saved values of a segment of this function were recomputed without a difference."""
        alive = [reference() for reference in self._refs]
        if alive and not any(owner is None for owner in alive):
            key = self._key
            _checked[key] = tuple(ref(owner, lambda _: _checked.pop(key, None)) for owner in alive)


def _are_same(first: tuple[ReferenceType[Any], ...] | None, second: tuple[ReferenceType[Any], ...]) -> bool:
    """Whether weak references are to the same objects; comparing them by == would compare the objects."""
    return first is not None and all(a() is b() for a, b in zip(first, second, strict=True))


def _references(fn: Callable[..., Any]) -> tuple[ReferenceType[Any], ...]:
    """Weak references to the objects that identify a function."""
    if isinstance(fn, MethodType):  # a new object at each access: its object and its function stand for it
        return _weak_reference(fn.__self__), _weak_reference(fn.__func__)
    if isinstance(fn, FunctionType) and not fn.__defaults__ and not fn.__kwdefaults__:
        try:
            cells = (cell.cell_contents for cell in fn.__closure__ or ())
            contents = vars(fn).get("calls_only") or [*cells]  # a segment of a chain is its stages
            return ref(fn.__code__), *(ref(value) for value in contents if not hasattr(type(value), "dtype"))
        except (TypeError, ValueError):  # a number, a list, an empty cell: no weak references
            pass
    return (_weak_reference(fn),)


def _weak_reference(value: Any) -> ReferenceType[Any]:
    try:
        return ref(value)
    except TypeError:
        return ref(value.__code__) if hasattr(value, "__code__") else ref(value)


_depth: ContextVar[int] = ContextVar("depth", default=0)


def nesting_depth() -> int:
    """The number of segments inside which the calling code runs."""
    return _depth.get()


def nested(depth: int) -> AbstractContextManager[None]:
    """A block that runs inside a segment whose own nesting depth is `depth`."""
    return variable_set(_depth, depth + 1)


def raise_nondeterministic(name: str, difference: str) -> NoReturn:
    """Raise a DeterminismError for the segment `name`; `difference` says which value changed, and how."""
    raise DeterminismError(
        f"the segment {name} gave something else when it was recomputed: {difference}, so the gradient would be wrong. "
        "It may count calls, write into what it captured, draw from a random generator that remat could not find, as "
        "dropout inside of an RNN of cuDNN does, or read attributes or globals that were changed since. Draw random "
        "numbers before the segment and pass them in, or draw from global generators or from one that is passed in or "
        "closed over, which are replayed. "
        'remat.drop(fn, check="never") turns the comparison of values off'
    )


_COPY = "Make a new array instead, as in x = x + 1 for x += 1, or give the segment a copy"


def mutation_error(name: str, what: str, when: str, advice: str = _COPY) -> StepError:
    """The error for a segment one of whose inputs (`what`) was written into after it was saved (`when`)."""
    return StepError(f"the segment {name} cannot be recomputed: {what} was written into {when}. {advice}")

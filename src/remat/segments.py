"""What checkpointed segments share on all frameworks: options, names, determinism checks and nesting depth.

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

    `check` says when recomputed values are compared with the originals: "first", "always" or "never". `early_stop` ends
    a recomputation as soon as it has everything that the backward needs. A segment whose outputs have at most
    `threshold` bytes is not checkpointed; with `once`, it drops its residuals after the first pull back and recomputes
    them for later ones (autograd only). `policy` selects residuals to save anyway, and `memory` limits the bytes of
    such residuals; only JAX has these two.
    """

    check: str = "first"
    early_stop: bool = True
    threshold: int | None = None  # None: always checkpoint
    policy: Any = None  # a function or its name
    once: bool = False
    memory: int | None = None


def display_name(fn: Any) -> str:
    """The name of a function in messages and profiles: its qualified name; for a module or object, its class."""
    while isinstance(fn, partial):
        fn = fn.func
    if isinstance(fn, MethodType) and fn.__name__ in ("forward", "__call__", "_wrapped_call_impl"):
        return type(fn.__self__).__qualname__  # a module
    if hasattr(type(fn), "__getattr__") and "__name__" not in vars(fn):  # a module, whose __getattr__ takes 4 us
        return type(fn).__qualname__
    name, qualified = getattr(fn, "__name__", None), getattr(fn, "__qualname__", None)
    if name is None or qualified is None:
        return type(fn).__qualname__
    return str(qualified if qualified.endswith(name) else name)  # a decorator may have copied only one of the two


# Functions that passed the check. The key holds the ids of the objects that identify the function; the weak references
# detect a reused id, and remove the entry when one of the objects dies.
_checked: dict[tuple[int, ...], tuple[ReferenceType[Any], ...]] = {}


class CheckOnce:
    """Whether to compare the recomputed values of a function (`wanted`); with check="first", until it has passed once.

    `mark_passed` is called after a comparison without differences. A function without defaults may be a new object in
    each call, as a lambda is, so it is identified by weak references to its code and to the objects that it closes
    over; arrays are left out, since they are values. Two closures over different objects are therefore two functions.
    Where this fails, and for any other callable, a weak reference to the callable itself identifies it. If it allows
    none, its code does; if it has no code, it is compared each time.
    """

    def __init__(self, fn: Callable[..., Any], check: str) -> None:
        self.wanted = check != "never"
        self._refs: tuple[ReferenceType[Any], ...] = ()
        if check == "first":
            try:
                self._refs = _references(fn)
            except TypeError:  # the next call could not recognize it
                return
            self._key = tuple(id(reference()) for reference in self._refs)
            self.wanted = not _are_same(_checked.get(self._key), self._refs)

    def mark_passed(self) -> None:
        """Remember that a segment of this function recomputed all its saved values without a difference."""
        alive = [reference() for reference in self._refs]
        if alive and not any(owner is None for owner in alive):
            key = self._key
            _checked[key] = tuple(ref(owner, lambda _: _checked.pop(key, None)) for owner in alive)


def _are_same(first: tuple[ReferenceType[Any], ...] | None, second: tuple[ReferenceType[Any], ...]) -> bool:
    """Whether both hold references to the same objects; `==` on weak references would compare the objects."""
    return first is not None and all(a() is b() for a, b in zip(first, second, strict=True))


def _references(fn: Callable[..., Any]) -> tuple[ReferenceType[Any], ...]:
    """Weak references to the objects that identify a function."""
    if isinstance(fn, MethodType):  # each access makes a new bound method, so its object and function identify it
        return _weak_reference(fn.__self__), _weak_reference(fn.__func__)
    if isinstance(fn, FunctionType) and not fn.__defaults__ and not fn.__kwdefaults__:
        try:
            cells = (cell.cell_contents for cell in fn.__closure__ or ())
            contents = vars(fn).get("calls_only") or [*cells]  # a segment of a chain is identified by its stages
            return ref(fn.__code__), *(ref(value) for value in contents if not hasattr(type(value), "dtype"))
        except (TypeError, ValueError):  # a cell is empty, or holds a number or list, which allow no weak references
            pass
    return (_weak_reference(fn),)


def _weak_reference(value: Any) -> ReferenceType[Any]:
    try:
        return ref(value)
    except TypeError:
        return ref(value.__code__) if hasattr(value, "__code__") else ref(value)


_depth: ContextVar[int] = ContextVar("depth", default=0)


def nesting_depth() -> int:
    """The number of segments that the calling code runs inside of."""
    return _depth.get()


def nested(depth: int) -> AbstractContextManager[None]:
    """A context for the body of a segment whose own nesting depth is `depth`."""
    return variable_set(_depth, depth + 1)


def raise_nondeterministic(name: str, difference: str) -> NoReturn:
    """Raise a DeterminismError for the segment `name`; `difference` says which value changed and how."""
    raise DeterminismError(
        f"the segment {name} gave something else when it was recomputed: {difference}, so the gradient would be wrong. "
        "It may count calls, write into what it captured, draw from a random generator that remat could not find, "
        "such as the dropout inside cuDNN's RNNs, or read attributes or globals that were changed since. Draw random "
        "numbers before the segment and pass them in, or draw from global generators or from one that is passed in or "
        "closed over, which are replayed. "
        'remat.drop(fn, check="never") turns the comparison of values off'
    )


_COPY = "Make a new array instead, as in x = x + 1 for x += 1, or give the segment a copy"


def mutation_error(name: str, what: str, when: str, advice: str = _COPY) -> StepError:
    """The error for a segment whose saved input `what` was written into; `when` says when."""
    return StepError(f"the segment {name} cannot be recomputed: {what} was written into {when}. {advice}")

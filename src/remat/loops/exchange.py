"""Functions of other modules, replaced while a thread is inside `using`, and only for that thread.

The rule: as long as any thread (or asynchronous task) is inside `using`, a dispatcher takes the place of each function;
it calls the replacement if the calling thread is inside, and the original otherwise. Uses may be nested: the innermost
one decides, and the last one to leave restores the originals, also after an error.

What it can miss: references to a function that were taken before, as by `from module import function`. The cost: one
look-up per call while a dispatcher is in place, nothing otherwise.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from threading import RLock
from types import ModuleType
from typing import Any, Generic, TypeVar

__all__ = ["Exchange"]

T = TypeVar("T")
Place = tuple[ModuleType, str]


class Exchange(Generic[T]):
    """Replacements `function(value, original, *args, **kwargs)` by place; `value` is that of the innermost use."""

    def __init__(self, name: str) -> None:
        self._current: ContextVar[T | None] = ContextVar(name, default=None)
        self._lock = RLock()
        self._users = 0
        self._originals: dict[Place, Any] = {}

    @contextmanager
    def using(self, value: T, replacements: Mapping[Place, Callable[..., Any]]) -> Iterator[T]:
        """A context in which functions are replaced for this thread."""
        with self._lock:
            self._users += 1
            for place, replacement in replacements.items():
                if place not in self._originals:
                    self._install(place, replacement)
        token = self._current.set(value)
        try:
            yield value
        finally:
            self._current.reset(token)
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    for (module, name), original in self._originals.items():
                        setattr(module, name, original)
                    self._originals.clear()

    def _install(self, place: Place, replacement: Callable[..., Any]) -> None:
        module, name = place
        original = self._originals[place] = getattr(module, name)

        @wraps(original)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            value = self._current.get()
            return original(*args, **kwargs) if value is None else replacement(value, original, *args, **kwargs)

        setattr(module, name, dispatch)

"""Functions of other modules, exchanged while somebody asks for it, and only in the threads that ask.

Rule: a dispatcher stands in the place of each function as long as anyone is inside of `using`; it calls the replacement
where the calling thread (or asynchronous task) is inside, and the original elsewhere. Nested uses count, the innermost
decides, and the last one to leave puts the originals back, however it leaves.

What it misses: references to a function that were taken before, as by `from module import function`. Cost: one look-up
for each call while it is in place, nothing otherwise.
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
        """Inside, functions are replaced in this thread."""
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

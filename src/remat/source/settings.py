"""How loops are checkpointed: the settings of the decorator, of a marked range, or of a call, which takes precedence.

Nested loops and a budget in bytes: the outermost loop has the whole budget, since the peak of an inner plan is part of
its step's tape, which is measured. A loop inside it has half the budget, and so on, so that at least half is left for
the states of the loop around it. An inner loop that needs more gets what it needs (`run_time/turns.py`), and the outer
plan has the rest.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

from remat.errors import ProblemError
from remat.loops.request import LoopRequest
from remat.planners import Plan
from remat.source.loop_info import LoopInfo
from remat.source.marked_range import MarkedRange
from remat.units import to_bytes

__all__ = ["LoggedRequest", "Requests", "Settings", "settings_of_call"]

UNKNOWN = 32  # slots of a loop of unknown length, if √n slots are requested
_of_call: ContextVar["Settings | None"] = ContextVar("settings_of_call", default=None)


@dataclass(frozen=True)
class LoggedRequest(LoopRequest):
    """A request that logs the plan that was made."""

    log: Callable[[tuple[int | None, Plan | str]], None] | None = None  # gets (steps, plan or a description)

    def record(self, steps: int | None = None, plan: Plan | None = None) -> None:
        """Log the number of steps and the plan."""
        super().record(steps, plan)
        if self.log is not None and plan is not None:
            self.log((steps, plan))


@dataclass(frozen=True)
class Settings:
    """`slots`, `memory`, or `root` for √n slots; with none of them, only marked loops are checkpointed."""

    slots: int | None = None
    memory: Any = None
    check: Any = "first"
    root: bool = False

    @classmethod
    def parse(cls, slots: Any, memory: Any, check: Any = "first", *, root: bool = False) -> "Settings":
        """The settings for these arguments; contradictions raise an error when the function is decorated."""
        if slots is not None and memory is not None:
            raise ProblemError("give slots= or memory=, not both")
        if slots is not None or memory is not None:
            LoopRequest.parse(memory, slots, None, check, None)
        return cls(slots, memory, check, root)

    @property
    def given(self) -> bool:
        """Whether there is a budget."""
        return self.slots is not None or self.memory is not None or self.root

    def of_loop(self, marked: MarkedRange | None, info: LoopInfo) -> "Settings | None":
        """The settings of one loop: the call's, its own, or the decorator's; None if it is not checkpointed."""
        settings = _of_call.get() or self
        if marked is not None and marked.settings and _of_call.get() is None:
            settings = replace(
                Settings.parse(marked.settings.get("slots"), marked.settings.get("memory")), check=self.check
            )
        if not settings.given:
            return None
        if settings.memory is not None and info.depth and isinstance(settings.memory, str | int | float):
            memory, parts = settings.memory, 2**info.depth
            share = memory / parts if isinstance(memory, float) else to_bytes(memory, "memory") // parts
            settings = replace(settings, memory=share)
        return settings


class Requests:
    """The requests of one run of a loop, by its number of turns; `log` gets the plan."""

    __slots__ = ("_log", "_names", "_place", "_settings")

    def __init__(self, settings: Settings, names: tuple[str, ...], log: Callable[[Any], None], place: str) -> None:
        self._settings, self._names, self._log, self._place = settings, names, log, place

    def __call__(self, count: int | None) -> "LoggedRequest":
        """The request for a loop of this many turns, None if unknown."""
        slots, memory = self._settings.slots, self._settings.memory
        if slots is None and memory is None:
            slots = UNKNOWN if count is None else max(1, isqrt(count))
        parsed = LoopRequest.parse(memory, slots, None, self._settings.check, None)
        return LoggedRequest(
            parsed.memory, None, parsed.check, None, carry_names=self._names, place=self._place, log=self._log
        )

    def enlarge(self, least: int) -> None:
        """Request this many bytes from now on."""
        self._settings = replace(self._settings, memory=least)


@contextmanager
def settings_of_call(settings: Settings | None) -> Iterator[None]:
    """A context in which rewritten functions have these settings; None changes nothing."""
    token = _of_call.set(settings or _of_call.get())
    try:
        yield
    finally:
        _of_call.reset(token)

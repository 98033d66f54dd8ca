"""How loops are checkpointed: the settings of the decorator, of a marked range, and of a call, which wins.

Nested loops share a budget in bytes: each of k levels gets the k-th part, since what an inner loop keeps while it is
recorded is part of the outer step's tape.
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

__all__ = ["Settings", "settings_of_call"]

UNKNOWN = 32  # slots of a loop whose length is not known, where √n is asked for
_of_call: ContextVar["Settings | None"] = ContextVar("settings_of_call", default=None)


@dataclass(frozen=True)
class LoggedRequest(LoopRequest):
    """A request that tells which plan was made."""

    log: Callable[[int | None, Plan | str], None] | None = None  # or how it runs without one

    def record(self, steps: int | None = None, plan: Plan | None = None) -> None:
        """Write down the number of steps and the plan."""
        super().record(steps, plan)
        if self.log is not None and plan is not None:
            self.log(steps, plan)


@dataclass(frozen=True)
class Settings:
    """`slots` or `memory`; neither, if `root` asks for √n slots; nothing of all: only marked loops."""

    slots: int | None = None
    memory: Any = None
    check: Any = "first"
    root: bool = False

    @classmethod
    def parse(cls, slots: Any, memory: Any, check: Any = "first", *, root: bool = False) -> "Settings":
        """The settings of these arguments; contradictions are an error when the function is decorated."""
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
        """The settings of one loop: of the call, of its own, of the decorator; None if it is none of remat's."""
        settings = _of_call.get() or self
        if marked is not None and marked.settings and _of_call.get() is None:
            settings = replace(
                Settings.parse(marked.settings.get("slots"), marked.settings.get("memory")), check=self.check
            )
        if not settings.given:
            return None
        levels = 1 + info.depth + bool(info.inner)
        if settings.memory is not None and levels > 1 and isinstance(settings.memory, str | int):
            settings = replace(settings, memory=to_bytes(settings.memory, "memory") // levels)
        return settings

    def request(self, count: int | None, names: tuple[str, ...], log: Any) -> LoopRequest:
        """The request for a loop of so many turns."""
        slots = self.slots
        if slots is None and self.memory is None:
            slots = UNKNOWN if count is None else max(1, isqrt(count))
        parsed = LoopRequest.parse(self.memory, slots, None, self.check, None)
        return LoggedRequest(parsed.memory, None, parsed.check, None, carry_names=names, log=log)


@contextmanager
def settings_of_call(settings: Settings | None) -> Iterator[None]:
    """A block in which rewritten functions have these settings; None: those that they have anyway."""
    token = _of_call.set(settings or _of_call.get())
    try:
        yield
    finally:
        _of_call.reset(token)

"""The numbered rules of a legal schedule, one small function each.

A rule reads the machine before an op (R1 to R8), after it (R9) or at the end (R10), and returns what is wrong, or None.
`verify` checks them in order; the first broken rule is the verdict.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from remat.errors import ProblemError
from remat.ops import TAPE, Advance, Drop, Fetch, Keep, Pullback, Record, Turn
from remat.problem import Loop
from remat.schedule.machine import Machine

__all__ = ["BEFORE", "RULES", "Rule", "over_capacity", "unfinished"]


@dataclass(frozen=True)
class Rule:
    """One rule: its number, what must hold, and what to do if it does not."""

    number: int
    title: str
    hint: str
    check: Callable[[Machine, Any], str | None]


RULES: list[Rule] = []
BEFORE: dict[type, tuple[Rule, ...]] = {}


def _rule(title: str, hint: str, *ops: type) -> Callable[[Callable[..., str | None]], Callable[..., str | None]]:
    def enter(check: Callable[..., str | None]) -> Callable[..., str | None]:
        rule = Rule(len(RULES) + 1, title, hint, check)
        RULES.append(rule)
        for op in ops:
            BEFORE[op] = (*BEFORE.get(op, ()), rule)
        return check

    return enter


@_rule(
    "units and states exist",
    "units go from 0 to n-1, states from 0 to n, and a range has at least one unit",
    *(Advance, Record, Pullback, Keep, Fetch, Drop),
)
def _exists(now: Machine, op: Any) -> str | None:
    if isinstance(op, Keep | Fetch | Drop):
        if not _is_whole(op.state) or not 0 <= op.state <= now.units:
            return f"there is no state {op.state} among 0..{now.units}"
    elif not (_is_whole(op.start) and _is_whole(op.stop) and 0 <= op.start < op.stop <= now.units):
        return f"{op.start} to {op.stop} is no range of units inside 0..{now.units}"
    elif isinstance(op, Record) and op.option and not 0 <= op.option < now.option_count(op.start, op.stop):
        return f"there is no option {op.option} for units {op.start}..{op.stop - 1}; options count from 0"
    elif isinstance(op, Advance) and (unit := now.unrepeatable(op.start, op.stop)) is not None:
        return f"unit {unit} cannot be repeated: it is recorded when it runs"
    return None


def _is_whole(number: Any) -> bool:
    """Whether this is a Python or NumPy integer, and not a bool."""
    return type(number) is int or (isinstance(number, Integral) and not isinstance(number, bool))


@_rule(
    "an op starts from the working state",
    "advance to that state, or fetch it, first",
    *(Advance, Record, Keep),
)
def _from_working(now: Machine, op: Any) -> str | None:
    wanted = op.state if isinstance(op, Keep) else op.start
    if now.working != wanted:
        has = "there is none" if now.working is None else f"it is {now.working}"
        return f"state {wanted} is not the working state: {has}"
    return None


@_rule("a state is kept once in a level that there is", "name one of the memory's levels, and keep it there once", Keep)
def _kept_once(now: Machine, op: Keep) -> str | None:
    if op.level == TAPE:
        return 'a state cannot be kept in "tape"; record a tape to hold one'
    if now.memory is not None and now.memory.level(op.level) is None:
        return f"there is no level {op.level!r}; the memory has {', '.join(level.name for level in now.memory.levels)}"
    if op.state in now.kept.get(op.level, ()):
        return f"state {op.state} is kept in {op.level} already"
    return None


@_rule(
    "only what is kept is fetched or dropped",
    "keep it when it is the working state, and drop it last",
    Fetch,
    Drop,
)
def _is_kept(now: Machine, op: Fetch | Drop) -> str | None:
    if isinstance(op, Fetch) and op.level == TAPE:
        if not now.problem.restartable:
            return "tapes of this problem do not hold their unit's output (restartable is False)"
        return None if now.tape_ending_at(op.state) else f"no held tape ends at state {op.state}"
    if op.state not in now.kept.get(op.level, ()):
        return f"state {op.state} is not kept in {op.level}"
    return None


@_rule("turn happens once, at state n", "run every unit up to the last, then turn, once", Turn)
def _turns_once(now: Machine, op: Turn) -> str | None:
    if now.cotangent is not None:
        return "the schedule has turned already"
    if now.working != now.units:
        return f"the working state is {now.working}, and the result is state {now.units}"
    return None


@_rule("cotangents go from last to first", "pull units back in order, each once, after turn", Pullback)
def _in_order(now: Machine, op: Pullback) -> str | None:
    if now.cotangent is None:
        return "there is no cotangent before turn"
    if now.cotangent != op.stop:
        return f"the cotangent in flight is of state {now.cotangent}, not {op.stop}"
    return None


@_rule(
    "a pullback uses exactly one recorded range",
    "record that range, or pull back the range recorded",
    Pullback,
)
def _has_tape(now: Machine, op: Pullback) -> str | None:
    if now.find_tape(op.start, op.stop) is None:
        return f"no tape of exactly units {op.start}..{op.stop - 1} is held"
    return None


@_rule(
    "a unit is recorded to be pulled back, once",
    "advance over units whose tape is held or used already",
    Record,
)
def _recorded_once(now: Machine, op: Record) -> str | None:
    if now.cotangent is not None and op.stop > now.cotangent:
        return f"units from {now.cotangent} on are pulled back already"
    other = now.overlapping_tape(op.start, op.stop)
    return other and f"the tape of units {other[0]}..{other[1] - 1} is held already"


@_rule("no level holds more than its capacity", "keep fewer states, hold fewer tapes, or give more memory")
def over_capacity(now: Machine, _: object = None) -> str | None:
    """Which level exceeded its capacity while the last op ran, or None."""
    if now.memory is None:
        return None
    for level in now.memory.levels:
        kept = now.kept_size.get(level.name, 0)
        if level.slots is not None:
            unit = _slot_size(now, level.name)
            tapes = now.held_size if level.name == now.device else 0
            if kept + tapes > level.slots * unit:
                slots = f"{level.slots} slot{'s' * (level.slots != 1)}"
                return f"{level.name} would hold {(kept + tapes) / unit:g} states' worth, and has {slots}"
        elif level.capacity is not None:
            live = now.device_size if level.name == now.device else kept
            if live > level.capacity:
                return f"{level.name} would hold {live} bytes, and has {level.capacity}"
    return None


@_rule(
    "at the end all is pulled back and nothing is held",
    "go on until unit 0 is pulled back, and drop what is kept",
)
def unfinished(now: Machine, _: object = None) -> str | None:
    """What is left to do when the ops have run out."""
    if now.cotangent is None:
        return "the schedule ends before turn"
    if now.cotangent != 0:
        return f"units 0..{now.cotangent - 1} are not pulled back"
    left = [f"state {s} in {level}" for level, kept in now.kept.items() for s in kept]
    left += [f"the tape of units {start}..{stop - 1}" for start, stop, _ in now.tapes]
    return f"still held: {', '.join(left[:8])}" if left else None


def _slot_size(now: Machine, level: str) -> int:
    if not isinstance(now.problem, Loop):
        raise ProblemError(f"level {level!r} has slots, which count equal states; give a chain its memory in bytes")
    return now.problem.state

"""The text of `fn.explain()`: for every loop its line, what it carries, which turns run in place, and its plan."""

from collections.abc import Sequence
from typing import Any

from remat.source.loop_info import LoopInfo
from remat.source.settings import Settings

__all__ = ["explained"]


def explained(infos: Sequence[LoopInfo], settings: Settings, log: dict[int, Any]) -> str:
    """The text for a function with these loops; `log` has their plans in the last run."""
    if not infos:
        return "no loops: the function runs as it is written"
    return "\n".join(_loop(info, settings, log.get(info.number)) for info in infos)


def _loop(info: LoopInfo, settings: Settings, run: Any) -> str:
    indent = "  " * info.depth
    lines = [f"line {info.line}: {info.code}"]
    if info.kept:
        return "\n".join(f"{indent}{line}" for line in [*lines, f"  kept as it is, with all its memory: {info.kept}"])
    if info.merged:
        lines.append(f"  a perfect nest: one loop with {info.merged}")
    lines.append(f"  carry: {_names(info.carry)}; captured: {_names(info.captured)}; locals: {_names(info.locals)}")
    if info.lists or info.arrays:
        lines.append(f"  outputs: {_names((*info.lists, *info.arrays))}")
    lines.append(f"  in place: {_in_place(info)}")
    if info.inner:
        lines.append(
            f"  no perfect nest: the loops in lines {', '.join(map(str, info.inner))} have plans of their own, whose "
            "peak is part of this loop's tape"
        )
    if info.contexts:
        lines.append(f"  not open when iterations are recomputed: {', '.join(info.contexts)}")
    if info.emits:
        lines.append("  prints and logs once per iteration")
    lines.append(f"  plan: {_plan(info, settings, run)}")
    if info.depth and settings.memory is not None:
        lines.append(f"  budget: 1/{2**info.depth} of memory={settings.memory!r}, or the least that it needs")
    return "\n".join(f"{indent}{line}" for line in lines)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"


def _in_place(info: LoopInfo) -> str:
    turns = []
    unbound = sorted(set(info.carry) & info.unbound)
    if unbound:
        turns.append(f"the first, if {_names(unbound)} has no value before the loop")
    if info.last_in_place:
        turns.append("the last, whose variables are read after the loop")
    if info.ends:
        turns.append(f"the one that ends the loop ({', '.join(sorted(info.ends))})")
    elif info.kind == "while":
        turns.append("none but the last test")
    return "; ".join(turns) or "none"


def _plan(info: LoopInfo, settings: Settings, run: Any) -> str:
    if not settings.given and run is None:
        return "none: the function has no budget; mark the loop with remat.range, or give slots= or memory="
    if run is None:
        budget = f"slots={settings.slots}" if settings.slots is not None else f"memory={settings.memory!r}"
        return f"{'√n slots' if settings.root else budget}, made when the loop is differentiated"
    steps, plan = run
    if isinstance(plan, str):
        return f"{steps} iterations, {plan}"
    return (
        f"{steps} iterations, {plan.forward_steps} step evaluations ({plan.forward_steps - (steps or 0)} recomputed), "
        f"{plan.planner}, {plan.claim}"
    )

"""The rules of a legal schedule of a graph, numbered after those of loops and chains.

A rule reads the machine before an op (R12 to R16) or at the end (R17), and returns what is wrong, or None. R11 rejects
ops of another kind of problem; R9 checks capacities here too.
"""

from collections.abc import Callable

from remat.ops import Free, Op, Run
from remat.schedule.graph_machine import GraphMachine
from remat.schedule.rules import RULES, Rule

__all__ = ["GRAPH_BEFORE", "GRAPH_END", "OTHER_KIND"]

OTHER_KIND = Rule(
    len(RULES) + 1,
    "a schedule has the ops of its problem",
    "graphs are scheduled by run and free, loops and chains by the other ops",
    lambda now, op: f"{type(op).__name__} is no op of a {getattr(type(now.problem), 'kind', 'problem')}",
)
_GRAPH_RULES: list[Rule] = [OTHER_KIND]
GRAPH_BEFORE: dict[type, tuple[Rule, ...]] = {}


def _rule(title: str, hint: str, *ops: type) -> Callable[[Callable[..., str | None]], Callable[..., str | None]]:
    def enter(check: Callable[..., str | None]) -> Callable[..., str | None]:
        rule = Rule(len(RULES) + 1 + len(_GRAPH_RULES), title, hint, check)
        _GRAPH_RULES.append(rule)
        for op in ops:
            GRAPH_BEFORE[op] = (*GRAPH_BEFORE.get(op, ()), rule)
        return check

    return enter


@_rule("operations and storages exist", "operations count from 0, and so do storages", Run, Free)
def _exists(now: GraphMachine, op: Op) -> str | None:
    if isinstance(op, Run):
        known = type(op.operation) is int and 0 <= op.operation < now.units
        return None if known else f"there is no operation {op.operation} among 0..{now.units - 1}"
    assert isinstance(op, Free)
    if op.storage in now.problem.given:
        return f"storage {op.storage} was given: no operation makes it, and none frees it"
    known = type(op.storage) is int and op.storage in now.problem.maker
    return None if known else f"there is no storage {op.storage} that an operation makes"


@_rule(
    "operations run in order, and run again only if they may",
    "run what comes before it first; keep what an unrepeatable operation made",
    Run,
)
def _in_order(now: GraphMachine, op: Run) -> str | None:
    if op.operation > now.next:
        return f"operation {now.next} has not run yet"
    each = now.problem.operations[op.operation]
    if op.operation < now.next and (each.backward or not each.repeatable or each.writes):
        return f"operation {op.operation}, {each.where}, has run, and cannot be run again"
    return None


@_rule("an operation reads what it read the first time", "run the operation that makes it, or free it later", Run)
def _unchanged(now: GraphMachine, op: Run) -> str | None:
    for storage in now.problem.operations[op.operation].reads:
        version = now.versions.get(storage)
        if version is None:
            return f"storage {storage}{_named(now, storage)} is not live"
        if version != now.problem.version_at(op.operation, storage):
            return f"storage {storage}{_named(now, storage)} has been written into since, or not yet as it had been"
    return None


@_rule("a result of the forward is freed only after the forward", "free it later", Free)
def _result_is_out(now: GraphMachine, op: Free) -> str | None:
    if now.next < now.problem.turn and op.storage in now.problem.outputs:
        return f"operations {now.next}..{now.problem.turn - 1} of the forward have not run yet"
    return None


@_rule("only what is live is freed", "free it once, after it was made", Free)
def _is_live(now: GraphMachine, op: Free) -> str | None:
    return None if op.storage in now.versions else f"storage {op.storage}{_named(now, op.storage)} is not live"


@_rule("at the end all has run and only results are live", "run the rest, and free what nothing uses any more")
def _unfinished(now: GraphMachine, _: object = None) -> str | None:
    if now.next < now.units:
        return f"operations from {now.next} on have not run"
    left = [s for s in now.stored if s not in now.problem.results]
    if left:
        return f"still live: {', '.join(f'storage {s}{_named(now, s)}' for s in left[:8])}"
    made = (s for s in now.problem.results if now.problem.maker.get(s, -1) >= now.problem.turn)
    missing = next((s for s in made if s not in now.versions), None)
    return None if missing is None else f"the result, storage {missing}{_named(now, missing)}, is not live"


GRAPH_END = _GRAPH_RULES[-1]


def _named(now: GraphMachine, storage: int) -> str:
    name = now.problem.storage_name(storage)
    return f" ({name})" if name else ""

"""The kinds of problems: what can be planned, and the class that loads each kind from a saved plan."""

from typing import Any, TypeGuard

from remat.problem.chain import Chain
from remat.problem.graph import Graph
from remat.problem.loop import Loop
from remat.problem.problem import Problem
from remat.problem.serialization import envelope_kind, wrong_kind

__all__ = ["PROBLEM_KINDS", "is_problem", "kind_names", "load_problem"]

PROBLEM_KINDS: dict[str, type[Problem]] = {
    Loop.kind: Loop,
    Chain.kind: Chain,
    Graph.kind: Graph,
}


def is_problem(value: object) -> TypeGuard[Problem]:
    """Whether `value` is a problem of one of the kinds."""
    return isinstance(value, tuple(PROBLEM_KINDS.values()))


def kind_names() -> str:
    """The classes of problems, for error messages.

    >>> kind_names()
    'a Loop, a Chain or a Graph'
    """
    *others, last = (f"a {problem_type.__name__}" for problem_type in PROBLEM_KINDS.values())
    return f"{', '.join(others)} or {last}"


def load_problem(data: Any) -> Problem:
    """A problem of any kind from plain data in its envelope; raise a FileError for anything else.

    >>> load_problem(Loop(7).envelope()).title
    '7 steps'
    """
    expected = " or a ".join(PROBLEM_KINDS)
    kind = envelope_kind(data, expected)
    problem_type = PROBLEM_KINDS.get(kind)
    if problem_type is None:
        raise wrong_kind(kind, expected)
    return problem_type.from_envelope(data)

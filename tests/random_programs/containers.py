"""Containers in the source of programs: how some values are packed into one, and taken out again."""

from collections.abc import Sequence

KINDS = {"tuple": 3, "dict": 2, "list": 1, "namedtuple": 1.5, "dataclass": 1.5, "nested": 1}


def packed(kind: str, values: Sequence[str]) -> str:
    """An expression that packs these expressions."""
    inside = ", ".join(values)
    if kind == "bare":
        return values[0]
    if kind == "dict":
        return "{" + ", ".join(f"'k{i}': {value}" for i, value in enumerate(values)) + "}"
    if kind == "list":
        return f"[{inside}]"
    if kind in ("namedtuple", "dataclass"):
        return f"{'P' if kind == 'namedtuple' else 'D'}{len(values)}({inside})"
    if kind == "nested":
        return f"{{'a': [{values[0]}], 'b': ({''.join(value + ', ' for value in values[1:])})}}"
    return f"({inside},)"


def taken(kind: str, container: str, count: int) -> list[str]:
    """Expressions for the values in a container."""
    if kind == "bare":
        return [container]
    if kind == "dict":
        return [f"{container}['k{i}']" for i in range(count)]
    if kind == "dataclass":
        return [f"{container}.{'abcd'[i]}" for i in range(count)]
    if kind == "nested":
        return [f"{container}['a'][0]", *(f"{container}['b'][{i}]" for i in range(count - 1))]
    return [f"{container}[{i}]" for i in range(count)]

"""Merge an operation that writes in place with the operation that made the storage, so that both can be recomputed.

An operation that writes in place (`relu_` after a norm) becomes one operation with the maker of the storage, at the
position of the write.

The rule: both are repeatable, and between the two no operation reads what the first makes or writes into what it reads.
Then nothing has seen the contents before the write.

What it can miss: the storage is live between the two, but does not count there.
"""

from collections.abc import Sequence
from dataclasses import replace

from remat.problem.operation import Operation

__all__ = ["merged_writes"]


def merged_writes(operations: Sequence[Operation]) -> list[Operation]:
    """The operations, with every in-place write merged that the rule allows."""
    merged: list[Operation | None] = []
    makers: dict[int, int] = {}
    for at, each in enumerate(operations):
        merged.append(each)
        maker = makers.get(each.writes[0]) if len(each.writes) == 1 else None
        if maker is not None and _can_merge(merged, maker):
            first = merged[maker]
            assert first is not None
            merged[at], merged[maker] = _merged(first, each), None
        made = merged[at]
        assert made is not None
        makers.update(dict.fromkeys(made.outputs, at))
    return [each for each in merged if each is not None]


def _can_merge(operations: Sequence[Operation | None], maker: int) -> bool:
    first, last = operations[maker], operations[-1]
    assert first is not None
    assert last is not None
    if not first.repeatable or not last.repeatable or first.writes or last.outputs:
        return False
    between = [each for each in operations[maker + 1 : -1] if each is not None]
    made, read = set(first.outputs), set(first.inputs)
    others = set(last.inputs) - set(last.writes)
    return not made & others and not any(made & {*each.reads} or read & {*each.writes} for each in between)


def _merged(first: Operation, last: Operation) -> Operation:
    inputs = [*first.inputs, *(storage for storage in last.inputs if storage not in last.writes)]
    name, seconds = f"{first.name}, {last.name}", first.seconds + last.seconds
    workspace = max(first.workspace, last.workspace)
    return replace(first, name=name, seconds=seconds, inputs=tuple(dict.fromkeys(inputs)), workspace=workspace)

"""What is inside a tape or a block: a table with a row per tensor that its backward needs, the largest first."""

from collections.abc import Sequence
from dataclasses import replace

from remat.profiling.segment_contents import SavedTensor
from remat.reporting.summary import Summary
from remat.reporting.table import Table
from remat.units import bytes_text, count_text

__all__ = ["tape_table", "tensor_table"]

MOST_TENSORS = 20


def tape_table(summary: Summary) -> Table | None:
    """What is inside the tape of a step; None if unknown."""
    tape = summary.subject.tape
    if tape is None or not tape.tensors:
        return None
    steps = "one step" if tape.steps == 1 else f"{count_text(tape.steps)} steps"
    title = f"What is inside the tape of {steps}: {bytes_text(tape.bytes)} of tensors, the largest first"
    note = "Parameters, inputs and outputs live anyway, and are not in it."
    if summary.subject.framework == "numpy":
        note += " What autograd takes for its own objects comes on top."
    if summary.subject.framework == "jax":
        note += " XLA may store less, by fusing, and does not show it."
    return replace(tensor_table(title, tape.tensors, tape.bytes, (tape.more, tape.more_bytes)), note=note)


def tensor_table(title: str, tensors: Sequence[SavedTensor], total: int, more: tuple[int, int] = (0, 0)) -> Table:
    """Tensors of `total` bytes, the largest first; `more` is the number of unlisted ones and their bytes."""
    ordered = sorted(tensors, key=lambda tensor: -tensor.bytes)
    rest = ordered[MOST_TENSORS:]
    rows = [
        (
            each.op,
            str(list(each.shape)),
            each.dtype,
            bytes_text(each.bytes),
            f"{each.bytes / max(1, total):.1%}",
            each.line,
            each.module,
        )
        for each in ordered[:MOST_TENSORS]
    ]
    count, size = len(rest) + more[0], sum(each.bytes for each in rest) + more[1]
    if count:
        rows.append((f"{count_text(count)} more", "", "", bytes_text(size), f"{size / max(1, total):.1%}", "", ""))
    head = ("op", "shape", "dtype", "bytes", "share", "where", "saved in")
    columns = len(head) - (len({row[-1] for row in rows if row[-1]}) < 2)  # the title has the only module
    return Table(title, head[:columns], tuple(row[:columns] for row in rows))

"""Captured tensors that steps write into and a tape refers to: its pullback sees them as the steps left them.

The rule: while a tape is pulled back, replayable states have the values with which the program continues, because hooks
read and write them (execute/interpreter.py). A tensor that the tape's graph has saved is an exception: it refers to the
tensor, or to its memory, so for the pullback the tensor gets the numbers that it had when the range was recorded. If a
later step of the range has written into it since it was saved, autograd raises, as in a plain loop.

What it can miss: writes without a new version (batch statistics, which no pullback reads), and what hooks write into
such a tensor. The cost: a comparison of version counters for each range; only if one has moved, a look at the graph.
"""

from collections.abc import Iterable
from typing import Any

from remat.execute.rng_state import ReplayableState
from remat.frameworks.torch.internals.graph import version
from remat.frameworks.torch.internals.storage import is_dense, storage_id
from remat.frameworks.torch.loops.saved_bytes import saved_tensors_of
from remat.frameworks.torch.loops.tape import Tape
from remat.frameworks.torch.replay.tensor_value import TensorValue

__all__ = ["SavedValues"]


class SavedValues:
    """The tensors among replayable states that steps may write into, with their versions before that."""

    def __init__(self, states: Iterable[ReplayableState]) -> None:
        tensors = [
            each for each in states if isinstance(each, TensorValue) and not each.is_statistic and is_dense(each.tensor)
        ]
        self._before = [(each, version(each.tensor)) for each in tensors]

    def of(self, tape: Tape) -> list[tuple[ReplayableState, Any]]:
        """Those that the graph of a tape that was just recorded has saved, with their present values."""
        written = [each for each, before in self._before if version(each.tensor) != before]
        if not written:
            return []
        tape.look_at_graph()
        saved = {storage_id(each) for node in tape.seen.alive() for each in saved_tensors_of(node) if is_dense(each)}
        return [(each, each.get()) for each in written if storage_id(each.tensor) in saved]

"""Kept states in the memory of the outputs: a carry that its step also returns as an output is not held twice.

The rule: the copy of such a leaf is its row among the stacked outputs, as a tensor with its own version counter. The
outputs belong to the caller, who may write into them before the backward. So each such state has a seal, a checksum of
its bits, and a state whose seal is broken is recomputed from the state kept before it (`Interpreter`).

What it can miss: a change of one number is always found; other changes are missed with a probability of 2**-64. Not
used for devices other than the CPU, subclasses of Tensor, torch.func and rows of odd sizes, where leaves are copied.

Cost: 1 ns for each number when a state is kept and when it is fetched, instead of its memory.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from remat.frameworks.torch.leaves import copy_tensor
from remat.frameworks.torch.loops.output_rows import on_storage_of
from remat.loops.step_runner import StepRunner
from remat.pytree import Leaf, PyTree

__all__ = ["KeptRows"]

WIDTH = 4096  # numbers with different weights
ALIGNMENT = 64  # bytes: PyTorch's allocator aligns every tensor to this, and so must a row be


class KeptRows:
    """Copies the carries of one runner; if `enabled`, a copy is the row of the outputs where it is one."""

    def __init__(self, runner: StepRunner, *, enabled: bool) -> None:
        self._runner, self._enabled = runner, enabled
        # Addresses of outputs with rows that are kept states; the address of a freed one may be reused by a later
        # state.
        self._outputs: set[int] = set()

    def copy(self, state: PyTree) -> PyTree:
        """A copy of the carry after the last step, which no step can write into."""
        runner, rows = self._runner, self._rows_of_last_output() if self._enabled else {}
        leaves = []
        for leaf in runner.tree.flatten_like(state, "carry"):
            found = rows.get(_place(leaf)) if rows and type(leaf) is Tensor else None
            if found is None:
                leaves.append(copy_tensor(leaf))
            else:
                self._outputs.add(_address(found[0]))
                leaves.append(on_storage_of(*found, leaf.shape))
        return runner.tree.unflatten(leaves)

    def _rows_of_last_output(self) -> dict[tuple[object, ...], tuple[Tensor, int]]:
        """By the place of each tensor that the last step returned as output: the outputs, and the offset of its row."""
        runner, outputs = self._runner, self._runner.outputs
        i = runner.current_step
        row = outputs.row_of(i)
        # A recomputed step writes no row, and after the first sweep the outputs belong to the caller.
        if row is None or outputs.tree is None or not outputs.leaves or i != runner.outputs_written - 1:
            return {}
        rows = {}
        for leaf, stacked in zip(outputs.tree.flatten_like(runner.last_output, "y"), outputs.leaves, strict=True):
            if type(stacked) is Tensor and _can_be_a_row(leaf) and leaf.dtype is stacked.dtype:
                rows[_place(leaf)] = stacked, int(stacked.storage_offset()) + row * leaf.numel()
        return rows

    def seal(self, state: PyTree) -> Sequence[object]:
        """A value that changes when somebody writes into a kept state; empty if nobody else has it."""
        if not self._outputs:
            return ()
        leaves = self._runner.tree.flatten_like(state, "carry")
        shared = (leaf for leaf in leaves if isinstance(leaf, Tensor) and _address(leaf) in self._outputs)
        return tuple(map(_checksum, shared))


def _can_be_a_row(leaf: Leaf) -> bool:
    """Whether a row would be read exactly like the leaf, bit by bit: kernels depend on strides and alignment."""
    if type(leaf) is not Tensor or leaf.device.type != "cpu" or not leaf.numel() or leaf.nbytes % ALIGNMENT:
        return False
    return leaf.is_contiguous() and not leaf.is_conj() and not leaf.is_neg()


def _address(leaf: Tensor) -> int:
    return leaf.untyped_storage().data_ptr()


def _place(leaf: Leaf) -> tuple[object, ...]:
    """Where a tensor is in memory, and how it is read."""
    return leaf.data_ptr(), tuple(leaf.shape), leaf.stride(), leaf.dtype


def _checksum(row: Tensor) -> tuple[object, ...]:
    """Sums of the bits of a row: a matrix-vector product and the rest, with odd weights, so that any change counts."""
    bits = row.detach().reshape(-1).view(torch.uint8).numpy()
    whole = len(bits) // 8 * 8  # as words: an eighth of the products that bytes need
    numbers = bits[:whole].view(np.int64)
    count = len(numbers) // WIDTH * WIDTH
    sums = numbers[:count].reshape(-1, WIDTH) @ _weights()
    return sums.tobytes(), int(numbers[count:] @ _weights()[: len(numbers) - count]), bits[whole:].tobytes()


@cache
def _weights() -> np.ndarray:
    return np.random.default_rng(0).integers(-(2**62), 2**62, WIDTH) | 1
